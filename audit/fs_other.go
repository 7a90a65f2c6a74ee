//go:build !linux

package audit

import (
	"errors"
	"os"
)

const noFollow = 0

// canWrite says whether streams can be written on this system.
const canWrite = false

var errNoWriter = errors.New("audit streams are written on Linux only")

func allocate(*os.File, int64) error   { return errNoWriter }
func datasync(*os.File) error          { return errNoWriter }
func lock(*os.File) error              { return errNoWriter }
func freeBytes(string) (uint64, error) { return 0, errNoWriter }

func identify(string) (FileID, error) { return FileID{}, errNoWriter }
func idOf(Handle) (FileID, error)     { return FileID{}, errNoWriter }

func writeDirect(*os.File, []byte, int64) (int, error) { return 0, nil }
