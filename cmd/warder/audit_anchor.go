package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"warder/audit"
)

// anchorTimeout bounds the sending of an anchor: name, connection, request and answer.
const anchorTimeout = 30 * time.Second

func newAuditAnchorCmd(f *auditFlags) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "anchor",
		Short: "Copy out what must be kept elsewhere to tell a rewritten log",
		Long: `Anchor copies the signed state of the registry and of the open streams to standard
output, into a file (replaced as a whole), or to a server (HTTP POST; any 2xx is good).
Keep it where the log's owner cannot write; verify --anchor finds with it what nothing
in the directory can tell: an older copy of all of it, or all of it written anew.`,
		Example: `  warder audit anchor > /mnt/elsewhere/anchor.txt
  warder audit anchor --to /mnt/elsewhere/anchor.txt
  warder audit anchor --to https://anchors.example/warder`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := f.open()
			if err != nil {
				return err
			}
			b, err := audit.Anchor(cmd.Context(), dir)
			if err != nil {
				return unread(err)
			}
			switch {
			case to == "-":
				_, err = cmd.OutOrStdout().Write(b)
			case strings.HasPrefix(to, "http://"), strings.HasPrefix(to, "https://"):
				err = sendAnchor(cmd.Context(), to, b)
			default:
				err = writeAnchor(dir, to, b)
			}
			if err != nil {
				return unread(fmt.Errorf("audit: anchor: %w", err))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "-", "`where`: - for standard output, a file, or an http(s) URL")
	return cmd
}

// writeAnchor replaces the file as a whole, once the new text is on the disk.
func writeAnchor(dir, to string, b []byte) (err error) {
	if inside(dir, to) {
		return fmt.Errorf("%s is in the log's own directory; hint: keep it where the log's owner cannot write", to)
	}
	t, err := os.CreateTemp(filepath.Dir(to), ".warder-anchor-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(t.Name()) // the first error is the one to tell
		}
	}()
	_, err = t.Write(b)
	if err == nil {
		err = t.Sync()
	}
	if err = errors.Join(err, t.Close()); err != nil {
		return err
	}
	return os.Rename(t.Name(), to)
}

// inside reports whether name is below dir, links resolved.
func inside(dir, name string) bool {
	folder, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return false
	}
	if real, err := filepath.EvalSymlinks(folder); err == nil {
		folder = real
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	rel, err := filepath.Rel(dir, folder)
	return err == nil && filepath.IsLocal(rel)
}

// sendAnchor posts the anchor. Proxies of the environment do not apply, and redirects are
// not followed: the anchor has to arrive where the caller said.
func sendAnchor(ctx context.Context, url string, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, anchorTimeout)
	defer cancel()
	client := http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 15 * time.Second, DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // nothing of it matters
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the server answered %d; hint: it has to take a POST of application/json", resp.StatusCode)
	}
	return nil
}
