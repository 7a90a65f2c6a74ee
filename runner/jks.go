package runner

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the format's own checksum, not a signature
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"time"
	"unicode/utf16"
)

// Constants of Java's key store format, version 2 (sun.security.provider.JavaKeyStore).
const (
	jksMagic       = 0xfeedfeed
	jksVersion     = 2
	jksTrustedCert = 2
	jksPassword    = "changeit" // Java's own default; a trust store holds no secret
	jksWhitener    = "Mighty Aphrodite"
)

// javaTrustStore makes a Java key store with the certificates in pemData, for
// the place where Debian's Java looks without being told.
func javaTrustStore(pemData []byte, now time.Time) ([]byte, error) {
	var ders [][]byte
	for rest := pemData; ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		if b.Type == "CERTIFICATE" {
			ders = append(ders, b.Bytes)
		}
	}
	var buf bytes.Buffer
	word := func(n int) { buf.Write(binary.BigEndian.AppendUint32(nil, uint32(n))) }
	text := func(s string) { // modified UTF-8 with a length of two bytes; ASCII here
		buf.Write(binary.BigEndian.AppendUint16(nil, uint16(len(s))))
		buf.WriteString(s)
	}
	word(jksMagic)
	word(jksVersion)
	word(len(ders))
	for i, der := range ders {
		word(jksTrustedCert)
		text(fmt.Sprintf("warder-%d", i))
		buf.Write(binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli())))
		text("X.509")
		word(len(der))
		buf.Write(der)
	}
	sum := sha1.New() //nolint:gosec // the format's own checksum, not a signature
	for _, u := range utf16.Encode([]rune(jksPassword)) {
		sum.Write([]byte{byte(u >> 8), byte(u)})
	}
	sum.Write([]byte(jksWhitener))
	sum.Write(buf.Bytes())
	if len(ders) == 0 {
		return nil, fmt.Errorf("java trust store: no certificate")
	}
	return sum.Sum(buf.Bytes()), nil
}
