package brokerpeers

import (
	"path/filepath"
	"strings"
	"testing"
)

// testS3: an unmodified client of the AWS SDK, and the stream signer of another
// one, hold stand-ins alone; the gateway verifies every signature.
func (l *lab) testS3(t *testing.T) {
	client := filepath.Join(l.dir, "s3client")
	build(t, ".", client, "./s3client")
	r := l.run(t, "s3", "./s3client https://"+s3Host, "--input", client)
	if r.ExitCode != 0 {
		t.Fatal(r.raw)
	}
	for _, want := range []string{
		"ok create bucket", "ok put and get", "ok list", "ok stream without a length", "ok multipart", "ok presigned get", "ok presigned put",
		"ok chunks signed by the client", "ok chunks with a trailer", "ok refused: a changed body", "ok delete",
	} {
		if !strings.Contains(r.Stdout, want+"\n") {
			t.Errorf("%q is missing", want)
		}
	}
	if t.Failed() {
		t.Log(r.raw)
	}
	if strings.Contains(r.raw, "CANARY") || r.status("s3") != "static" {
		t.Errorf("receipt %+v", r.Credentials)
	}
	if recs := l.completed(t, r.RunID); len(recs) < 12 {
		t.Errorf("%d requests", len(recs))
	}
}
