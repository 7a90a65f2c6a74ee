#!/usr/bin/env bash
# usage: ensure.sh
#
# Prints the path of the test Vault, building it first when it is not there yet.
# The first build takes some minutes and some gigabytes of Go build cache; after
# that only the binary counts, kept outside of the clone:
#
#	${XDG_CACHE_HOME:-~/.cache}/warder-test/vaultserver-KEY
#
# KEY covers everything that the binary is made from, so a stale one is never
# used. WARDER_TEST_VAULT names another server with the same command line and
# output; nothing is ever taken from PATH.
set -euo pipefail

if [ -n "${WARDER_TEST_VAULT:-}" ]; then
  [ -f "$WARDER_TEST_VAULT" ] && [ -x "$WARDER_TEST_VAULT" ] ||
    { echo "ensure.sh: WARDER_TEST_VAULT=$WARDER_TEST_VAULT is not an executable file" >&2; exit 1; }
  echo "$WARDER_TEST_VAULT"
  exit
fi

cd "$(dirname "$0")"
key=$({ GOTOOLCHAIN=local go version; cat go.mod go.sum main.go build.sh; } | sha256sum | cut -c1-16)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/warder-test
out=$dir/vaultserver-$key
if [ ! -x "$out" ]; then
  mkdir -p "$dir"
  exec 9>"$out.lock"
  flock 9
  if [ ! -x "$out" ]; then
    echo "ensure.sh: building the test Vault, once, into $out" >&2
    nice ./build.sh "$out.tmp" >&2
    mv "$out.tmp" "$out"
  fi
fi
echo "$out"
