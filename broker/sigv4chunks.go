package broker

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A body of S3 whose chunks are signed (AWS, "Signature Calculations for the
// Authorization Header: Transferring Payload in Multiple Chunks"): each chunk is
//
//	SIZE-IN-HEX;chunk-signature=SIGNATURE CRLF DATA CRLF
//
// the last one has size 0 and, with trailers, lines and a signature of them behind
// it. Each signature covers the one before, the first that of the request, so when
// the request is signed anew every chunk must be as well. Nothing else changes,
// not even the length.
const (
	payloadChunks        = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	payloadChunksTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"

	maxChunk      = 8 << 20  // bytes of one chunk, which is held in memory to be signed; SDKs make 64 to 128 KiB
	maxChunkLine  = 256      // bytes before the data of a chunk
	maxTrailer    = 16 << 10 // bytes after the last chunk
	amzDateFormat = "20060102T150405Z"
	emptySHA256   = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

var (
	chunkLine = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([0-9a-fA-F]{1,8});chunk-signature=[0-9a-f]{64}\r\n$`)
	})
	trailerSignature = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)x-amz-trailer-signature:([0-9a-f]{64})`) })

	errChunks = errors.New("the body is not in signed chunks, as its header says")
)

// chunkSigner reads a body in signed chunks and gives it out signed with another key.
type chunkSigner struct {
	in      *bufio.Reader
	body    io.Closer
	key     []byte // of one day, region and service
	date    string
	scope   string
	last    string // signature before the next chunk's
	trailer bool
	out     []byte // not yet read
	err     error  // once out is read
}

// signChunks puts a chunkSigner in front of the body of a request that has been
// signed at a time with a signature.
func signChunks(req *http.Request, secretKey, region, service string, at time.Time, signature string, trailer bool) error {
	if req.Body == nil || req.Body == http.NoBody {
		return &errBody{"there is no body, and its header says that it is in signed chunks"}
	}
	day := at.Format("20060102")
	key := []byte("AWS4" + secretKey)
	for _, part := range []string{day, region, service, "aws4_request"} {
		key = sumHMAC(key, part)
	}
	req.Body = &chunkSigner{
		in: bufio.NewReaderSize(req.Body, 32<<10), body: req.Body, key: key, date: at.Format(amzDateFormat),
		scope: strings.Join([]string{day, region, service, "aws4_request"}, "/"), last: signature, trailer: trailer,
	}
	return nil
}

func sumHMAC(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func (c *chunkSigner) Read(p []byte) (int, error) {
	if len(c.out) == 0 && c.err == nil {
		c.err = c.next()
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	if len(c.out) == 0 && c.err != nil {
		return n, c.err
	}
	return n, nil
}

func (c *chunkSigner) Close() error { return c.body.Close() }

// next fills out with one chunk; io.EOF with the last one.
func (c *chunkSigner) next() error {
	line, err := c.line()
	if err != nil {
		return err
	}
	m := chunkLine().FindStringSubmatch(line)
	if m == nil {
		return errChunks
	}
	size, err := strconv.ParseUint(m[1], 16, 32)
	if err != nil || size > maxChunk {
		return errors.New("a chunk of the body is longer than 8 MiB")
	}
	end := uint64(2) // CRLF
	if size == 0 {
		end = 0
	}
	data := make([]byte, size+end)
	if _, err := io.ReadFull(c.in, data); err != nil {
		return errChunks
	}
	if string(data[size:]) != "\r\n"[:end] {
		return errChunks
	}
	c.sign("AWS4-HMAC-SHA256-PAYLOAD", emptySHA256, data[:size])
	c.out = append([]byte(m[1]+";chunk-signature="+c.last+"\r\n"), data...)
	if size > 0 {
		return nil
	}
	return c.end()
}

// line reads up to a line break, at most maxChunkLine bytes.
func (c *chunkSigner) line() (string, error) {
	var b []byte
	for len(b) < maxChunkLine {
		x, err := c.in.ReadByte()
		if err != nil {
			return "", errChunks
		}
		if b = append(b, x); x == '\n' {
			return string(b), nil
		}
	}
	return "", errChunks
}

// end gives out what stands behind the last chunk: a line break, or trailers with
// a signature in the place of the client's.
func (c *chunkSigner) end() error {
	rest, err := io.ReadAll(io.LimitReader(c.in, maxTrailer+1))
	if err != nil {
		return err
	}
	if !c.trailer {
		if s := string(rest); s != "\r\n" && s != "" {
			return errChunks
		}
		c.out = append(c.out, rest...)
		return io.EOF
	}
	at := trailerSignature().FindSubmatchIndex(rest)
	if len(rest) > maxTrailer || at == nil || strings.TrimSpace(string(rest[at[3]:])) != "" {
		return errChunks
	}
	var lines strings.Builder
	for l := range strings.Lines(string(rest[:at[0]])) {
		if l = strings.TrimSpace(l); l != "" {
			lines.WriteString(l + "\n")
		}
	}
	c.sign("AWS4-HMAC-SHA256-TRAILER", "", []byte(lines.String()))
	copy(rest[at[2]:at[3]], c.last)
	c.out = append(c.out, rest...)
	return io.EOF
}

// sign makes the signature that follows the last one. headers is the hash of what
// stands for headers in the signed text; a trailer's has none.
func (c *chunkSigner) sign(algorithm, headers string, data []byte) {
	sum := sha256.Sum256(data)
	parts := []string{algorithm, c.date, c.scope, c.last}
	if headers != "" {
		parts = append(parts, headers)
	}
	c.last = hex.EncodeToString(sumHMAC(c.key, strings.Join(append(parts, hex.EncodeToString(sum[:])), "\n")))
}
