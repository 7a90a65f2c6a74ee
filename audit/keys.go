package audit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// Files below DIR/keys. Private keys are note signer keys, public ones note verifier
// keys (golang.org/x/mod/sumdb/note), one line each.
const (
	keysDir    = "keys"
	signingKey = "signing.key"     // the key in use; 0600
	comingKey  = "signing.key.new" // a key that the registry may not name yet; 0600
	publicExt  = ".pub"            // <name>.pub, kept for ever
	keyPrefix  = "warder-audit-"   // and 8 hex digits: a key's name
)

// key is an Ed25519 key and its public half in text form.
type key struct {
	note.Signer
	public string // verifier key
}

// newKey returns a fresh key and its private text form.
func newKey() (key, string, error) {
	var id [4]byte
	if _, err := io.ReadFull(rand.Reader, id[:]); err != nil {
		return key{}, "", err
	}
	private, public, err := note.GenerateKey(rand.Reader, keyPrefix+hex.EncodeToString(id[:]))
	if err != nil {
		return key{}, "", err
	}
	signer, err := note.NewSigner(private)
	return key{signer, public}, private, err
}

// loadKey reads a private key; its public half must be beside it.
func loadKey(fsys FS, dir, file string) (key, error) {
	name := filepath.Join(dir, keysDir, file)
	st, err := fsys.Lstat(name)
	if err != nil {
		return key{}, err
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return key{}, fmt.Errorf("signing key %s: not a private regular file; hint: chmod 0600 %s", name, name)
	}
	text, err := readSmall(fsys, name)
	if err != nil {
		return key{}, err
	}
	signer, err := note.NewSigner(strings.TrimSpace(text))
	if err != nil {
		return key{}, fmt.Errorf("signing key %s: not an Ed25519 signing key", name)
	}
	public, err := readSmall(fsys, filepath.Join(dir, keysDir, signer.Name()+publicExt))
	if err != nil {
		return key{}, err
	}
	return key{signer, strings.TrimSpace(public)}, nil
}

// makeKey stores a fresh key as the coming one, public half first.
func makeKey(fsys FS, dir string) (key, error) {
	k, private, err := newKey()
	if err != nil {
		return key{}, err
	}
	keys := filepath.Join(dir, keysDir)
	if err := writeNew(fsys, filepath.Join(keys, k.Name()+publicExt), k.public+"\n", 0o644); err != nil {
		return key{}, err
	}
	if err := fsys.Remove(filepath.Join(keys, comingKey)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return key{}, err
	}
	if err := writeNew(fsys, filepath.Join(keys, comingKey), private+"\n", 0o600); err != nil {
		return key{}, err
	}
	return k, syncDir(fsys, keys)
}

// RotateKey makes a fresh signing key in o.Dir. The registry names it with a line that
// the key before has signed. Live writers go on: their next line in the registry, and
// the checkpoints after it, are signed with the new one. It returns the new key's name.
func RotateKey(ctx context.Context, o Options) (string, error) {
	name, err := rotateKey(ctx, o)
	if err != nil {
		return "", fmt.Errorf("audit: rotate key: %w", err)
	}
	return name, nil
}

func rotateKey(ctx context.Context, o Options) (name string, err error) {
	if err := o.complete(); err != nil {
		return "", err
	}
	if _, err := o.FS.Lstat(filepath.Join(o.Dir, registryFile)); err != nil {
		return "", err
	}
	r, err := lockRegistry(ctx, &o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.useKey(); err != nil {
		return "", err
	}
	next, err := makeKey(o.FS, o.Dir)
	if err != nil {
		return "", err
	}
	if _, err := r.append(regLine{Event: regKey, VKey: next.public, Live: r.live()}); err != nil {
		return "", err
	}
	return next.Name(), r.adopt(next)
}

// readSmall returns a file of at most 64 KiB.
func readSmall(fsys FS, name string) (string, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 64<<10))
	return string(b), err
}

// writeNew makes a durable file that did not exist.
func writeNew(fsys FS, name, text string, perm fs.FileMode) error {
	f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	if err := writeFull(f, []byte(text), 0); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Datasync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// writeFull is WriteAt that turns a short write into an error.
func writeFull(f Handle, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// syncDir makes the entries of a directory durable.
func syncDir(fsys FS, name string) error {
	d, err := fsys.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Datasync(), d.Close())
}

// Checkpoints are signed notes (golang.org/x/mod/sumdb/note) whose text is
//
//	warder.audit/v1/<stream>
//	<number of records>
//	<RFC 6962 Merkle root of the records, Base64>
//	registry <seq> <hash of that line of the registry, hex>
const checkpointOrigin = Schema + "/"

// checkpoint is the state of a stream that somebody signs for.
type checkpoint struct {
	stream  string
	size    uint64
	root    string // Base64
	regSeq  uint64
	regHash string // hex
}

func (c checkpoint) sign(k key) ([]byte, error) {
	text := fmt.Sprintf("%s%s\n%d\n%s\nregistry %d %s\n", checkpointOrigin, c.stream, c.size, c.root, c.regSeq, c.regHash)
	return note.Sign(&note.Note{Text: text}, k)
}

func parseCheckpoint(text string) (checkpoint, error) {
	var c checkpoint
	rest, ok := strings.CutPrefix(text, checkpointOrigin)
	if !ok {
		return c, errors.New("not a checkpoint of a stream")
	}
	lines := strings.Split(rest, "\n")
	if len(lines) != 5 || lines[4] != "" {
		return c, errors.New("not the four lines of a checkpoint")
	}
	c.stream, c.root = lines[0], lines[2]
	if _, err := fmt.Sscanf(lines[1]+" "+lines[3], "%d registry %d %64s", &c.size, &c.regSeq, &c.regHash); err != nil {
		return c, fmt.Errorf("checkpoint: %w", err)
	}
	again := fmt.Sprintf("%s\n%d\n%s\nregistry %d %s\n", c.stream, c.size, c.root, c.regSeq, c.regHash)
	if again != rest {
		return c, errors.New("checkpoint is not written the one way it can be")
	}
	return c, nil
}
