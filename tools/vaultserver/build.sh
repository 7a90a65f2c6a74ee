#!/usr/bin/env bash
# usage: build.sh OUT
#
# Builds the test Vault (1.14.2, MPL-2.0) from Go modules into the file OUT.
#
# The server was written against an SDK inside its own repository, which no
# published SDK equals. The nearest one, v0.9.2, panics for any path that can
# create without an existence check, where the server's own did not. So a copy of
# it is made below .sdk, that panic becomes a no-op, and go.mod's replace
# line points at the copy.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: build.sh OUT" >&2; exit 2; }
case $1 in /*) out=$1 ;; *) out=$PWD/$1 ;; esac
cd "$(dirname "$0")"
export GOWORK=off GOFLAGS="-buildvcs=false -trimpath" CGO_ENABLED=0

sdk=github.com/hashicorp/vault/sdk@v0.9.2
marker='defines a CreateOperation but no ExistenceCheck'
if [ ! -e .sdk/.ready ]; then
  tmp=$(mktemp -d .sdk.XXXXXX)
  trap 'chmod -R u+w "$tmp" 2>/dev/null; rm -rf "$tmp"' EXIT
  # Outside of any module, so that the replace line is not needed yet.
  (cd / && GOFLAGS= go mod download -json "$sdk") >"$tmp/download.json"
  dir=$(sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p' "$tmp/download.json")
  sum=$(sed -n 's/^[[:space:]]*"Sum": "\(.*\)",\{0,1\}$/\1/p' "$tmp/download.json")
  if [ "$sum" != "h1:H1kitfl1rG2SHbeGEyvhEqmIjVKE3E6c2q3ViKOs6HA=" ]; then echo "build.sh: $sdk: unexpected checksum $sum" >&2; exit 1; fi
  cp -R "$dir" "$tmp/sdk"
  chmod -R u+w "$tmp/sdk"
  f=$tmp/sdk/framework/backend.go
  [ "$(grep -c "$marker" "$f")" = 2 ] || { echo "build.sh: $f: the two lines to change were not found" >&2; exit 1; }
  sed -i "/$marker/s/panic(\(.*\))\$/_ = \1/" "$f"
  if grep "$marker" "$f" | grep -q panic; then echo "build.sh: $f: a line was not changed" >&2; exit 1; fi
  touch "$tmp/sdk/.ready"
  rm -rf .sdk
  mv "$tmp/sdk" .sdk
fi

mkdir -p "$(dirname "$out")"
go build -mod=readonly -ldflags '-s -w' -o "$out" .
