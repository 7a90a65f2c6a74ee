package broker

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/secret"
)

func form(t *testing.T, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.github.com/login", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")
	return req
}

func TestFormFieldIsReplacedAndNothingElse(t *testing.T) {
	for body, want := range map[string]string{
		"":                       "key=v%26%3D",
		"a=1":                    "a=1&key=v%26%3D",
		"a=%zz&b=+":              "a=%zz&b=+&key=v%26%3D",
		"key=mine&a=1":           "a=1&key=v%26%3D",
		"a=1&k%65y=mine&key=two": "a=1&key=v%26%3D",
	} {
		req := form(t, body)
		if body == "" {
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader("")), 0
		}
		g := &Grant{Name: "x", slot: config.Inject{Form: "key"}, value: secret.New("v&=")}
		if err := g.Inject(req); err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(req.Body)
		if err != nil || string(raw) != want || req.ContentLength != int64(len(want)) {
			t.Errorf("%q: %q, length %d, %v", body, raw, req.ContentLength, err)
		}
	}
}

func TestFormRefusesWhatIsNoForm(t *testing.T) {
	g := &Grant{Name: "x", slot: config.Inject{Form: "key"}, value: secret.New("S3CR3T-CANARY")}
	for name, edit := range map[string]func(*http.Request){
		"json":    func(r *http.Request) { r.Header.Set("Content-Type", "application/json") },
		"no type": func(r *http.Request) { r.Header.Del("Content-Type") },
		"charset": func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-16")
		},
		"coding":   func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") },
		"digest":   func(r *http.Request) { r.Header.Set("Content-MD5", "x") },
		"no body":  func(r *http.Request) { r.Body = http.NoBody },
		"too long": func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(strings.Repeat("a", maxBody+1))) },
		"stated":   func(r *http.Request) { r.ContentLength = maxBody + 1 },
	} {
		req := form(t, "a=1")
		edit(req)
		if e := refused(t, g.Inject(req), ReasonBinding); e.Credential != "x" {
			t.Error(name, e)
		}
	}
	if err := g.Inject(form(t, "a=1")); err != nil {
		t.Fatal("control:", err)
	}
}

// The vectors of RFC 6238, appendix B.
func TestTOTPVectors(t *testing.T) {
	seed := "12345678901234567890123456789012345678901234567890123456789012345678"
	for _, c := range []struct {
		at   int64
		alg  string
		size int
		want string
	}{
		{59, "SHA1", 20, "94287082"},
		{59, "SHA256", 32, "46119246"},
		{59, "SHA512", 64, "90693936"},
		{1111111109, "SHA1", 20, "07081804"},
		{20000000000, "SHA512", 64, "47863826"},
	} {
		if got := totp([]byte(seed[:c.size]), c.at/30, 8, totpHashes[c.alg]); got != c.want {
			t.Errorf("%s at %d: %s, want %s", c.alg, c.at, got, c.want)
		}
	}
}

func TestLocalTOTPAndHMAC(t *testing.T) {
	tc := local(config.LocalSource{TOTP: &config.LocalTOTP{KeyFile: secretFile(t, "gezd gnbv gy3t qojq gezd gnbv gy3t qojq"), Digits: 8}})
	tc.Inject = config.Inject{Header: "X-Otp"}
	hc := local(config.LocalSource{HMAC: &config.LocalHMAC{KeyFile: secretFile(t, "S3CR3T-CANARY-hmac")}})
	sep := ":"
	hc.Inject = config.Inject{HMAC: &config.HMAC{
		Header: "X-Sig", Encoding: "base64", Separator: &sep, TimestampHeader: "X-T",
		Parts: []string{"text:v0", "timestamp", "host", "query", "header:X-A", "body_sha256"},
	}}
	short := local(config.LocalSource{TOTP: &config.LocalTOTP{KeyFile: secretFile(t, "GEZDGNBV")}})
	r, s := localRig(t, map[string]config.Credential{"t": tc, "h": hc, "short": short})
	r.clock.add(time.Until(time.Unix(59, 0)))
	r.clock.mu.Lock()
	r.clock.now = time.Unix(59, 0)
	r.clock.mu.Unlock()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.github.com/p?q=1&b", strings.NewReader("hello"))
	req.Header["X-A"] = []string{" one ", "two"}
	if err := grant(t, s, "t").Inject(req); err != nil || req.Header.Get("X-Otp") != "94287082" {
		t.Fatal(err, req.Header)
	}
	g := grant(t, s, "h")
	if err := g.Inject(req); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("hello"))
	mac := hmac.New(sha256.New, []byte("S3CR3T-CANARY-hmac"))
	_, _ = io.WriteString(mac, "v0:59:api.github.com:q=1&b:one, two:"+hex.EncodeToString(sum[:]))
	if want := base64.StdEncoding.EncodeToString(mac.Sum(nil)); req.Header.Get("X-Sig") != want || req.Header.Get("X-T") != "59" || !searched(g, want) || !searched(g, "S3CR3T-CANARY-hmac") {
		t.Fatal(req.Header)
	}
	_, err := s.Grant(t.Context(), "short", issues)
	refused(t, err, ReasonUnavailable)
	end(t, s)
	refused(t, g.Inject(req), ReasonUnavailable)
}

