//go:build soak

package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// F116: nothing is cut at 2 or 4 GiB.
func TestALargeInputArrivesIntact_F116(t *testing.T) {
	const size = 3<<30 + 12345
	src, dst := filepath.Join(t.TempDir(), "big"), t.TempDir()
	f, err := os.Create(src)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil { // sparse
		t.Fatal(err)
	}
	for _, at := range []int64{0, 1<<31 - 2, 1<<31 + 1, size - 4} {
		if _, err := f.WriteAt([]byte("mark"), at); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	plan, err := planInputs([]Input{{src, ""}})
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	sums := make(chan string, 1)
	go func() {
		files, err := packInputs(context.Background(), pw, plan)
		pw.CloseWithError(err)
		if err != nil {
			sums <- err.Error()
			return
		}
		sums <- files[0].SHA256
	}()
	if err := unpackInputs(pr, dst, owner{uint32(os.Getuid()), uint32(os.Getgid())}); err != nil {
		t.Fatal(err)
	}
	got, err := os.Open(filepath.Join(dst, "workspace", "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, got)
	if want := <-sums; err != nil || n != size || hex.EncodeToString(sum.Sum(nil)) != want {
		t.Errorf("%d of %d bytes, %v; hash %x, want %s", n, int64(size), err, sum.Sum(nil), want)
	}
}
