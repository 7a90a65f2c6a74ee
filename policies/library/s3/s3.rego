# METADATA
# title: Requests to AWS S3, by what they do
package library.s3

settings := data.s3

# BUCKET.s3.REGION.amazonaws.com/KEY
location := {"bucket": bucket, "key": concat("/", input.request.segments)} if {
	some bucket, _ in settings.buckets
	input.request.host == sprintf("%s.s3.%s.amazonaws.com", [bucket, settings.region])
}

# s3.REGION.amazonaws.com/BUCKET/KEY
location := {"bucket": bucket, "key": concat("/", array.slice(input.request.segments, 1, count(input.request.segments)))} if {
	input.request.host == sprintf("s3.%s.amazonaws.com", [settings.region])
	some bucket, _ in settings.buckets
	input.request.segments[0] == bucket
}

in_prefix(key) if {
	some prefix in settings.buckets[location.bucket]
	startswith(key, prefix)
}

secure if {
	input.request.scheme == "https"
	input.request.port == 443
}

only_query(names) if {
	every name, values in input.request.query {
		name in names
		count(values) == 1
	}
}

get if {
	settings.profile in {"read-only", "read-write"}
	secure
	input.request.method in {"GET", "HEAD"}
	location.key != ""
	in_prefix(location.key)
	only_query({"x-id", "versionId", "partNumber"})
}

list if {
	settings.profile in {"read-only", "read-write"}
	secure
	input.request.method == "GET"
	location.key == ""
	input.request.query["list-type"] == ["2"]
	only_query({"list-type", "prefix", "delimiter", "continuation-token", "start-after", "max-keys", "encoding-type", "x-id"})
	in_prefix(object.get(input.request.query, "prefix", [""])[0])
}

put if {
	settings.profile == "read-write"
	secure
	location.key != ""
	in_prefix(location.key)
	object_write
	not exposing
}

object_write if {
	input.request.method == "PUT"
	only_query({"x-id", "partNumber", "uploadId"})
}

object_write if {
	input.request.method == "POST"
	count(object.keys(input.request.query) & {"uploads", "uploadId"}) == 1
	only_query({"uploads", "uploadId", "x-id"})
}

# Headers that read another object, or change who may read this one.
exposing if {
	some name, _ in input.request.headers
	strings.any_prefix_match(name, ["x-amz-acl", "x-amz-grant-", "x-amz-copy-source", "x-amz-website-redirect-location"])
}