func TestHMACRefusesABodyThatIsTooLong(t *testing.T) {
	g := &Grant{Name: "x", slot: config.Inject{HMAC: &config.HMAC{Header: "X-Sig", Parts: []string{"body"}}}, m: &material{
		sign: func(context.Context, []byte, string) ([]byte, string, error) { return []byte("mac"), "", nil },
	}}
	req := form(t, strings.Repeat("a", maxBody))
	if err := g.Inject(req); err != nil || req.Header.Get("X-Sig") != "6d6163" {
		t.Fatal("control:", err)
	}
	req = form(t, "")
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("a", maxBody+1))), -1
	refused(t, g.Inject(req), ReasonBinding)
}

func awsGrant(service string, at time.Time, session string) *Grant {
	return &Grant{
		Name: "aws", slot: config.Inject{SigV4: &config.SigV4{Region: "us-east-1", Service: service}},
		value: secret.New("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
		m:     &material{user: secret.New("AKIDEXAMPLE"), session: secret.New(session)},
		clock: func() time.Time { return at },
	}
}

// The signatures of Amazon's published test suite for Signature Version 4.
func TestSigV4Vectors(t *testing.T) {
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	for target, want := range map[string]string{
		"/":                             "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
		"/?Param2=value2&Param1=value1": "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
	} {
		path, query, _ := strings.Cut(target, "?")
		req := &http.Request{Method: http.MethodGet, Host: "example.amazonaws.com", Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: "example.amazonaws.com:443", Opaque: path, RawQuery: query}}
		req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AGENT/…, Signature=x")
		req.Header.Set("Accept", "anything that is not signed")
		g := awsGrant("service", at, "")
		if err := g.Inject(req); err != nil {
			t.Fatal(err)
		}
		auth := req.Header.Get("Authorization")
		if !strings.HasSuffix(auth, "Signature="+want) || !strings.Contains(auth, "Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date,") {
			t.Errorf("%s: %s", target, auth)
		}
		if req.URL.Opaque != path || req.URL.RawQuery != query {
			t.Error("the target changed", req.URL)
		}
		for _, s := range []string{want, "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"} {
			if !searched(g, s) {
				t.Error("I2 not searched in the answer:", s)
			}
		}
	}
}

// The examples of the S3 documentation ("Signature Calculations for the
// Authorization Header") whose signed fields are the ones that are signed here.
func TestSigV4VectorsOfS3(t *testing.T) {
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for query, want := range map[string]string{
		"lifecycle":           "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
		"max-keys=2&prefix=J": "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
	} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://examplebucket.s3.amazonaws.com/?"+query, nil)
		req.Header.Set("X-Amz-Content-Sha256", empty)
		g := awsGrant("s3", time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC), "")
		g.value, g.m.user = secret.New("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), secret.New("AKIAIOSFODNN7EXAMPLE")
		if err := g.Inject(req); err != nil {
			t.Fatal(err)
		}
		if auth := req.Header.Get("Authorization"); !strings.HasSuffix(auth, "Signature="+want) {
			t.Errorf("%s: %s", query, auth)
		}
	}
}

func TestSigV4RemovesTheClientsSignature(t *testing.T) {
	const presigned = "a=1&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AGENT&X-Amz-Date=20150830T123600Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=bad&X-Amz-Security-Token=t&b=2"
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://bucket.s3.amazonaws.com/key?"+presigned, nil)
	for _, h := range []string{"authorization", "X-Amz-Date", "x-amz-security-token"} {
		req.Header[h] = []string{"AGENT"}
	}
	g := awsGrant("s3", time.Now(), "S3CR3T-CANARY-session")
	if err := g.Inject(req); err != nil {
		t.Fatal(err)
	}
	if req.URL.RawQuery != "a=1&b=2" || fieldsNamed(req.Header, "Authorization") != 1 || fieldsNamed(req.Header, "X-Amz-Security-Token") != 1 ||
		req.Header.Get("X-Amz-Security-Token") != "S3CR3T-CANARY-session" || req.Header.Get("X-Amz-Content-Sha256") != "UNSIGNED-PAYLOAD" ||
		!strings.Contains(req.Header.Get("Authorization"), "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token") {
		t.Fatal(req.URL, req.Header)
	}
	if !searched(g, "S3CR3T-CANARY-session") {
		t.Fatal("I2 the session token is not searched")
	}
}

