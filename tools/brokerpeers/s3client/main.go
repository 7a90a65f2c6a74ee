// S3client is what a task would run: an unmodified client of the AWS SDK, with the
// keys that its environment has. It prints a line for each thing that worked.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/minio-go/v7/pkg/signer"
)

const bucket = "agents"

type task struct {
	c        *s3.Client
	endpoint string
	key, id  string
}

func main() {
	t := &task{endpoint: os.Args[1], id: os.Getenv("AWS_ACCESS_KEY_ID"), key: os.Getenv("AWS_SECRET_ACCESS_KEY")}
	t.c = s3.New(s3.Options{
		Region: "eu-central-1", BaseEndpoint: &t.endpoint, UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: t.id, SecretAccessKey: t.key}, nil
		}),
	})
	ctx := context.Background()
	failed := false
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"create bucket", t.create},
		{"put and get", t.putGet},
		{"list", t.list},
		{"stream without a length", t.stream},
		{"multipart", t.multipart},
		{"presigned get", t.presignedGet},
		{"presigned put", t.presignedPut},
		{"chunks signed by the client", t.signedChunks},
		{"chunks with a trailer", t.chunksWithTrailer},
		{"refused: a changed body", t.changedBody},
		{"delete", t.remove},
	} {
		if err := step.do(ctx); err != nil {
			fmt.Printf("FAILED %s: %v\n", step.name, err)
			failed = true
			continue
		}
		fmt.Println("ok " + step.name)
	}
	if failed {
		os.Exit(1)
	}
}

func (t *task) create(ctx context.Context) error {
	_, err := t.c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(bucket), CreateBucketConfiguration: &types.CreateBucketConfiguration{LocationConstraint: "eu-central-1"}})
	return err
}

// same reads an object back and compares it.
func (t *task) same(ctx context.Context, key string, want []byte) error {
	out, err := t.c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &key})
	if err != nil {
		return err
	}
	defer out.Body.Close()
	got, err := io.ReadAll(out.Body)
	if err != nil {
		return err
	}
	if sha256.Sum256(got) != sha256.Sum256(want) {
		return fmt.Errorf("%d bytes came back for %d", len(got), len(want))
	}
	return nil
}

func (t *task) putGet(ctx context.Context) error {
	key := "a folder/ä+b=c&d"
	if _, err := t.c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: strings.NewReader("one object"), Metadata: map[string]string{"who": "agent"}}); err != nil {
		return err
	}
	return t.same(ctx, key, []byte("one object"))
}

func (t *task) list(ctx context.Context) error {
	out, err := t.c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: aws.String("a folder/")})
	if err != nil {
		return err
	}
	if len(out.Contents) != 1 {
		return fmt.Errorf("%d objects", len(out.Contents))
	}
	return nil
}

// stream uploads what cannot be read twice.
func (t *task) stream(ctx context.Context) error {
	data := bytes.Repeat([]byte("streamed "), 100_000)
	in := &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String("stream"), ContentLength: aws.Int64(int64(len(data))),
		Body: io.MultiReader(bytes.NewReader(data)), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	}
	if _, err := t.c.PutObject(ctx, in); err != nil {
		return err
	}
	return t.same(ctx, "stream", data)
}

func (t *task) multipart(ctx context.Context) error {
	key := aws.String("parts")
	up, err := t.c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: key})
	if err != nil {
		return err
	}
	var done []types.CompletedPart
	var all []byte
	for i := range int32(3) {
		part := bytes.Repeat([]byte{'a' + byte(i)}, 5<<20)
		out, err := t.c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: key, UploadId: up.UploadId, PartNumber: aws.Int32(i + 1), Body: bytes.NewReader(part)})
		if err != nil {
			return err
		}
		all = append(all, part...)
		done = append(done, types.CompletedPart{
			ETag: out.ETag, PartNumber: aws.Int32(i + 1),
			ChecksumCRC32: out.ChecksumCRC32, ChecksumCRC64NVME: out.ChecksumCRC64NVME,
		})
	}
	if _, err := t.c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: aws.String(bucket), Key: key, UploadId: up.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: done},
	}); err != nil {
		return err
	}
	return t.same(ctx, *key, all)
}

