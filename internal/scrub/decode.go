package scrub

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

const (
	maxCodings = 3
	zstdWindow = 8 << 20 // bytes; what RFC 9659 allows for HTTP
)

var errCodedRange = errors.New("scrub: a part of a coded body cannot be read")

// AcceptEncoding lists the codings that Body reads, for the request whose answer
// will be scrubbed.
const AcceptEncoding = "gzip, br, zstd, deflate"

// codingsOf returns the codings in the order in which they were applied. The name
// aws-chunked tells how an object was uploaded to S3; stores keep it with the
// object and send it back, and never the framing itself.
func codingsOf(h http.Header) ([]string, error) {
	var out []string
	for _, line := range h.Values("Content-Encoding") {
		for c := range strings.SplitSeq(line, ",") {
			switch c = strings.ToLower(strings.TrimSpace(c)); c {
			case "", "identity", "aws-chunked":
			case "gzip", "x-gzip", "deflate", "br", "zstd":
				out = append(out, c)
			default:
				if len(c) > 32 {
					c = c[:32]
				}
				return nil, fmt.Errorf("scrub: content coding %q cannot be read", c)
			}
		}
	}
	if len(out) > maxCodings {
		return nil, fmt.Errorf("scrub: %d content codings", len(out))
	}
	return out, nil
}

// lazyDecoder opens its decoder at the first Read, so that the header of an
// answer does not wait for its body.
type lazyDecoder struct {
	coding string
	src    io.Reader
	dec    io.Reader
	err    error
}

func (d *lazyDecoder) Read(p []byte) (int, error) {
	if d.dec == nil && d.err == nil {
		d.dec, d.err = newDecoder(d.coding, d.src)
	}
	if d.err != nil {
		return 0, d.err
	}
	n, err := d.dec.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("scrub: %s: %w", d.coding, err)
	}
	return n, err
}

func newDecoder(coding string, src io.Reader) (io.Reader, error) {
	br := bufio.NewReader(src)
	if _, err := br.Peek(1); err != nil {
		return nil, err // io.EOF: an empty body is an empty body in any coding
	}
	var dec io.Reader
	var err error
	switch coding {
	case "gzip", "x-gzip":
		dec, err = gzip.NewReader(br)
	case "deflate":
		dec, err = inflate(br)
	case "br":
		dec = brotli.NewReader(br)
	case "zstd":
		dec, err = zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
	default:
		err = errors.New("no such coding")
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("scrub: %s: %w", coding, err)
	}
	return dec, nil
}

// inflate reads the zlib format (RFC 1950), and bare DEFLATE (RFC 1951), which
// some servers send under the same name.
func inflate(br *bufio.Reader) (io.Reader, error) {
	head, err := br.Peek(2)
	if err != nil {
		return nil, err
	}
	if head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 && !bytes.Equal(head, []byte{0, 0}) {
		return zlib.NewReader(br)
	}
	return flate.NewReader(br), nil
}
