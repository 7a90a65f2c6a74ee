package config

import (
	"os"
	"path/filepath"
)

// rootCacheDir is where root keeps what can be fetched again.
const rootCacheDir = "/var/cache/warder"

// ImageDir is the folder of fetched images: images below $WARDER_CACHE_DIR when
// that is an absolute path, else below /var/cache/warder for root, else below
// $XDG_CACHE_HOME/warder, else below ~/.cache/warder. It is not created here.
func ImageDir() string {
	return filepath.Join(cacheDir(os.Getenv, os.Geteuid(), homeDir()), "images")
}

func cacheDir(getenv func(string) string, euid int, home string) string {
	if dir := getenv("WARDER_CACHE_DIR"); filepath.IsAbs(dir) {
		return filepath.Clean(dir)
	}
	if euid == 0 {
		return rootCacheDir
	}
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "warder")
	}
	return filepath.Join(home, ".cache", "warder")
}
