package broker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// amazon answers what Vault's aws engine asks of IAM and STS.
type amazon struct {
	*httptest.Server
	mu    sync.Mutex
	users []string
}

const (
	iamAccess, iamSecret               = "AKIALEASEDLEASED0001", "S3CR3T-CANARY-iam-0123456789abcdef"
	stsAccess, stsSecret, stsSession   = "ASIATEMPORARY0000001", "S3CR3T-CANARY-sts-0123456789abcdef", "S3CR3T-CANARY-session-0123456789"
	engineKey, engineSecret, awsRegion = "AKIAENGINE0000000001", "S3CR3T-CANARY-engine-0123456789", "eu-central-1"
)

func newAmazon(t *testing.T) *amazon {
	t.Helper()
	a := &amazon{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		action, user := r.Form.Get("Action"), r.Form.Get("UserName")
		if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="+engineKey+"/") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		result := ""
		switch action {
		case "CreateUser":
			a.users = append(a.users, user)
			result = "<User><Path>/</Path><UserName>" + user + "</UserName><UserId>U</UserId><Arn>arn:aws:iam::1:user/" + user + "</Arn></User>"
		case "CreateAccessKey":
			result = "<AccessKey><UserName>" + user + "</UserName><AccessKeyId>" + iamAccess + "</AccessKeyId><Status>Active</Status><SecretAccessKey>" + iamSecret + "</SecretAccessKey></AccessKey>"
		case "DeleteUser":
			a.users = slices.DeleteFunc(a.users, func(u string) bool { return u == user })
		case "GetFederationToken":
			result = fmt.Sprintf("<Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials>",
				stsAccess, stsSecret, stsSession, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		case "ListAccessKeys":
			result = "<AccessKeyMetadata><member><UserName>" + user + "</UserName><AccessKeyId>" + iamAccess + "</AccessKeyId></member></AccessKeyMetadata><IsTruncated>false</IsTruncated>"
		default: // lists of nothing, and deletions
		}
		w.Header().Set("Content-Type", "text/xml")
		fmt.Fprintf(w, "<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></%[1]sResponse>", action, result)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *amazon) names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.users)
}

