package runner

import (
	"bytes"
	"crypto/sha1" // the format's own checksum
	"encoding/binary"
	"encoding/pem"
	"testing"
	"time"
)

func TestJavaTrustStoreHoldsTheCertificates_F094(t *testing.T) {
	der := bytes.Repeat([]byte{7}, 700)
	in := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	got, err := javaTrustStore(in, time.UnixMilli(1))
	if err != nil {
		t.Fatal(err)
	}
	body, sum := got[:len(got)-sha1.Size], got[len(got)-sha1.Size:]
	want := sha1.Sum(append([]byte("\x00c\x00h\x00a\x00n\x00g\x00e\x00i\x00tMighty Aphrodite"), body...)) // the format's own checksum
	if !bytes.Equal(sum, want[:]) {
		t.Error("the checksum is not Java's")
	}
	if binary.BigEndian.Uint32(body) != 0xfeedfeed || binary.BigEndian.Uint32(body[8:]) != 1 || !bytes.HasSuffix(body, der) {
		t.Errorf("body: % x…", body[:16])
	}
	if _, err := javaTrustStore(nil, time.Time{}); err == nil {
		t.Error("an empty store was made")
	}
}
