package broker

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// signedBody is data in chunks with signatures that are nobody's.
func signedBody(data []byte, chunk int, trailer string) string {
	var b strings.Builder
	sig := strings.Repeat("0", 64)
	for len(data) > 0 {
		n := min(chunk, len(data))
		fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n%s\r\n", n, sig, data[:n])
		data = data[n:]
	}
	fmt.Fprintf(&b, "0;chunk-signature=%s\r\n%s", sig, strings.ReplaceAll(trailer, "SIG", sig))
	return b.String()
}

func chunkRequest(t *testing.T, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://s3.amazonaws.com/examplebucket/chunkObject.txt", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// The example of the S3 documentation ("Transferring Payload in Multiple Chunks"):
// 66,560 times "a" in chunks of 64 KiB, behind the signature that it gives for the
// request.
func TestSigV4ChunkVectorsOfS3(t *testing.T) {
	at := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	const seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
	in := signedBody(bytes.Repeat([]byte("a"), 66560), 65536, "\r\n")
	req := chunkRequest(t, in)
	if err := signChunks(req, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "s3", at, seed, false); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(iotest.OneByteReader(req.Body))
	if err != nil || len(got) != len(in) {
		t.Fatal(len(got), len(in), err)
	}
	for _, want := range []string{
		"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n",
		"400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
		"0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// The example of the S3 documentation with a trailing checksum.
func TestSigV4TrailerVectorOfS3(t *testing.T) {
	at := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	const seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
	for _, end := range []string{
		"x-amz-checksum-crc32c:sOO8/Q==\nx-amz-trailer-signature:SIG",
		"x-amz-checksum-crc32c:sOO8/Q==\n\r\nx-amz-trailer-signature:SIG\r\n\r\n",
		"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:SIG\r\n\r\n",
	} {
		in := signedBody(bytes.Repeat([]byte("a"), 66560), 65536, end)
		req := chunkRequest(t, in)
		if err := signChunks(req, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "s3", at, seed, true); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(req.Body)
		if err != nil || len(got) != len(in) {
			t.Fatal(len(got), len(in), err)
		}
		for _, want := range []string{
			"10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n",
			"400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n",
			"0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n",
			"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435",
		} {
			if !strings.Contains(string(got), want) {
				t.Errorf("%q is missing", want)
			}
		}
	}
}

// What is not in signed chunks never goes out as if it were.
func TestSigV4OddChunksEndTheBody(t *testing.T) {
	sig := strings.Repeat("0", 64)
	for name, body := range map[string]string{
		"no chunks":         "just a body",
		"no signature":      "4\r\nbody\r\n0\r\n\r\n",
		"short signature":   "4;chunk-signature=00\r\nbody\r\n0;chunk-signature=" + sig + "\r\n\r\n",
		"longer than said":  "3;chunk-signature=" + sig + "\r\nbody\r\n0;chunk-signature=" + sig + "\r\n\r\n",
		"shorter than said": "5;chunk-signature=" + sig + "\r\nbody\r\n",
		"no end":            "4;chunk-signature=" + sig + "\r\nbody\r\n",
		"more behind it":    "0;chunk-signature=" + sig + "\r\n\r\nmore",
		"too long":          "7fffffff;chunk-signature=" + sig + "\r\n",
		"negative":          "-4;chunk-signature=" + sig + "\r\n",
		"an endless line":   strings.Repeat("0", 1<<20),
	} {
		req := chunkRequest(t, body)
		if err := signChunks(req, "key", "us-east-1", "s3", time.Now(), sig, false); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(req.Body); err == nil || len(got) > 200 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	for name, end := range map[string]string{"no signature": "a:b\r\n\r\n", "more behind it": "x-amz-trailer-signature:SIG\r\na:b\r\n", "endless": strings.Repeat("a", 1<<20)} {
		req := chunkRequest(t, signedBody([]byte("body"), 4, end))
		if err := signChunks(req, "key", "us-east-1", "s3", time.Now(), sig, true); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(req.Body); err == nil {
			t.Errorf("trailer, %s: %d bytes, %v", name, len(got), err)
		}
	}
}

func TestSigV4ChunksAreSignedBehindTheRequest(t *testing.T) {
	req := chunkRequest(t, signedBody([]byte("one object"), 4, "\r\n"))
	req.Header.Set(payloadHeader, payloadChunks)
	g := awsGrant("s3", time.Now(), "")
	if err := g.Inject(req); err != nil {
		t.Fatal(err)
	}
	seed := g.sent[0].Reveal()
	if c, ok := req.Body.(*chunkSigner); !ok || c.last != seed || !strings.HasSuffix(req.Header.Get("Authorization"), seed) {
		t.Fatal("the chunks do not begin with the request's signature")
	}
	got, err := io.ReadAll(req.Body)
	if err != nil || strings.Contains(string(got), strings.Repeat("0", 64)) || strings.Count(string(got), ";chunk-signature=") != 4 {
		t.Fatalf("%v: %s", err, got)
	}
	req.Body = http.NoBody
	refused(t, g.Inject(req), ReasonBinding)
}

// FuzzSigV4Chunks: what goes out is what came in but for the signatures, or it ends
// with an error.
func FuzzSigV4Chunks(f *testing.F) {
	f.Add([]byte(signedBody([]byte("one object"), 4, "\r\n")), false)
	f.Add([]byte(signedBody([]byte("one object"), 64, "x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:SIG\r\n\r\n")), true)
	f.Add([]byte("4;chunk-signature=00\r\nbody\r\n"), false)
	f.Fuzz(func(t *testing.T, in []byte, trailer bool) {
		req := chunkRequest(t, string(in))
		if len(in) == 0 {
			return
		}
		if err := signChunks(req, "key", "us-east-1", "s3", time.Unix(0, 0), strings.Repeat("0", 64), trailer); err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(req.Body)
		if len(out) > len(in) {
			t.Fatalf("%d bytes of %d", len(out), len(in))
		}
		if err != nil {
			return
		}
		if len(out) != len(in) {
			t.Fatalf("%d bytes of %d", len(out), len(in))
		}
		for i := range in {
			if in[i] != out[i] && !strings.ContainsRune("0123456789abcdef", rune(out[i])) {
				t.Fatalf("byte %d is %q and was %q", i, out[i], in[i])
			}
		}
	})
}
