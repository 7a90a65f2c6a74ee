package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// maxBody is the longest body that is read to be signed or to get a field, in
// bytes. Longer ones are refused; a body that needs neither is never read.
const maxBody = 1 << 20

// errBody is a request that its slot cannot be put into. Its text may be shown.
type errBody struct{ text string }

func (e *errBody) Error() string { return e.text }

type wholeBody struct {
	io.Reader
	io.Closer
}

// readBody reads the body and puts it back: the same bytes, framed the same way.
func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	if req.ContentLength > maxBody {
		return nil, &errBody{fmt.Sprintf("the body is longer than %d bytes", maxBody)}
	}
	raw, err := io.ReadAll(io.LimitReader(req.Body, maxBody+1))
	if err != nil {
		return nil, errors.New("the body could not be read")
	}
	if len(raw) > maxBody {
		return nil, &errBody{fmt.Sprintf("the body is longer than %d bytes", maxBody)}
	}
	req.Body = &wholeBody{bytes.NewReader(raw), req.Body}
	return raw, nil
}

// setForm replaces one field of an application/x-www-form-urlencoded body (WHATWG
// URL, section 5) and keeps every other byte.
func setForm(req *http.Request, name, v string) error {
	typ, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || typ != "application/x-www-form-urlencoded" {
		return &errBody{"the credential is a form field and the body is not application/x-www-form-urlencoded"}
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return &errBody{"the form is not in UTF-8"}
	}
	for _, h := range []string{"Content-Encoding", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		if len(req.Header.Values(h)) > 0 {
			return &errBody{"the credential is a form field and " + h + " would not fit the body any more"}
		}
	}
	raw, err := readBody(req)
	if err != nil {
		return err
	}
	if req.Body == nil || req.Body == http.NoBody {
		return &errBody{"the credential is a form field and there is no body"}
	}
	out := joinQuery(withoutParam(string(raw), name), url.QueryEscape(name)+"="+url.QueryEscape(v))
	req.Body = &wholeBody{strings.NewReader(out), req.Body}
	if req.ContentLength >= 0 {
		req.ContentLength = int64(len(out))
		if req.Header.Get("Content-Length") != "" {
			req.Header.Set("Content-Length", fmt.Sprint(len(out)))
		}
	}
	return nil
}
