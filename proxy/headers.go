package proxy

import (
	"net/http"
	"strings"
)

// Each step below changes header fields for one stated reason; nothing else in
// the package does, but for the injection of a credential.

// hopByHop says that a field is of one connection (RFC 9110 §7.6.1), or between a
// client and its proxy: every Proxy-* field is.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	}
	return strings.HasPrefix(name, "Proxy-")
}

// removeHopByHop drops hop-by-hop fields, and every field that Connection names.
// An upgrade to WebSocket (RFC 6455) keeps its two.
func removeHopByHop(h http.Header, upgrade bool) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.Trim(name, " \t"); name != "" {
				h.Del(name)
			}
		}
	}
	te := hasToken(strings.Join(h["Te"], ","), "trailers")
	for name := range h {
		if hopByHop(name) {
			delete(h, name)
		}
	}
	if te {
		h["Te"] = []string{"trailers"}
	}
	if upgrade {
		h["Connection"] = []string{"Upgrade"}
		h["Upgrade"] = []string{"websocket"}
	}
}

// removeMethodOverrides drops fields by which some servers would run another
// method than the one that was judged.
func removeMethodOverrides(h http.Header) {
	delete(h, "X-Http-Method-Override")
	delete(h, "X-Http-Method")
	delete(h, "X-Method-Override")
}

// limitAcceptEncoding leaves only codings that the answer can be searched in.
func limitAcceptEncoding(h http.Header) {
	values, ok := h["Accept-Encoding"]
	if !ok {
		return
	}
	var keep []string
	for _, list := range values {
		for item := range strings.SplitSeq(list, ",") {
			item = strings.Trim(item, " \t")
			coding, _, _ := strings.Cut(item, ";")
			switch strings.ToLower(strings.Trim(coding, " \t")) {
			case "gzip", "br", "zstd", "identity":
				keep = append(keep, item)
			}
		}
	}
	if len(keep) == 0 {
		keep = []string{"identity"}
	}
	h["Accept-Encoding"] = []string{strings.Join(keep, ", ")}
}

// askUncoded asks for an answer whose cost can be read.
func askUncoded(h http.Header) { h["Accept-Encoding"] = []string{"identity"} }

// removeRange drops range requests: a part of an answer could begin in the
// middle of a value that must be masked.
func removeRange(h http.Header) {
	delete(h, "Range")
	delete(h, "If-Range")
}

// removeExtensions keeps WebSocket frames uncompressed, so that they can be
// searched.
func removeExtensions(h http.Header) { delete(h, "Sec-Websocket-Extensions") }

// keepAsIs stops the transport from adding a User-Agent, and from taking an
// Idempotency-Key as leave to send twice (it looks for the canonical spelling).
func keepAsIs(h http.Header) {
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if v, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = v
		}
	}
}

// cleanResponse drops what must not reach the client: hop-by-hop fields, and
// Alt-Svc, which names ways out that lead nowhere.
func cleanResponse(h http.Header, upgrade bool) {
	removeHopByHop(h, upgrade)
	delete(h, "Alt-Svc")
}
