#!/usr/bin/env bash
# Lints the whole tree with the versions that tools/lint/go.mod pins. Both tools
# are built once and kept outside of the clone, keyed by what they are made from.
set -euo pipefail
cd "$(dirname "$0")/../.."

export CGO_ENABLED=0
key=$({ go version; cat tools/lint/go.mod tools/lint/go.sum; } | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warder-lint/$key
if [ ! -x "$cache/gofumpt" ] || [ ! -x "$cache/golangci-lint" ]; then
  echo "lint: building the tools, once, into $cache" >&2
  mkdir -p "$cache"
  tmp=$(mktemp -d "$cache/build.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  (cd tools/lint && nice go build -o "$tmp/" mvdan.cc/gofumpt github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
  mv "$tmp/golangci-lint" "$tmp/gofumpt" "$cache/"
fi

status=0
# Files that git knows, or would: what is ignored is nobody's code.
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.go')
unformatted=$("$cache/gofumpt" -l "${files[@]}")
if [ -n "$unformatted" ]; then
  printf 'lint: not formatted (gofumpt -w):\n%s\n' "$unformatted" >&2
  status=1
fi
"$cache/golangci-lint" run ./... || status=1
exit $status
