package proxy

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func frame(src io.Reader) *framer {
	return &framer{src: src, maxHead: 64 << 10, maxHeaders: 256}
}

func TestFramerRefuses_F044_F045_F047(t *testing.T) {
	for name, raw := range map[string]string{
		"length and chunked":         "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		"two equal lengths":          "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
		"length list":                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 5\r\n\r\nabcd",
		"length with sign":           "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd",
		"length not a number":        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: abc\r\n\r\n",
		"empty length":               "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
		"huge length":                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"xchunked":                   "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"chunked, identity":          "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
		"chunked twice":              "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunked with vertical tab":  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
		"chunked in 1.0":             "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"bare LF":                    "GET / HTTP/1.1\nHost: a\n\n",
		"bare LF in one line":        "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
		"bare CR":                    "GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n",
		"obs-fold":                   "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
		"space before colon":         "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
		"two hosts":                  "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
		"no host":                    "GET / HTTP/1.1\r\nX: a\r\n\r\n",
		"no colon":                   "GET / HTTP/1.1\r\nHost: a\r\nfoo\r\n\r\n",
		"empty name":                 "GET / HTTP/1.1\r\nHost: a\r\n: foo\r\n\r\n",
		"NUL in value":               "GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
		"HTTP/2 preface":             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/0.9":                   "GET /\r\n\r\n",
		"HTTP/1.2":                   "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
		"lower-case version":         "GET / http/1.1\r\nHost: a\r\n\r\n",
		"two spaces":                 "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"raw UTF-8 target":           "GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
		"tab in target":              "GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n",
		"SSH":                        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
		"chunk size not hex":         "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"chunk size with sign":       "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+4\r\nabcd\r\n",
		"chunk size with 0x":         "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x4\r\nabcd\r\n",
		"chunk size line, bare LF":   "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x\nabcde\r\n",
		"chunk longer than its size": "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcdef\r\n0\r\n\r\n",
		"overflowing chunk":          "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
		"long chunk extension":       "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 1<<20) + "\r\na\r\n0\r\n\r\n",
		"trailer fold":               "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n c\r\n\r\n",
		"long trailers":              "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: bcdefgh\r\n", 4096) + "\r\n",
		"many headers":               "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A: b\r\n", 1000) + "\r\n",
		"long header":                "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("b", 2<<20) + "\r\n\r\n",
		"upgrade with a body":        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc",
	} {
		for _, how := range []string{"at once", "byte by byte"} {
			src := io.Reader(strings.NewReader(raw))
			if how == "byte by byte" && len(raw) < 4096 {
				src = iotest.OneByteReader(src)
			}
			f := frame(src)
			_, err := io.Copy(io.Discard, f)
			var fe *framingError
			if !errors.As(err, &fe) {
				t.Errorf("%s, %s: %v", name, how, err)
			}
			if len(f.buf) > 256<<10 {
				t.Errorf("%s: %d bytes of memory", name, len(f.buf))
			}
		}
	}
}

func TestFramerPassesGoodMessagesUnchanged(t *testing.T) {
	const (
		one     = "GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n"
		length  = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\nGET / HTTP/x"
		chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5;x=\"y\"\r\nab\r\nc\r\nA\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n"
		old     = "GET / HTTP/1.0\r\n\r\n"
		empty   = "POST / HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\n\r\n"
	)
	for name, raw := range map[string]string{
		"one": one, "pipelined": one + one + length[:len(length)-1] + one, "chunked": chunked + one, "old": old, "empty": empty + chunked + empty,
		"CONNECT without Host": "CONNECT a:1 HTTP/1.1\r\n\r\n\x16\x03\n\x00",
		"upgrade":              "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n\x81\n\n\x00",
	} {
		for how, src := range map[string]io.Reader{
			"at once": strings.NewReader(raw), "byte by byte": iotest.OneByteReader(strings.NewReader(raw)), "data with EOF": iotest.DataErrReader(strings.NewReader(raw)),
		} {
			var got strings.Builder
			_, err := io.CopyBuffer(struct{ io.Writer }{&got}, frame(src), make([]byte, 7))
			if err != nil || got.String() != raw {
				t.Errorf("%s, %s: %q %v", name, how, got.String(), err)
			}
		}
	}
	// RFC 9112 §2.2: one empty line before a request is dropped.
	b, err := io.ReadAll(frame(strings.NewReader("\r\n" + one + "\r\n" + one)))
	if err != nil || string(b) != one+one {
		t.Errorf("%q %v", b, err)
	}
}

func TestFramerHeldBackHeadIsWholeOrNothing(t *testing.T) {
	f := frame(iotest.ErrReader(io.ErrUnexpectedEOF))
	f.src = io.MultiReader(strings.NewReader("GET /x HTTP/1.1\r\nHost: a"), iotest.ErrReader(io.ErrClosedPipe))
	n, err := f.Read(make([]byte, 100))
	if n != 0 || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%d %v", n, err)
	}
	if got := readable(f.buf[f.ok:f.w]); got.method != "GET" || got.target != "/x" || got.host != "a" {
		t.Errorf("%+v", got)
	}
}

// What the framer passes, net/http must read with the same borders.
func FuzzFramerAgreesWithNetHTTP(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabGET / HTTP/1.1\r\nHost: a\r\n\r\n")
	f.Add("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
	f.Add("\r\nGET / HTTP/1.0\r\n\r\n")
	f.Add("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\nX: 1\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
	f.Fuzz(func(t *testing.T, raw string) {
		fr := frame(strings.NewReader(raw))
		br := bufio.NewReaderSize(fr, 64)
		for i := 0; ; i++ {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			if len(fr.heads) == 0 {
				t.Fatalf("net/http read request %d and the framer did not see it", i)
			}
			h := fr.takeHead()
			if h.upgrade || h.method == "CONNECT" {
				return
			}
			if h.chunked != (len(req.TransferEncoding) > 0) || !h.chunked && max(h.length, 0) != max(req.ContentLength, 0) {
				t.Fatalf("request %d: framer %+v, net/http length %d %v", i, h, req.ContentLength, req.TransferEncoding)
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
		}
	})
}