// TestF142AWSEngineOfARealVault_I7: keys of a user that Vault makes at IAM, gone with the
// run; and keys of STS, which nobody can take back, so the receipt does not say so.
func TestF142AWSEngineOfARealVault_I7(t *testing.T) { // I7, F142
	s := startVault(t)
	a := newAmazon(t)
	s.Mount(t, "aws", "aws", nil)
	s.Must(t, http.MethodPost, "aws/config/root", map[string]any{
		"access_key": engineKey, "secret_key": engineSecret, "region": awsRegion, "iam_endpoint": a.URL, "sts_endpoint": a.URL,
	})
	const document = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}]}`
	s.Must(t, http.MethodPost, "aws/roles/deploy", map[string]any{"credential_type": "iam_user", "policy_document": document})
	s.Must(t, http.MethodPost, "aws/roles/short", map[string]any{"credential_type": "federation_token", "policy_document": document})
	sigv4 := config.Inject{SigV4: &config.SigV4{Region: awsRegion, Service: "s3"}}
	r := kindRig(t, s, map[string]config.Credential{
		"user": vaultCred(config.VaultSource{AWS: "aws/creds/deploy"}, sigv4),
		"sts":  vaultCred(config.VaultSource{AWS: "aws/sts/short"}, sigv4),
		"read": vaultCred(config.VaultSource{Read: "aws/sts/short", Field: "secret_key"}, bearer),
	}, readRule("aws/creds/deploy"), readRule("aws/sts/short"))
	sess, j := r.begin(t)
	signed := func(name string) *http.Request {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.github.com/bucket/key", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := grant(t, sess, name).Inject(req); err != nil {
			t.Fatal(err)
		}
		return req
	}
	user := signed("user")
	if !strings.Contains(user.Header.Get("Authorization"), "Credential="+iamAccess+"/") || user.Header.Get("X-Amz-Security-Token") != "" || len(a.names()) != 1 {
		t.Fatalf("%v, users at IAM: %d", user.Header["Authorization"], len(a.names()))
	}
	short := signed("sts")
	if !strings.Contains(short.Header.Get("Authorization"), "Credential="+stsAccess+"/") || short.Header.Get("X-Amz-Security-Token") != stsSession {
		t.Fatalf("%v", short.Header["Authorization"])
	}
	g := grant(t, sess, "read")
	if injected(t, g) != "Bearer "+stsSecret {
		t.Fatal("not the key")
	}
	if e := j.list(); len(e) != 1 || len(e[0].LeaseIDs) != 3 {
		t.Fatalf("leases in the journal: %+v", e)
	}
	out := end(t, sess)
	for _, o := range out {
		want := map[string]string{"user": StatusRevoked, "sts": StatusExpires, "read": StatusExpires}[o.Name]
		if o.Status != want {
			t.Errorf("I7 the receipt of %s says %q, not %q", o.Name, o.Status, want)
		}
		// What the key says of itself, and not the end of the token that fetched it.
		if want == StatusExpires && o.Expires.Before(time.Now().Add(30*time.Minute)) {
			t.Errorf("I7 %s is said to end at %v", o.Name, o.Expires)
		}
	}
	if len(out) != 3 || len(a.names()) != 0 {
		t.Errorf("I7 %d outcomes; users left at IAM: %d", len(out), len(a.names()))
	}
	if status, left := s.Do(t, s.Root, "LIST", "sys/leases/lookup/aws/creds/deploy", nil); status != http.StatusNotFound {
		t.Errorf("I7 leases left: %v", left["data"])
	}
}

// serviceAccount is a token as a cluster's kubelet gives one to a pod. Vault has the
// cluster judge it.
func serviceAccount(name string) string {
	part := func(v any) string {
		raw, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	ref := map[string]any{"namespace": "agents", "serviceaccount": map[string]any{"name": name, "uid": "uid-" + name}}
	return part(map[string]any{"alg": "RS256"}) + "." + part(map[string]any{
		"sub": "system:serviceaccount:agents:" + name, "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "kubernetes.io": ref,
	}) + "." + base64.RawURLEncoding.EncodeToString([]byte("S3CR3T-CANARY-signature-of-"+name))
}

// TestLoginByKubernetes: Vault's own kubernetes method, which asks the cluster's
// TokenReview about the token of the pod.
func TestLoginByKubernetes(t *testing.T) {
	s := startVault(t)
	good, bad, other := serviceAccount("warder"), serviceAccount("warder")+"x", serviceAccount("somebody")
	var mu sync.Mutex
	reviewed := 0
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var in struct{ Spec struct{ Token string } }
		_ = json.Unmarshal(raw, &in)
		mu.Lock()
		reviewed++
		mu.Unlock()
		status := map[string]any{"authenticated": false}
		for name, token := range map[string]string{"warder": good, "somebody": other} {
			if in.Spec.Token == token {
				status = map[string]any{"authenticated": true, "user": map[string]any{"username": "system:serviceaccount:agents:" + name, "uid": "uid-" + name}}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": status})
	}))
	t.Cleanup(cluster.Close)
	s.Must(t, http.MethodPost, "sys/auth/kubernetes", map[string]any{"type": "kubernetes"})
	authority, err := os.ReadFile(issue(t, "cluster", nil).crt)
	if err != nil {
		t.Fatal(err)
	}
	s.Must(t, http.MethodPost, "auth/kubernetes/config", map[string]any{
		"kubernetes_ca_cert": string(authority), // Vault wants one, also for clear text
		"kubernetes_host":    cluster.URL, "disable_local_ca_jwt": true, "disable_iss_validation": true, "token_reviewer_jwt": serviceAccount("reviewer"),
	})
	s.Must(t, http.MethodPost, "auth/kubernetes/role/broker", map[string]any{
		"bound_service_account_names": "warder", "bound_service_account_namespaces": "agents", "token_policies": "broker", "token_period": "10m", "token_no_default_policy": true,
	})
	login := func(token string) *rig {
		return newRig(t, &config.Vault{Address: s.Addr, TokenRole: vaulttest.TokenRole, Auth: config.Auth{Method: "kubernetes", Role: "broker", JWTFile: secretFile(t, token)}},
			map[string]config.Credential{"github-read": githubCred()})
	}
	r := login(good)
	sess, _ := r.begin(t)
	if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
		t.Fatal("no value")
	}
	end(t, sess)
	accessor := r.journal.list()[0].Accessor
	mu.Lock()
	n := reviewed
	mu.Unlock()
	if alive, data := s.Alive(t, accessor); !alive || data["path"] != "auth/kubernetes/login" || n != 1 {
		t.Fatal("not that login", data, n)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive, _ := s.Alive(t, accessor); alive {
		t.Error("the login is alive after Close")
	}
	for name, token := range map[string]string{"a token that the cluster does not know": bad, "another account's": other} {
		sess, _ := login(token).begin(t)
		_, err := sess.Grant(t.Context(), "github-read", issues)
		if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "auth/kubernetes/login") {
			t.Errorf("%s: %v", name, e)
		}
	}
}
