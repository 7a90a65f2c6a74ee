package proxy

import (
	"bytes"
	"strconv"
	"strings"
)

// head is what the handler needs to know of a head beyond net/http's Request.
type head struct {
	method, target string // only in framer.bad
	host           string // the Host field as received
	hosts          int
	also           []string // further ones, of HTTP/2
	upgrade        bool
	chunked        bool
	length         int64 // -1: no Content-Length
}

// parseHead judges a head without its empty line.
func (f *framer) parseHead(in []byte) (head, error) {
	h := head{length: -1}
	line, rest, more := bytes.Cut(in, []byte("\r\n"))
	old, err := h.requestLine(line)
	if err != nil {
		return h, err
	}
	var connUpgrade, upgrade, te bool
	for lines := 0; more; lines++ {
		if lines == f.maxHeaders {
			return h, &framingError{true, "too many header lines"}
		}
		line, rest, more = bytes.Cut(rest, []byte("\r\n"))
		name, value, err := headerLine(line)
		if err != nil {
			return h, err
		}
		switch len(name) {
		case 4:
			if isName(name, "host") {
				h.host = string(value)
				h.hosts++
			}
		case 7:
			upgrade = upgrade || isName(name, "upgrade") && hasToken(string(value), "websocket")
		case 10:
			connUpgrade = connUpgrade || isName(name, "connection") && hasToken(string(value), "upgrade")
		case 14:
			if isName(name, "content-length") {
				if err := h.contentLength(value); err != nil {
					return h, err
				}
			}
		case 17:
			if isName(name, "transfer-encoding") {
				if te || !isName(value, "chunked") {
					return h, badFraming("transfer coding other than one chunked")
				}
				te, h.chunked = true, true
			}
		}
	}
	return h, h.consistent(old, connUpgrade && upgrade)
}

// requestLine reads METHOD SP target SP HTTP/1.x; old is HTTP/1.0.
func (h *head) requestLine(line []byte) (old bool, err error) {
	method, rest, ok1 := bytes.Cut(line, []byte{' '})
	tgt, version, ok2 := bytes.Cut(rest, []byte{' '})
	if !ok1 || !ok2 || len(tgt) == 0 || !isToken(method) {
		return false, badFraming("broken request line")
	}
	for _, c := range tgt {
		if c <= ' ' || c >= 0x7f {
			return false, badFraming("request target holds a character that must be percent-encoded")
		}
	}
	if string(method) == "CONNECT" {
		h.method = "CONNECT"
	}
	switch string(version) {
	case "HTTP/1.1":
	case "HTTP/1.0":
		old = true
	default:
		return false, badFraming("not HTTP/1.1 or HTTP/1.0")
	}
	return old, nil
}

func (h *head) contentLength(value []byte) error {
	if h.length >= 0 {
		return badFraming("two Content-Length fields")
	}
	if len(value) == 0 || len(value) > 18 {
		return badFraming("broken Content-Length")
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return badFraming("broken Content-Length")
		}
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return badFraming("broken Content-Length")
	}
	h.length = n
	return nil
}

func (h *head) consistent(old, upgrade bool) error {
	switch {
	case h.hosts > 1:
		return badFraming("two Host fields")
	case h.hosts == 0 && !old && h.method != "CONNECT":
		return badFraming("no Host field")
	case h.chunked && h.length >= 0:
		return badFraming("both Content-Length and Transfer-Encoding")
	case h.chunked && old:
		return badFraming("Transfer-Encoding in HTTP/1.0")
	case upgrade && (h.chunked || h.length > 0):
		return badFraming("upgrade request with a body")
	}
	h.upgrade = upgrade && !old
	return nil
}

// headerLine splits "name: value" and trims the value's white space.
func headerLine(line []byte) (name, value []byte, err error) {
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok || !isToken(name) {
		return nil, nil, badFraming("broken header line")
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, badFraming("control character in a header value")
		}
	}
	return name, bytes.Trim(value, " \t"), nil
}

func isToken(s []byte) bool {
	for _, c := range s {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return len(s) > 0
}

// isName compares ASCII without regard to case; want is lower case.
func isName(name []byte, want string) bool {
	if len(name) != len(want) {
		return false
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// hasToken reports that the comma-separated list holds token (RFC 9110 §5.6.1).
func hasToken(list, token string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.Trim(part, " \t"), token) {
			return true
		}
	}
	return false
}

// readable saves what a record can show of a refused head.
func readable(in []byte) head {
	var h head
	line, rest, _ := bytes.Cut(in, []byte{'\n'})
	parts := strings.SplitN(strings.TrimRight(string(line[:min(len(line), 4096)]), "\r"), " ", 3)
	if len(parts) > 1 {
		h.method, h.target = parts[0], parts[1]
	}
	for len(rest) > 0 && h.host == "" {
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		if name, value, err := headerLine(bytes.TrimRight(line, "\r")); err == nil && isName(name, "host") {
			h.host = string(value[:min(len(value), 256)])
		}
	}
	return h
}
