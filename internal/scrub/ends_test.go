package scrub

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"testing"
	"testing/iotest"

	"warder/internal/secret"
)

func wsFrame(payload string) string {
	switch n := len(payload); {
	case n < 126:
		return string([]byte{0x82, byte(n)}) + payload
	case n < 1<<16:
		return string(binary.BigEndian.AppendUint16([]byte{0x82, 126}, uint16(n))) + payload
	default:
		return string(binary.BigEndian.AppendUint64([]byte{0x82, 127}, uint64(n))) + payload
	}
}

func grpcMessage(payload string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(payload)))) + payload
}

// A message that ends like the start of a secret arrives before the next one is
// sent: its receiver may have to answer first.
func TestWholeMessagesAreNotHeldBack_F057(t *testing.T) {
	const value = "S3CR3T-CANARY-0123456789"
	for kind, c := range map[string]struct {
		ends  func() *Ends
		frame func(string) string
	}{"WebSocket": {WebSocketEnds, wsFrame}, "gRPC": {GRPCEnds, grpcMessage}} {
		pr, pw := io.Pipe()
		body, n, err := New([]secret.String{secret.New(value)}).Messages(&http.Response{StatusCode: 200, Header: http.Header{}, Body: pr, ContentLength: -1}, c.ends())
		if err != nil {
			t.Fatal(err)
		}
		for _, payload := range []string{"S", "ends with S3CR3T", "", string(bytes.Repeat([]byte("x"), 70_000)) + "S3", "U", "53"} {
			frame := c.frame(payload)
			go io.WriteString(pw, frame)
			got := make([]byte, len(frame))
			if _, err := io.ReadFull(body, got); err != nil || string(got) != frame { // hangs where something is held back
				t.Errorf("%s: %.40q %v", kind, got, err)
			}
		}
		// A value inside of one is masked, however it is cut.
		frame := c.frame("before " + value + " S")
		go func() {
			for i := range len(frame) {
				pw.Write([]byte{frame[i]})
			}
		}()
		got := make([]byte, len(frame))
		if _, err := io.ReadFull(body, got); err != nil || bytes.Contains(got, []byte(value)) || !bytes.HasSuffix(got, []byte("************************ S")) || n.Load() != 1 {
			t.Errorf("%s: %q %v", kind, got, err)
		}
	}
}

func TestEndsDoNotMindCuts(t *testing.T) {
	stream, want := "", []int{}
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 3} {
		stream += wsFrame(string(make([]byte, n)))
		want = append(want, len(stream))
	}
	e, at := WebSocketEnds(), 0
	src := iotest.OneByteReader(bytes.NewReader([]byte(stream)))
	one := make([]byte, 1)
	var got []int
	for {
		if _, err := src.Read(one); err != nil {
			break
		}
		at++
		if e.feed(one) == 1 {
			got = append(got, at)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if k := WebSocketEnds().feed([]byte(stream + "\x82\x05ab")); k != len(stream) {
		t.Errorf("all at once: %d, want %d", k, len(stream))
	}
	masked := WebSocketEnds() // as a client sends
	if k := masked.feed([]byte("\x82\x83kkkkabc\x82")); k != 9 {
		t.Errorf("masked: %d", k)
	}
}
