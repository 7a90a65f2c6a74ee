package image

import (
	"errors"
	"io/fs"
	"os"
	"path"
)

// hide removes what lower layers have at name; what this layer wrote stays.
func (u *unpacker) hide(name string) error {
	switch {
	case u.holds[name]:
		return u.hideBelow(name)
	case u.written[name]:
		return nil
	}
	return plain(u.root.RemoveAll(name))
}

func (u *unpacker) hideBelow(dir string) error {
	d, err := u.root.Open(dir)
	if err != nil {
		return plain(err)
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return plain(err)
	}
	for _, n := range names {
		if err := u.hide(path.Join(dir, n)); err != nil {
			return err
		}
	}
	return nil
}

// plain drops the path of an error: the entry is named already.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}
