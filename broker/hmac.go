package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"warder/internal/config"
	"warder/internal/secret"
)

// Parts of the signed text. A header is written "header:NAME", fixed text "text:…".
const (
	partMethod    = "method"
	partHost      = "host"
	partPath      = "path"
	partQuery     = "query"
	partTimestamp = "timestamp"
	partBody      = "body"
	partBodyHash  = "body_sha256"
	partHeader    = "header:"
	partText      = "text:"
)

var plainParts = []string{partMethod, partHost, partPath, partQuery, partTimestamp, partBody, partBodyHash}

func validateHMACSlot(key string, in config.HMAC) error {
	for _, h := range []struct{ key, name string }{{"header", in.Header}, {"timestamp_header", in.TimestampHeader}} {
		if h.name == "" && h.key == "timestamp_header" {
			continue
		}
		if !httpguts.ValidHeaderFieldName(h.name) || slices.Contains(reservedHeaders, http.CanonicalHeaderKey(h.name)) {
			return fmt.Errorf("%s.%s: %q is not a header that a signature can be in", key, h.key, h.name)
		}
	}
	if in.TimestampHeader != "" && strings.EqualFold(in.TimestampHeader, in.Header) {
		return fmt.Errorf("%s.timestamp_header: the same header as the signature's", key)
	}
	if in.Format != "" && (strings.Count(in.Format, valueMark) != 1 || !validFieldText(in.Format)) {
		return fmt.Errorf("%s.format: %s is needed once, and no control characters", key, valueMark)
	}
	if !slices.Contains([]string{"", "hex", "base64"}, in.Encoding) {
		return fmt.Errorf("%s.encoding: %q is neither hex nor base64", key, in.Encoding)
	}
	if len(in.Parts) == 0 {
		return fmt.Errorf("%s.parts: at least one is needed: what is signed", key)
	}
	for i, p := range in.Parts {
		name, isHeader := strings.CutPrefix(p, partHeader)
		switch {
		case isHeader && (!httpguts.ValidHeaderFieldName(name) || strings.EqualFold(name, in.Header)):
			return fmt.Errorf("%s.parts: %q is not a header that can be signed", key, p)
		case isHeader || strings.HasPrefix(p, partText):
		case !slices.Contains(plainParts, p):
			return fmt.Errorf("%s.parts: %q is none of %s, header:NAME, text:TEXT", key, p, strings.Join(plainParts, ", "))
		case p == partBody && i != len(in.Parts)-1:
			return fmt.Errorf("%s.parts: body is the last part or none: what stands behind it could be moved into it", key)
		}
	}
	if signs := slices.Contains(in.Parts, partTimestamp); signs != (in.TimestampHeader != "") {
		return fmt.Errorf("%s.timestamp_header: needed with the part timestamp, and only with it", key)
	}
	return nil
}

// signHMAC puts the signature over the named parts into its header.
func (g *Grant) signHMAC(req *http.Request) error {
	in := *g.slot.HMAC
	if g.m == nil || g.m.sign == nil {
		return errors.New("no key to sign with")
	}
	now := strconv.FormatInt(g.now().Unix(), 10)
	removeHeader(req, in.Header)
	if in.TimestampHeader != "" {
		setHeader(req, in.TimestampHeader, now)
	}
	text, err := canonical(req, in, now)
	if err != nil {
		return err
	}
	mac, vaultID, err := g.m.sign(req.Context(), text, g.requestID)
	if err != nil {
		return err
	}
	v := hex.EncodeToString(mac)
	if in.Encoding == "base64" {
		v = base64.StdEncoding.EncodeToString(mac)
	}
	if vaultID != "" {
		g.VaultRequestID = vaultID
	}
	g.sent = append(g.sent, secret.Brief(v))
	setHeader(req, in.Header, formatted(in.Format, v))
	return nil
}

// canonical joins the parts as docs/vault.md describes them.
func canonical(req *http.Request, in config.HMAC, timestamp string) ([]byte, error) {
	sep := "\n"
	if in.Separator != nil {
		sep = *in.Separator
	}
	path, query := targetOf(req)
	var out bytes.Buffer
	for i, p := range in.Parts {
		if i > 0 {
			out.WriteString(sep)
		}
		switch p {
		case partMethod:
			out.WriteString(req.Method)
		case partHost:
			out.WriteString(hostOf(req))
		case partPath:
			out.WriteString(path)
		case partQuery:
			out.WriteString(query)
		case partTimestamp:
			out.WriteString(timestamp)
		case partBody, partBodyHash:
			raw, err := readBody(req)
			if err != nil {
				return nil, err
			}
			if p == partBodyHash {
				sum := sha256.Sum256(raw)
				raw = []byte(hex.EncodeToString(sum[:]))
			}
			out.Write(raw)
		default:
			if text, ok := strings.CutPrefix(p, partText); ok {
				out.WriteString(text)
				continue
			}
			out.WriteString(headerLine(req, strings.TrimPrefix(p, partHeader)))
		}
	}
	return out.Bytes(), nil
}

// headerLine is the value of a field whose lines are joined (RFC 9110, section 5.2).
func headerLine(req *http.Request, name string) string {
	if strings.EqualFold(name, "Host") {
		return hostOf(req)
	}
	values := slices.Clone(req.Header[textproto.CanonicalMIMEHeaderKey(name)])
	for i, v := range values {
		values[i] = strings.TrimSpace(v)
	}
	return strings.Join(values, ", ")
}

// targetOf returns path and query as they are sent.
func targetOf(req *http.Request) (path, query string) {
	u := req.URL
	if u.Opaque == "" {
		path, query = u.EscapedPath(), u.RawQuery
	} else {
		var found bool
		if path, query, found = strings.Cut(u.Opaque, "?"); !found {
			query = u.RawQuery
		}
	}
	if path == "" {
		path = "/"
	}
	return path, query
}

func hostOf(req *http.Request) string {
	if req.Host != "" {
		return req.Host
	}
	return req.URL.Host
}

func (g *Grant) now() time.Time {
	if g.clock == nil {
		return time.Now()
	}
	return g.clock()
}
