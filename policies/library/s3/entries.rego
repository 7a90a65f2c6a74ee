package warder.egress

import data.library.s3

# METADATA
# title: Get objects from the listed buckets
allow contains {"rule": "s3-get", "credential": "s3"} if s3.get

# METADATA
# title: List the listed prefixes
allow contains {"rule": "s3-list", "credential": "s3"} if s3.list

# METADATA
# title: Put objects into the listed buckets
allow contains {"rule": "s3-put", "credential": "s3"} if s3.put
