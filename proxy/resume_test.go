package proxy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"warder/internal/identity"
)

// oneSession gives the last session back for whatever it is asked.
type oneSession struct {
	s   *tls.ClientSessionState
	got int
}

func (o *oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.s, o.s != nil }

func (o *oneSession) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		o.s = s
		o.got++
	}
}

// A client of the listener shows its certificate anew on each connection: no
// session stands for it, of whichever version, on a listener that does not know it
// any more, or in another's hands.
func TestNoSessionStandsForACertificate_F081(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	a, _ := serverCert(t, time.Now().Add(time.Hour), "a")
	b, _ := serverCert(t, time.Now().Add(time.Hour), "b")
	named := func(name string, c tls.Certificate) Client {
		return Client{Name: name, Certificate: sha256.Sum256(c.Certificate[0])}
	}
	both := e.listen(ListenOptions{Clients: []Client{named("a", a), named("b", b)}, CA: ca})
	less := e.listen(ListenOptions{Clients: []Client{named("b", b)}, CA: ca}) // the same without a
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM())
	n := 0
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		session := &oneSession{}
		for _, c := range []struct {
			name   string
			addr   string
			certs  []tls.Certificate
			status int
			run    string
		}{
			{"a", both, []tls.Certificate{a}, 200, "r-a"},
			{"a again", both, []tls.Certificate{a}, 200, "r-a"},
			{"its session without a certificate", both, nil, 407, ""},
			{"its session with that of b", both, []tls.Certificate{b}, 200, "r-b"},
			{"a and its session where a was removed", less, []tls.Certificate{a}, 407, ""},
			{"b where a was removed", less, []tls.Certificate{b}, 200, "r-b"},
		} {
			tc := tls.Client(dialTo(t, c.addr), &tls.Config{
				RootCAs: pool, ServerName: "127.0.0.1", Certificates: c.certs, ClientSessionCache: session, MinVersion: version, MaxVersion: version,
			})
			r := ask(t, tc, get("http://plain.allowed.test/", "plain.allowed.test"))
			if st := tc.ConnectionState(); r.StatusCode != c.status || st.DidResume || session.got != 0 {
				t.Errorf("%s: %d %q, resumed %v, %d tickets", c.name, r.StatusCode, r.body, st.DidResume, session.got)
			}
			tc.Close()
			rec := e.tape.completed(t, n+1)[n]
			n++
			run := ""
			if rec.Run != nil {
				run = rec.Run.ID
			}
			if run != c.run {
				t.Errorf("%s: run %q", c.name, run)
			}
		}
	}
}

// A session that was resumed is for the name of its own handshake; one of another
// run is not resumed at all, though both have the same CA.
func TestResumedSessionsHaveTheirOwnName_I5_I9(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		ca, err := NewCA()
		if err != nil {
			t.Fatal(err)
		}
		e := newEnv(t, nil, func(_ *env, _ *Options, ro *RunOptions) { ro.CA = ca })
		other, err := e.p.NewRun(RunOptions{Run: identity.Run{ID: identity.NewRunID()}, CA: ca})
		if err != nil {
			t.Fatal(err)
		}
		session := &oneSession{}
		for i, c := range []struct {
			run          *Run
			to, sni, ask string
			resumed      bool
			status       int
			connect      bool
		}{
			{e.run, "api.allowed.test", "api.allowed.test", "api.allowed.test", false, 200, false},
			{e.run, "api.allowed.test", "api.allowed.test", "api.allowed.test", true, 200, false},
			{e.run, "api.allowed.test", "plain.allowed.test", "api.allowed.test", true, 421, false},
			{e.run, "api.allowed.test", "plain.allowed.test", "plain.allowed.test", true, 421, false},
			{e.run, "plain.allowed.test", "api.allowed.test", "api.allowed.test", true, 421, true},
			{e.run, "plain.allowed.test", "plain.allowed.test", "api.allowed.test", true, 421, true},
			{e.run, "plain.allowed.test", "", "api.allowed.test", true, 421, false},
			{e.run, "evil.test", "evil.test", "evil.test", true, 403, true},
			{e.run, "plain.allowed.test", "plain.allowed.test", "plain.allowed.test", true, 200, true},
			{other, "plain.allowed.test", "plain.allowed.test", "plain.allowed.test", false, 200, false},
			{e.run, "plain.allowed.test", "plain.allowed.test", "plain.allowed.test", false, 200, false}, // the session is now the other's
		} {
			env2 := *e
			env2.run = c.run
			var raw net.Conn
			if c.connect {
				raw = env2.connectTo(c.to)
			} else {
				client, server := pair(t)
				c.run.ServeConn(server, dest(c.to, 443))
				raw = client
			}
			before := len(e.up.bytes())
			tc := tls.Client(raw, &tls.Config{ // what the certificate says is another test's affair
				InsecureSkipVerify: true, ServerName: c.sni, ClientSessionCache: session, MinVersion: version, MaxVersion: version,
			})
			r := ask(t, tc, get("/", c.ask))
			if st := tc.ConnectionState(); r.StatusCode != c.status || st.DidResume != c.resumed {
				t.Errorf("%x %d: %d %q, resumed %v", version, i, r.StatusCode, r.body, st.DidResume)
			}
			tc.Close()
			rec := e.tape.completed(t, i+1)[i]
			if rec.Request.Host != c.to || rec.Run.ID != c.run.identity() || (rec.Verdict == verdictAllow) != (c.status == 200) || c.status == 421 && rec.Request.Asked == "" {
				t.Errorf("%x %d: record %+v %+v", version, i, rec.Run, rec.Request)
			}
			if saw := e.up.bytes()[before:]; (saw != "") != (c.status == 200) || strings.Contains(saw, canary) && c.to != "api.allowed.test" {
				t.Errorf("%x %d: upstream saw %q", version, i, saw)
			}
		}
		if err := other.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
