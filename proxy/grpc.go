package proxy

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// isGRPC reports a gRPC request ("gRPC over HTTP2", §Requests): its content type
// and nothing else. gRPC-Web is ordinary HTTP.
func isGRPC(h http.Header) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(h.Get("Content-Type")), "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// grpcCode gives the number of a status name of the reason table.
func grpcCode(name string) int {
	switch name {
	case "INVALID_ARGUMENT":
		return 3
	case "DEADLINE_EXCEEDED":
		return 4
	case "PERMISSION_DENIED":
		return 7
	case "RESOURCE_EXHAUSTED":
		return 8
	case "FAILED_PRECONDITION":
		return 9
	case "UNAVAILABLE":
		return 14
	case "UNAUTHENTICATED":
		return 16
	default: // INTERNAL
		return 13
	}
}

// grpcHeader is a denial as a gRPC client understands it: an answer of trailers
// alone, with google.rpc.Status in grpc-status-details-bin.
func (f *refusal) grpcHeader(decisionID, run string) http.Header {
	row := reasonByCode(f.reason)
	code := grpcCode(row.grpc)
	message := f.detail
	if message == "" {
		message = row.meaning
	}
	message = f.reason + ": " + message
	if f.hint != "" {
		message += "; hint: " + f.hint
	}
	meta := [][2]string{{"rule", f.rule}, {"hint", f.hint}, {"decision_id", decisionID}, {"run", run}}
	details := [][]byte{packed("google.rpc.ErrorInfo", errorInfo(f.reason, meta))}
	after := f.after
	if after == 0 {
		after = row.after
	}
	if after > 0 {
		delay := protoVarint(nil, 1, uint64(after))
		details = append(details, packed("google.rpc.RetryInfo", protoBytes(nil, 1, delay)))
	}
	status := protoVarint(nil, 1, uint64(code))
	status = protoBytes(status, 2, []byte(strings.ToValidUTF8(message, "\uFFFD")))
	for _, d := range details {
		status = protoBytes(status, 3, d)
	}
	h := http.Header{
		"Content-Type":            {"application/grpc"},
		"Grpc-Status":             {strconv.Itoa(code)},
		"Grpc-Message":            {grpcEscape(message)},
		"Grpc-Status-Details-Bin": {base64.RawStdEncoding.EncodeToString(status)},
	}
	if after > 0 {
		h["Grpc-Retry-Pushback-Ms"] = []string{strconv.Itoa(after * 1000)}
	}
	return h
}

func errorInfo(reason string, meta [][2]string) []byte {
	b := protoBytes(nil, 1, []byte(reason))
	b = protoBytes(b, 2, []byte(reservedHost))
	for _, kv := range meta {
		if kv[1] != "" {
			entry := protoBytes(nil, 1, []byte(kv[0]))
			b = protoBytes(b, 3, protoBytes(entry, 2, []byte(strings.ToValidUTF8(kv[1], "\uFFFD"))))
		}
	}
	return b
}

// packed is a google.protobuf.Any.
func packed(name string, value []byte) []byte {
	return protoBytes(protoBytes(nil, 1, []byte("type.googleapis.com/"+name)), 2, value)
}

func protoBytes(b []byte, field uint64, v []byte) []byte {
	b = binary.AppendUvarint(b, field<<3|2)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func protoVarint(b []byte, field, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, field<<3), v)
}

// grpcEscape is the percent-encoding of grpc-message.
func grpcEscape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// limitMessageEncoding asks for messages that can be searched: gRPC compresses
// them one by one, below the content coding.
func limitMessageEncoding(h http.Header) {
	if _, ok := h["Grpc-Accept-Encoding"]; ok {
		h["Grpc-Accept-Encoding"] = []string{"identity"}
	}
}

// readableMessages reports that the messages of an answer are not compressed.
func readableMessages(h http.Header) bool {
	for _, v := range h["Grpc-Encoding"] {
		if v != "identity" {
			return false
		}
	}
	return true
}
