package image

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Kinds of references.
const (
	kindRegistry      = "registry"
	kindLayout        = "oci"
	kindLayoutArchive = "oci-archive"
	kindDockerArchive = "docker-archive"
	kindFolder        = "dir"
	kindErofs         = "erofs"
)

// Reference says where an image is.
type Reference struct {
	kind string
	path string         // of everything but a registry
	tag  string         // of a layout or archive that holds more than one image; ""
	repo name.Reference // of a registry
}

// ParseReference reads
//
//	[HOST[:PORT]/]NAME[:TAG][@sha256:…]   an image in a registry
//	oci:FOLDER[:TAG]                      an OCI image layout
//	oci-archive:FILE[:TAG]                the same as a tar archive
//	docker-archive:FILE[:TAG]             what docker save writes
//	dir:FOLDER                            a folder, used where it is
//	erofs:FILE                            an EROFS file system in a file, used where it is
func ParseReference(s string) (Reference, error) {
	kind, rest, found := strings.Cut(s, ":")
	switch kind {
	case kindLayout, kindLayoutArchive, kindDockerArchive, kindFolder, kindErofs:
		if !found || rest == "" {
			return Reference{}, fmt.Errorf("image %q: no path; hint: %s:PATH", s, kind)
		}
		r := Reference{kind: kind, path: rest}
		if kind != kindFolder && kind != kindErofs {
			r.path, r.tag, _ = strings.Cut(rest, ":")
		}
		return r, nil
	}
	if strings.HasPrefix(s, ".") || filepath.IsAbs(s) {
		return Reference{}, fmt.Errorf("image %q: a path needs a prefix; hint: one of dir:, erofs:, oci:, oci-archive:, docker-archive: before it", s)
	}
	ref, err := name.ParseReference(s)
	if err != nil {
		return Reference{}, fmt.Errorf("image %q: %w; hint: [HOST/]NAME[:TAG][@sha256:…], or dir:, erofs:, oci:, oci-archive:, docker-archive: and a path", s, err)
	}
	return Reference{kind: kindRegistry, repo: ref}, nil
}

// String is the reference in full, as it is recorded.
func (r Reference) String() string {
	if r.kind == kindRegistry {
		return r.repo.Name()
	}
	if r.tag != "" {
		return r.kind + ":" + r.path + ":" + r.tag
	}
	return r.kind + ":" + r.path
}
