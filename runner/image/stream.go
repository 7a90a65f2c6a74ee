package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
)

// decompress reads gzip, zstd or plain tar, told apart by its first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(4)
	if err != nil && len(head) == 0 {
		return nil, fmt.Errorf("empty layer: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(br)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxMemory(128<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(br), nil
}

// verifier hashes what is read, and at the end of the stream reports an error
// when it is not what was promised, or is longer than max.
type verifier struct {
	r    io.Reader
	sum  hash.Hash
	want v1.Hash
	left int64
	what string
}

func verified(r io.Reader, want v1.Hash, limit int64, what string) (*verifier, error) {
	if want.Algorithm != "sha256" {
		return nil, fmt.Errorf("%s: digest algorithm %q is not supported", what, want.Algorithm)
	}
	return &verifier{r: r, sum: sha256.New(), want: want, left: limit, what: what}, nil
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	if v.left -= int64(n); v.left < 0 {
		return n, fmt.Errorf("%s: larger than allowed", v.what)
	}
	if err == io.EOF {
		if got := hex.EncodeToString(v.sum.Sum(nil)); got != v.want.Hex {
			return n, fmt.Errorf("%s: digest is sha256:%s, not %s as promised", v.what, got, v.want)
		}
	}
	return n, err
}

// checked returns the bytes when they are what the digest says.
func checked(b []byte, want v1.Hash, what string) ([]byte, error) {
	v, err := verified(bytes.NewReader(b), want, int64(len(b)), what)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(v)
}
