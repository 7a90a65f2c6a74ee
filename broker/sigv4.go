package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/hashicorp/vault/api"

	"warder/internal/secret"
)

// What X-Amz-Content-Sha256 may say besides a hash.
const (
	payloadHeader   = "X-Amz-Content-Sha256"
	payloadUnsigned = "UNSIGNED-PAYLOAD"
	payloadTrailer  = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

var (
	awsWord     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`) })
	payloadHash = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })
)

// signatureParams are the query parameters of a presigned URL.
var signatureParams = []string{
	"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token",
}

// awsSession are the fields that the third part of a temporary key may be in.
var awsSession = []string{"session_token", "security_token"}

// awsKeys takes an access key out of an answer: of Vault's engine, with its
// lease, or of a stored value.
func (c *vaultSource) awsKeys(m *material, t *runToken, sec *api.Secret) (err error) {
	data := sec.Data
	if isAWSEngine(c.cfg) {
		c.setLife(m, t, sec)
	} else {
		data, m.keep = kvData(sec, c.cfg.Version), kvKeep
	}
	if m.user, err = c.field(data, "access_key"); err != nil {
		return err
	}
	if m.value, err = c.field(data, "secret_key"); err != nil {
		return err
	}
	for _, name := range awsSession {
		if s, _ := data[name].(string); s != "" {
			m.session, err = c.field(data, name)
			return err
		}
	}
	return nil
}

// signAWS signs a request anew (AWS Signature Version 4) for the configured region
// and service, whatever the client's own signature named. That one is removed, be
// it in the header or a presigned URL.
func (g *Grant) signAWS(req *http.Request) error {
	in := *g.slot.SigV4
	if g.m == nil || g.m.user.IsZero() || g.value.IsZero() {
		return errors.New("no access key to sign with")
	}
	if req.Header == nil {
		req.Header = http.Header{}
	}
	for _, h := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		removeHeader(req, h)
	}
	stripSignature(req.URL)
	path, query := targetOf(req)
	if _, err := url.ParseQuery(query); err != nil {
		return &errBody{"the query cannot be signed: it has a broken escape or a semicolon"}
	}
	hash, err := payload(req, in.Service == "s3")
	if err != nil {
		return err
	}
	// A copy with nothing but what is signed: what the transport adds or a proxy
	// on the way changes must not break the signature.
	signed := &http.Request{
		Method: req.Method, Host: hostOf(req), Header: http.Header{},
		URL: &url.URL{Scheme: "https", Host: hostOf(req), Opaque: "//" + hostOf(req) + path, RawQuery: query},
	}
	for k, v := range req.Header {
		if k == "Content-Type" || k == "Content-Md5" || strings.HasPrefix(strings.ToLower(k), "x-amz-") {
			signed.Header[k] = v
		}
	}
	at := g.now().UTC()
	err = v4.NewSigner().SignHTTP(req.Context(), aws.Credentials{
		AccessKeyID: g.m.user.Reveal(), SecretAccessKey: g.value.Reveal(), SessionToken: g.m.session.Reveal(),
	}, signed, hash, in.Service, in.Region, at, func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping = in.Service == "s3" // which alone does not encode the path twice
	})
	if err != nil {
		return errors.New("the request cannot be signed")
	}
	for _, h := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		if v := signed.Header.Get(h); v != "" {
			req.Header[h] = []string{v}
		}
	}
	_, sig, ok := strings.Cut(signed.Header.Get("Authorization"), "Signature=")
	if !ok {
		return errors.New("the request cannot be signed")
	}
	g.sent = append(g.sent, secret.Brief(sig))
	if hash == payloadChunks || hash == payloadChunksTrailer {
		return signChunks(req, g.value.Reveal(), in.Region, in.Service, at, sig, hash == payloadChunksTrailer)
	}
	return nil
}

func stripSignature(u *url.URL) {
	if path, query, found := strings.Cut(u.Opaque, "?"); found {
		u.Opaque, u.RawQuery = path, query
	}
	for _, name := range signatureParams {
		u.RawQuery = withoutParam(u.RawQuery, name)
	}
	if u.RawQuery == "" {
		u.ForceQuery = false
	}
}

// payload decides what is signed for the body. A hash or "unsigned" that the
// client states in X-Amz-Content-Sha256 is kept, for the service compares it with
// the body, which so goes through as a stream. Without one S3 gets the body
// unsigned, under TLS, and any other service the hash of the body, which is read
// for that. Chunks that the client signed with its own key are signed anew on
// their way (signChunks).
func payload(req *http.Request, s3 bool) (string, error) {
	said := req.Header.Values(payloadHeader)
	switch {
	case len(said) > 1:
		return "", &errBody{"more than one " + payloadHeader}
	case len(said) == 1 && (said[0] == payloadUnsigned || said[0] == payloadTrailer || payloadHash().MatchString(said[0])):
		return said[0], nil
	case len(said) == 1 && s3 && (said[0] == payloadChunks || said[0] == payloadChunksTrailer):
		return said[0], nil
	case len(said) == 1 && strings.HasPrefix(said[0], "STREAMING-"):
		return "", &errBody{"the body is signed chunk by chunk in a form that cannot be signed anew; hint: have the client send " + payloadUnsigned + " or " + payloadTrailer}
	case len(said) == 1:
		return "", &errBody{"an odd " + payloadHeader}
	case s3:
		req.Header.Set(payloadHeader, payloadUnsigned)
		return payloadUnsigned, nil
	}
	raw, err := readBody(req)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

func validateSigV4(key, region, service string) error {
	if !awsWord().MatchString(region) {
		return fmt.Errorf("%s.region: %q is not a region, like eu-central-1", key, region)
	}
	if !awsWord().MatchString(service) {
		return fmt.Errorf("%s.service: %q is not the signing name of a service, like s3", key, service)
	}
	return nil
}
