package broker

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
)

// heldLogin is a Vault whose logins wait until they are let go.
func heldLogin(t *testing.T) (f *fake, r *rig, asked <-chan struct{}, letGo func()) {
	t.Helper()
	f = newFake(t, nil)
	begun, held := make(chan struct{}, 100), make(chan struct{})
	letGo = sync.OnceFunc(func() { close(held) })
	t.Cleanup(letGo)
	f.set("auth/approle/login", func(w http.ResponseWriter, q *http.Request) {
		begun <- struct{}{}
		<-held
		jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY-login","accessor":"login","lease_duration":60,"renewable":true}}`)(w, q)
	})
	return f, newRig(t, appRoleFake(t, f), map[string]config.Credential{"github-read": githubCred()}), begun, letGo
}

// TestALoginThatNobodyWaitsForIsKept_I7: whoever asked for a login may go; the token that
// Vault made for them is journaled, serves the next, and is revoked at the end.
func TestALoginThatNobodyWaitsForIsKept_I7(t *testing.T) { // I7
	f, r, asked, letGo := heldLogin(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { _, err := r.vault.session(ctx); result <- err }()
	<-asked
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("who went away: %v", err)
	}
	sess, _ := r.begin(t)
	go letGo() // while the next one waits, or before
	grant(t, sess, "github-read")
	end(t, sess)
	if n := f.count("POST auth/approle/login"); n != 1 {
		t.Errorf("%d logins", n)
	}
	if err := r.Close(t.Context()); err != nil || f.count("POST auth/token/revoke-self") != 1 || len(r.journal.list()) != 0 {
		t.Errorf("Close: %v, journal %+v", err, r.journal.list())
	}
}

// TestCloseWaitsForALoginUnderWay_I7: or says that it did not, and the login that comes
// later is revoked all the same.
func TestCloseWaitsForALoginUnderWay_I7(t *testing.T) { // I7
	for _, patient := range []bool{true, false} {
		f, r, asked, letGo := heldLogin(t)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { _, err := r.vault.session(t.Context()); result <- err }()
		<-asked
		closed := make(chan error, 1)
		go func() { closed <- r.vault.close(ctx) }()
		for !r.closing() {
			time.Sleep(time.Millisecond) // nothing tells that the end has begun
		}
		if _, err := r.vault.session(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("a login after the end: %v", err)
		}
		if patient {
			letGo()
			if err := <-closed; err != nil {
				t.Errorf("close: %v", err)
			}
			<-result
		} else {
			cancel()
			if err := <-closed; err == nil || !strings.Contains(err.Error(), "still under way") {
				t.Errorf("close: %v", err)
			}
			letGo()
			if err := <-result; !errors.Is(err, errClosed) {
				t.Errorf("who still waited: %v", err)
			}
		}
		cancel()
		if n := f.count("POST auth/token/revoke-self"); n != 1 || len(r.journal.list()) != 0 {
			t.Errorf("patient %v: %d revoked, journal %+v", patient, n, r.journal.list())
		}
	}
}

func (r *rig) closing() bool {
	r.vault.mu.Lock()
	defer r.vault.mu.Unlock()
	return r.vault.closed
}

// TestAPanicOfALoginCostsThatLogin_I10: it ends neither the process nor all logins.
func TestAPanicOfALoginCostsThatLogin_I10(t *testing.T) { // I10
	f, r, _, letGo := heldLogin(t)
	letGo()
	first := true
	r.journal.onPut = func(JournalEntry) error {
		if first {
			first = false
			panic("S3CR3T-CANARY-login")
		}
		return nil
	}
	if _, err := r.vault.session(t.Context()); err == nil || strings.Contains(err.Error(), "CANARY") {
		t.Errorf("the first: %v", err)
	}
	if n := f.count("POST auth/token/revoke-self"); n != 1 {
		t.Errorf("its token was given back %d times", n)
	}
	if _, err := r.vault.session(t.Context()); err != nil {
		t.Errorf("the next: %v", err)
	}
	if strings.Contains(r.log.String(), "CANARY") {
		t.Errorf("log: %s", r.log)
	}
}
