package runner

import (
	"bytes"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// secretNames are files that hold credentials by convention, as patterns of
// path.Match; one with a slash also has to have the folder.
var secretNames = []string{
	".env", ".env.*", ".envrc", ".netrc", "_netrc", ".git-credentials", ".pgpass", ".my.cnf", ".pypirc", ".vault-token",
	".s3cfg", ".boto", ".htpasswd", ".terraformrc", "credentials.tfrc.json", "application_default_credentials.json",
	"id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "*.p12", "*.pfx", "*.ppk", "*.kdbx",
	".aws/credentials", ".aws/config", ".azure/*", "gcloud/*", ".kube/config", ".docker/config.json", ".cargo/credentials",
	".cargo/credentials.toml", ".gem/credentials", "gh/hosts.yml", "rclone/rclone.conf", ".ssh/*", ".gnupg/*", ".vault/*",
}

// secretSamples are the exceptions: files that show what one would look like.
var secretSamples = []string{
	".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults", ".env.schema",
	"*.pub", "known_hosts", "known_hosts.old", "authorized_keys",
}

// secretContents are read for marks of a secret; others are not opened.
var secretContents = []string{"*.pem", "*.key", "*.p8", "*.asc", "*key*.json", "*account*.json", "*credential*.json", "*secret*.json", ".npmrc", ".yarnrc", ".yarnrc.yml"}

var secretMarks = [][]byte{[]byte("PRIVATE KEY-----"), []byte("PRIVATE KEY BLOCK-----"), []byte(`"private_key"`), []byte("_authToken="), []byte("npmAuthToken:")}

// secretHead is how much of such a file is looked at, in bytes.
const secretHead = 16 << 10

// looksSecret tells whether a file of an input folder looks like a credential.
func looksSecret(file string) bool {
	file = filepath.ToSlash(file)
	base := path.Base(file)
	if matchesAny(secretSamples, base) {
		return false
	}
	last2 := path.Join(path.Base(path.Dir(file)), base)
	if slices.ContainsFunc(secretNames, func(p string) bool {
		name := base
		if strings.Contains(p, "/") {
			name = last2
		}
		ok, _ := path.Match(p, name)
		return ok
	}) {
		return true
	}
	return matchesAny(secretContents, base) && hasSecretMark(file)
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok
	})
}

func hasSecretMark(file string) bool {
	f, err := regular(os.Open(file))
	if err != nil {
		return false // who copies it will say so
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, secretHead))
	return err == nil && slices.ContainsFunc(secretMarks, func(m []byte) bool { return bytes.Contains(head, m) })
}
