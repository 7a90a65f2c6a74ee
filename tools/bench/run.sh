#!/usr/bin/env bash
# Builds what the benchmark compares with, and runs it. gVisor's own command is
# built once and kept outside of the clone, keyed by what it is made from.
# Arguments go to the program: tools/bench/run.sh -only start -rounds 30
set -euo pipefail
cd "$(dirname "$0")/../.."

export CGO_ENABLED=0

# What is not there is left out, and said.
missing=()
command -v runc >/dev/null || missing+=(runc)
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v ip >/dev/null || missing+=(iproute2)
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "bench: installing ${missing[*]}" >&2
  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null || true
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warder-bench
mkdir -p "$cache"
key=$({ go version; cat tools/runsc/go.mod tools/runsc/go.sum tools/runsc/main.go; } | sha256sum | cut -c1-16)
runsc=$cache/runsc-$key
if [ ! -x "$runsc" ]; then
  echo "bench: building runsc, once, into $runsc" >&2
  mkdir -p "$cache"
  (cd tools/runsc && go build -ldflags '-s -w' -o "$runsc.tmp" .)
  mv "$runsc.tmp" "$runsc"
fi
key=$({ go version; cat tools/sqlitelog/go.mod tools/sqlitelog/go.sum tools/sqlitelog/main.go; } | sha256sum | cut -c1-16)
sqlite=$cache/sqlitelog-$key
if [ ! -x "$sqlite" ]; then
  echo "bench: building sqlitelog, once, into $sqlite" >&2
  (cd tools/sqlitelog && go build -ldflags '-s -w' -o "$sqlite.tmp" .)
  mv "$sqlite.tmp" "$sqlite"
fi
key=$({ go version; cat tools/stockgoproxy/go.mod tools/stockgoproxy/go.sum tools/stockgoproxy/main.go; } | sha256sum | cut -c1-16)
goproxy=$cache/stockgoproxy-$key
if [ ! -x "$goproxy" ]; then
  echo "bench: building stockgoproxy, once, into $goproxy" >&2
  (cd tools/stockgoproxy && go build -ldflags '-s -w' -o "$goproxy.tmp" .)
  mv "$goproxy.tmp" "$goproxy"
fi
go build -o bin/bench ./tools/bench
exec bin/bench -runsc "$runsc" -sqlite "$sqlite" -goproxy "$goproxy" -out bench-result.json "$@"
