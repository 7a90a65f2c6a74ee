package scrub

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// forms returns the texts as which v is searched. Some may be equal.
func forms(v string) []string {
	out := []string{v}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for skip := range 3 {
			out = append(out, inner(enc, v, skip))
		}
	}
	h := hex.EncodeToString([]byte(v))
	out = append(out, h, strings.ToUpper(h))
	for _, esc := range []string{url.QueryEscape(v), url.PathEscape(v), percentAll(v), percentReserved(v)} {
		out = append(out, esc, lowerEscapes(esc))
	}
	return append(append(out, jsonForms(v)...), htmlForms(v)...)
}

// The ways in which common templates write what HTML and XML give a meaning.
var (
	htmlHex  = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#x27;")
	htmlApos = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&apos;")
	htmlText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
)

// htmlForms returns v as text of an HTML or XML page, as an error page echoes it.
func htmlForms(v string) []string {
	return []string{html.EscapeString(v), htmlHex.Replace(v), htmlApos.Replace(v), htmlText.Replace(v)}
}

// inner returns the Base64 characters that v alone decides when skip bytes stand
// before it in the encoded text.
func inner(enc *base64.Encoding, v string, skip int) string {
	text := enc.EncodeToString([]byte(strings.Repeat("\x00", skip) + v + "\x00\x00"))
	from := (8*skip + 5) / 6
	to := 8 * (skip + len(v)) / 6
	return text[from:to]
}

// percentAll escapes every byte.
func percentAll(v string) string {
	var b strings.Builder
	for i := range len(v) {
		fmt.Fprintf(&b, "%%%02X", v[i])
	}
	return b.String()
}

// percentReserved escapes all but the unreserved characters (RFC 3986, section
// 2.3), as encodeURIComponent and Python's quote(safe="") do.
func percentReserved(v string) string {
	var b strings.Builder
	for i := range len(v) {
		switch c := v[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// lowerEscapes writes the hexadecimal digits of escapes small.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], strings.ToLower(s[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// jsonForms returns v as the inside of a JSON string, the ways common encoders
// write it: with and without escapes for HTML, for the slash, and for what is not ASCII.
func jsonForms(v string) []string {
	var plain strings.Builder
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil
	}
	p := strings.TrimSuffix(plain.String(), "\n")
	p = p[1 : len(p)-1]
	web := p
	for _, c := range "<>&'" {
		web = strings.ReplaceAll(web, string(c), fmt.Sprintf(`\u%04x`, c))
	}
	goHTML := strings.ReplaceAll(web, `\u0027`, "'")
	out := []string{p, strings.ReplaceAll(p, "/", `\/`), web, goHTML, upperUnicode(web), upperUnicode(goHTML)}
	if ascii := asciiOnly(p); ascii != p {
		out = append(out, ascii, upperUnicode(ascii), strings.ReplaceAll(ascii, "/", `\/`))
	}
	return out
}

func asciiOnly(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// upperUnicode writes the digits of \u escapes big.
func upperUnicode(s string) string {
	parts := strings.Split(s, `\u`)
	for i := 1; i < len(parts); i++ {
		if len(parts[i]) >= 4 {
			parts[i] = strings.ToUpper(parts[i][:4]) + parts[i][4:]
		}
	}
	return strings.Join(parts, `\u`)
}
