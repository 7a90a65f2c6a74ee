package broker

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/hashicorp/vault/api"
)

// newClient makes a client of vault/api that only the configuration steers: no
// retries, redirects or time limits of its own, and nothing of the environment.
func newClient(base, namespace string, tr http.RoundTripper) (*api.Client, error) {
	var client *api.Client
	err := withoutAmbient(func() (err error) {
		client, err = api.NewClient(&api.Config{
			Address: base, DisableRedirects: true, CloneHeaders: true,
			HttpClient: &http.Client{
				Transport: boundedAnswers{tr},
				CheckRedirect: func(*http.Request, []*http.Request) error {
					return http.ErrUseLastResponse // or net/http would follow, token included
				},
			},
		})
		return err
	})
	if err != nil {
		return nil, errors.New("vault.address: the client cannot be made")
	}
	client.SetToken("")
	client.SetHeaders(http.Header{"X-Vault-Request": {"true"}, "User-Agent": {"warder"}})
	if namespace != "" {
		client.SetNamespace(namespace)
	}
	return client, nil
}

// ambient serialises withoutAmbient.
var ambient sync.Mutex

// withoutAmbient runs f while the process has no VAULT_ variables. vault/api
// reads them before it looks at its configuration, and one bad value makes it
// fail; they are the operator's own, for other programs, so they are put back.
func withoutAmbient(f func() error) error {
	ambient.Lock()
	defer ambient.Unlock()
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "VAULT_") && os.Unsetenv(name) == nil {
			defer func() { _ = os.Setenv(name, value) }() // it could be set before
		}
	}
	return f()
}

// boundedAnswers cuts answers that are longer than any of Vault's: vault/api
// reads an error to its end.
type boundedAnswers struct{ http.RoundTripper }

func (b boundedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer+1), resp.Body}
	}
	return resp, err
}
