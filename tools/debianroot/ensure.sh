#!/usr/bin/env bash
# usage: ensure.sh clients|minbase
#
# Prints the path of a Debian root file system, building it first when it is not
# there yet:
#
#   minbase  what debootstrap --variant=minbase makes, and nothing else
#   clients  the same with the HTTPS clients of clients.list, Deno and Bun from npm,
#            and grpcurl from the Go module beside this script
#
# The first build needs Debian's package mirror (clients: npm's registry and the
# Go module proxy too), two to six minutes and 2.3 GB; after that only the folder
# counts, kept outside of the clone:
#
#   ${XDG_CACHE_HOME:-~/.cache}/warder-test/debian-NAME-KEY
#
# KEY covers everything that the root is made from, so a stale one is never used.
# WARDER_TEST_DEBIAN names a folder that holds other roots, as NAME.
set -euo pipefail

name=${1:-}
case $name in clients | minbase) ;; *) echo "usage: ensure.sh clients|minbase" >&2; exit 1 ;; esac
if [ -n "${WARDER_TEST_DEBIAN:-}" ]; then
  [ -x "$WARDER_TEST_DEBIAN/$name/usr/bin/apt-get" ] ||
    { echo "ensure.sh: no Debian root at WARDER_TEST_DEBIAN=$WARDER_TEST_DEBIAN, $name" >&2; exit 1; }
  echo "$WARDER_TEST_DEBIAN/$name"
  exit
fi

cd "$(dirname "$0")"
suite=bookworm
mirror=${WARDER_TEST_DEBIAN_MIRROR:-http://deb.debian.org/debian}
npm=${npm_config_registry:-https://registry.npmjs.org}
key=$({ uname -m; cat "$(basename "$0")"; [ "$name" = minbase ] || cat clients.list npm.list grpcurl/go.mod grpcurl/go.sum; } | sha256sum | cut -c1-16)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/warder-test
out=$dir/debian-$name-$key

# bootstrap DIR [PACKAGE…]: as an ordinary user all of it belongs to the caller.
bootstrap() {
  local to=$1 include
  shift
  include=$(IFS=,; echo "$*")
  local args=(--quiet --variant=minbase --dpkgopt=force-unsafe-io)
  if [ -n "$include" ]; then
    args+=(--include="$include" --aptopt='APT::Install-Recommends "false"'
      --dpkgopt=path-exclude=/usr/share/{doc,locale}/'*')
  fi
  if [ "$(id -u)" = 0 ]; then
    nice mmdebstrap "${args[@]}" "$suite" "$to" "$mirror" >&2
  else
    mkdir "$to"
    nice mmdebstrap "${args[@]}" --mode=unshare --format=tar "$suite" - "$mirror" |
      tar -C "$to" -x --no-same-owner --exclude='./dev/*'
  fi
}

# from_npm DIR: puts the programs of npm.list into DIR/usr/local/bin.
from_npm() {
  local machine package version path sum tarball got
  while read -r machine package version path sum; do
    [ "$machine" = "$(uname -m)" ] || continue
    tarball=$(mktemp)
    curl -fsSL -o "$tarball" "$npm/$package/-/${package##*/}-$version.tgz"
    got=$(sha512sum "$tarball" | cut -d' ' -f1)
    [ "$got" = "$sum" ] || { echo "ensure.sh: $package $version is not what npm.list names" >&2; return 1; }
    tar -C "$1/usr/local/bin" -xzf "$tarball" --strip-components="$(tr -cd / <<<"$path" | wc -c)" --no-same-owner "$path"
    chmod 755 "$1/usr/local/bin/${path##*/}"
    rm "$tarball"
  done <npm.list
}

build() {
  local to=$1 packages=()
  if [ "$name" = clients ]; then
    mapfile -t packages < <(sed 's/#.*//; s/[[:space:]]*$//; /^$/d' clients.list)
  fi
  local left=2 # mirrors fail at times
  until bootstrap "$to" "${packages[@]}"; do
    [ $((left--)) -gt 0 ] || return 1
    echo "ensure.sh: the mirror failed; again" >&2
    rm -rf "$to"
  done
  [ "$name" = clients ] || return 0
  from_npm "$to"
  CGO_ENABLED=0 nice go build -C grpcurl -o "$to/usr/local/bin/grpcurl" github.com/fullstorydev/grpcurl/cmd/grpcurl
}

if [ ! -d "$out" ]; then
  mkdir -p "$dir"
  exec 9>"$out.lock"
  flock 9
  if [ ! -d "$out" ]; then
    command -v mmdebstrap >/dev/null || { echo "ensure.sh: missing: mmdebstrap; hint: apt-get install mmdebstrap" >&2; exit 1; }
    echo "ensure.sh: building the Debian root for tests, once, into $out" >&2
    start=$SECONDS
    rm -rf "$out.part"
    (umask 022; build "$out.part")
    mv "$out.part" "$out"
    echo "ensure.sh: $name built in $((SECONDS - start)) s, $(du -sh "$out" | cut -f1)" >&2
  fi
fi
echo "$out"