func (t *task) presignedGet(ctx context.Context) error {
	req, err := s3.NewPresignClient(t.c).PresignGetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("a folder/ä+b=c&d")})
	if err != nil {
		return err
	}
	body, err := plain(ctx, http.MethodGet, req.URL, req.SignedHeader, "")
	if err == nil && body != "one object" {
		err = fmt.Errorf("got %q", body)
	}
	return err
}

func (t *task) presignedPut(ctx context.Context) error {
	req, err := s3.NewPresignClient(t.c).PresignPutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("presigned")})
	if err != nil {
		return err
	}
	if _, err := plain(ctx, http.MethodPut, req.URL, req.SignedHeader, "by URL"); err != nil {
		return err
	}
	return t.same(ctx, "presigned", []byte("by URL"))
}

// plain is a client that knows nothing of AWS.
func plain(ctx context.Context, method, url string, header http.Header, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for k, v := range header {
		if !strings.EqualFold(k, "host") {
			req.Header[k] = v
		}
	}
	return send(req)
}

func send(req *http.Request) (string, error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, raw)
	}
	return string(raw), err
}

// signedChunks sends a body whose chunks carry signatures by the key that the task
// has, as SDKs do that sign streams (here that of MinIO).
func (t *task) signedChunks(ctx context.Context) error {
	data := bytes.Repeat([]byte("chunk "), 50_000)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, t.endpoint+"/"+bucket+"/chunks", io.NopCloser(bytes.NewReader(data)))
	if err != nil {
		return err
	}
	req.ContentLength = int64(len(data))
	if _, err := send(signer.StreamingSignV4(req, t.id, t.key, "", "eu-central-1", int64(len(data)), time.Now().UTC(), hasher{sha256.New()})); err != nil {
		return err
	}
	return t.same(ctx, "chunks", data)
}

// chunksWithTrailer sends chunks and a checksum behind them, with signatures that
// are nobody's: they are made anew on the way. The form is that of boto, for the
// gateway does not take the line break that MinIO's signer ends a trailer with.
func (t *task) chunksWithTrailer(ctx context.Context) error {
	data := bytes.Repeat([]byte("chunk "), 50_000)
	sig := strings.Repeat("0", 64)
	var b bytes.Buffer
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 64<<10)
		fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n%s\r\n", n, sig, rest[:n])
		rest = rest[n:]
	}
	fmt.Fprintf(&b, "0;chunk-signature=%s\r\nx-amz-checksum-crc32:%s\r\nx-amz-trailer-signature:%s\r\n\r\n", sig, checksum(data), sig)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, t.endpoint+"/"+bucket+"/trailer", &b)
	if err != nil {
		return err
	}
	for k, v := range map[string]string{
		"X-Amz-Content-Sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "X-Amz-Trailer": "x-amz-checksum-crc32",
		"X-Amz-Decoded-Content-Length": strconv.Itoa(len(data)), "Content-Encoding": "aws-chunked",
	} {
		req.Header.Set(k, v)
	}
	if _, err := send(req); err != nil {
		return err
	}
	return t.same(ctx, "trailer", data)
}

// changedBody states the hash of another body: whoever signs anew must not make
// the service take it.
func (t *task) changedBody(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, t.endpoint+"/"+bucket+"/changed", strings.NewReader("this body"))
	if err != nil {
		return err
	}
	req.Header.Set("X-Amz-Content-Sha256", fmt.Sprintf("%x", sha256.Sum256([]byte("another body"))))
	if _, err := send(req); err == nil {
		return errors.New("the service took it")
	} else if !strings.Contains(err.Error(), "XAmzContentSHA256Mismatch") {
		return err
	}
	return nil
}

func (t *task) remove(ctx context.Context) error {
	_, err := t.c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("stream")})
	return err
}

// hasher is a hash as MinIO's signer wants it.
type hasher struct{ hash.Hash }

func (hasher) Close() {}

// checksum is x-amz-checksum-crc32 of data.
func checksum(data []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(data)))
}
