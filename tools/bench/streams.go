package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// streamBytes is the length of one stream.
const streamBytes = 256 << 20

// streamer reads long answers.
type streamer struct {
	*client
	buf []byte
}

func openStream(t target) (worker, error) {
	w, err := openKeepAlive(t)
	if err != nil {
		return nil, err
	}
	c := w.(*client)
	c.r = bufio.NewReaderSize(c.conn, 64<<10)
	return &streamer{c, make([]byte, 64<<10)}, nil
}

func (s *streamer) once() (units, micros float64, err error) {
	begin := time.Now()
	if _, err := s.conn.Write(s.head(s.target)); err != nil {
		return 0, 0, err
	}
	a, err := readHead(s.r)
	if err != nil {
		return 0, 0, err
	}
	if !a.ok || a.length != streamBytes {
		return 0, 0, fmt.Errorf("answer %q with %d bytes", a.status, a.length)
	}
	if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{io.LimitReader(s.r, streamBytes)}, s.buf); err != nil || n != streamBytes {
		return 0, 0, fmt.Errorf("the stream ended after %d bytes: %w", n, err)
	}
	return streamBytes / 1e6, float64(time.Since(begin).Nanoseconds()) / 1e3, nil
}

// trickler reads answers that come in parts, the first of which says when it was sent.
type trickler struct{ *client }

func openTrickle(t target) (worker, error) {
	w, err := openKeepAlive(t)
	if err != nil {
		return nil, err
	}
	return &trickler{w.(*client)}, nil
}

// once measures from the sending of the first part to the arrival of its first byte.
func (s *trickler) once() (units, micros float64, err error) {
	if _, err := s.conn.Write(s.head(s.target)); err != nil {
		return 0, 0, err
	}
	a, err := readHead(s.r)
	if err != nil {
		return 0, 0, err
	}
	if !a.ok || !a.chunked {
		return 0, 0, fmt.Errorf("answer %q, chunked: %v", a.status, a.chunked)
	}
	var text []byte
	for {
		part, err := s.chunk()
		if err != nil {
			return 0, 0, err
		}
		if len(text) == 0 {
			micros = float64(time.Now().UnixNano()) / 1e3 // arrived
		}
		if part != "" {
			text = append(text, part...)
			continue
		}
		stamp, _, _ := bytes.Cut(text, []byte("\n"))
		sent, err := strconv.ParseInt(string(stamp), 10, 64)
		return 1, micros - float64(sent)/1e3, err
	}
}

// chunk reads one chunk (RFC 9112 §7.1); "" is the last.
func (s *trickler) chunk() (string, error) {
	line, err := s.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(line[:max(0, len(line)-2)], 16, 16)
	if err != nil {
		return "", err
	}
	data := make([]byte, n+2)
	if _, err := io.ReadFull(s.r, data); err != nil {
		return "", err
	}
	return string(data[:n]), nil
}

// echoer sends WebSocket messages (RFC 6455) and waits for each to come back.
type echoer struct {
	*client
	frame []byte // masked with zeros
	back  []byte
}

// messageBytes is more than 125, so that its length takes two bytes.
const messageBytes = 128

func openWebSocket(t target) (worker, error) {
	w, err := openKeepAlive(t)
	if err != nil {
		return nil, err
	}
	c := w.(*client)
	if _, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", t.path, originName); err != nil {
		return nil, err
	}
	if a, err := readHead(c.r); err != nil || !a.ok {
		return nil, errors.Join(err, fmt.Errorf("no upgrade: %q", a.status), c.conn.Close())
	}
	e := &echoer{client: c, frame: []byte{0x82, 0x80 | 126}}
	e.frame = binary.BigEndian.AppendUint16(e.frame, messageBytes)
	e.frame = append(e.frame, make([]byte, 4+messageBytes)...)
	e.back = make([]byte, 4+messageBytes)
	return e, nil
}

func (e *echoer) once() (units, micros float64, err error) {
	begin := time.Now()
	if _, err := e.conn.Write(e.frame); err != nil {
		return 0, 0, err
	}
	if _, err := io.ReadFull(e.r, e.back); err != nil {
		return 0, 0, err
	}
	if e.back[0] != 0x82 || e.back[1] != 126 {
		return 0, 0, fmt.Errorf("not the frame that was sent: %x", e.back[:4])
	}
	return 1, float64(time.Since(begin).Nanoseconds()) / 1e3, nil
}