func TestSigV4Payload(t *testing.T) {
	sum := sha256.Sum256([]byte("body"))
	hash := hex.EncodeToString(sum[:])
	for _, c := range []struct {
		name, service string
		said          []string
		want          string // "" refuses
		read          bool
	}{
		{"s3 without", "s3", nil, payloadUnsigned, false},
		{"s3 unsigned", "s3", []string{payloadUnsigned}, payloadUnsigned, false},
		{"s3 trailer", "s3", []string{payloadTrailer}, payloadTrailer, false},
		{"s3 hash", "s3", []string{hash}, hash, false},
		{"other without", "sqs", nil, hash, true},
		{"other hash", "sqs", []string{hash}, hash, false},
		{"chunks", "s3", []string{payloadChunks}, payloadChunks, false},
		{"chunks and trailer", "s3", []string{payloadChunksTrailer}, payloadChunksTrailer, false},
		{"chunks of another service", "sqs", []string{payloadChunks}, "", false},
		{"chunks of another algorithm", "s3", []string{"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"}, "", false},
		{"two", "s3", []string{hash, payloadUnsigned}, "", false},
		{"odd", "s3", []string{"none"}, "", false},
	} {
		body := &counting{r: strings.NewReader("body")}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://x.amazonaws.com/", nil)
		req.Body = io.NopCloser(body)
		req.Header["X-Amz-Content-Sha256"] = c.said
		got, err := payload(req, c.service == "s3")
		if got != c.want || (err == nil) != (c.want != "") || (body.n > 0) != c.read {
			t.Errorf("%s: %q %v, %d bytes read", c.name, got, err, body.n)
		}
		if raw, _ := io.ReadAll(req.Body); string(raw) != "body" {
			t.Errorf("%s: the body is %q", c.name, raw)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x.amazonaws.com/?a=1;b=2", nil)
	refused(t, awsGrant("sqs", time.Now(), "").Inject(req), ReasonBinding)
}

type counting struct {
	r io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

func TestAWSKeysComeFromStoredValues(t *testing.T) {
	s := startVault(t)
	s.KV(t, "old", 1)
	keys := map[string]any{"access_key": "AKIDEXAMPLE", "secret_key": "S3CR3T-CANARY-aws", "session_token": "S3CR3T-CANARY-session"}
	s.Put(t, "secret", "aws", keys)
	s.Must(t, http.MethodPost, "old/aws", keys)
	s.Must(t, http.MethodPost, "old/creds/deploy", keys) // as the engine's path looks
	s.Put(t, "secret", "half", map[string]any{"access_key": "AKIDEXAMPLE"})
	slot := config.Inject{SigV4: &config.SigV4{Region: "us-east-1", Service: "s3"}}
	r := kindRig(t, s, map[string]config.Credential{
		"two":    vaultCred(config.VaultSource{AWS: "secret/aws"}, slot),
		"one":    vaultCred(config.VaultSource{AWS: "old/aws", Version: 1}, slot),
		"engine": vaultCred(config.VaultSource{AWS: "old/creds/deploy"}, slot),
		"half":   vaultCred(config.VaultSource{AWS: "secret/half"}, slot),
	}, readRule("secret/data/*"), readRule("old/*"))
	sess, _ := r.begin(t)
	for _, name := range []string{"one", "two", "engine"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.github.com/bucket/key", nil)
		g := grant(t, sess, name)
		if err := g.Inject(req); err != nil {
			t.Fatal(name, err)
		}
		if !strings.Contains(req.Header.Get("Authorization"), "Credential=AKIDEXAMPLE/") || req.Header.Get("X-Amz-Security-Token") != "S3CR3T-CANARY-session" || g.Kind != KindAWS {
			t.Fatal(name, req.Header)
		}
		for _, v := range req.Header {
			if strings.Contains(v[0], "S3CR3T-CANARY-aws") {
				t.Fatal("I2 the key itself is in the request")
			}
		}
	}
	_, err := sess.Grant(t.Context(), "half", issues)
	if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Cause.Error(), "secret_key") {
		t.Fatal(e)
	}
	for _, o := range end(t, sess) {
		if o.Name == "two" && o.Status != StatusStatic {
			t.Fatalf("%+v", o)
		}
	}
}
