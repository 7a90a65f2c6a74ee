#!/usr/bin/env bash
# Every test of the product, in the order in which a fault is found soonest:
#
#   1. what the tests need, from Debian's packages when root
#   2. build
#   3. unit tests, with the race detector (packages without gVisor and Vault)
#   4. the sandbox on real gVisor, while the test Vault is built beside it
#   5. credentials from the real Vault, with the race detector
#   6. the command, end to end; Debian roots for it are built beside 4, once
#   7. peers of other people through the proxy: gRPC's own tests, h2spec, nghttp2,
#      curl, WebSocket libraries, git behind nginx, npm, go
#   8. credentials on servers of other people: RabbitMQ, PostgreSQL, nginx, S3…
#   9. the opa program over all Rego that is shipped, and its bundles in Warder
#  10. the table of known faults (docs/faults.md) against what really ran
#
# Nothing is skipped: a part that cannot run is a failure. All parts run even if
# one fails; the exit code is 0 only when all of them passed.
set -euo pipefail
cd "$(dirname "$0")/.."

export CGO_ENABLED=0
case " $(go env GOFLAGS) " in
  *" -trimpath "*) ;;
  *) export GOFLAGS="$(go env GOFLAGS) -trimpath" ;;
esac

failed=()
say() { printf '\n== %s\n' "$*"; }
part() { # part NAME COMMAND…: runs it, and remembers a failure
  local name=$1 start=$SECONDS
  shift
  say "$name"
  if "$@"; then
    printf -- '-- %s: ok, %d s\n' "$name" $((SECONDS - start))
  else
    printf -- '-- %s: FAILED, %d s\n' "$name" $((SECONDS - start))
    failed+=("$name")
  fi
}

# What the tests run, and the Debian package that has it.
needs() {
  local missing=()
  need() { PATH=$PATH:/usr/sbin command -v "$1" >/dev/null || missing+=("$2"); }
  need curl curl
  need python3 python3-minimal
  need git git
  need openssl openssl
  need gcc gcc
  # Servers and programs of other people that judge credentials.
  need oathtool oathtool
  need psql postgresql
  ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing+=(postgresql)
  [ -x /usr/sbin/nginx ] || missing+=(nginx-light)
  [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing+=(rabbitmq-server)
  need h2load nghttp2-client
  need fcgiwrap fcgiwrap
  need npm npm
  /usr/bin/python3 -c 'import websockets' 2>/dev/null || python3 -c 'import websockets' 2>/dev/null || missing+=(python3-websockets)
  need mmdebstrap mmdebstrap
  need dpkg-deb dpkg
  need mkfs.erofs erofs-utils
  need docker-registry docker-registry
  [ "$(id -u)" = 0 ] || need newuidmap uidmap # mmdebstrap as an ordinary user
  [ "$(id -u)" != 0 ] || need useradd passwd # root's tests run again as a fresh ordinary user
  [ -f /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
  # The race detector links C: the compiler alone is not enough.
  if command -v gcc >/dev/null && ! echo '#include <stdlib.h>' | gcc -E -x c - >/dev/null 2>&1; then
    missing+=(libc6-dev)
  elif ! command -v gcc >/dev/null; then
    missing+=(libc6-dev)
  fi
  python3 -c 'import json, ssl, urllib.request' 2>/dev/null || missing+=(python3)
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "test.sh: missing: ${missing[*]}" >&2
    echo "test.sh: hint: apt-get install ${missing[*]}, or run make test as root, which installs them" >&2
    return 1
  fi
  echo "installing ${missing[*]}"
  apt-get -qq -o DPkg::Lock::Timeout=300 update
  # The servers among them are started by the tests, not by their packages.
  local policy=/usr/sbin/policy-rc.d
  if [ -e $policy ]; then policy=; else printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy; fi
  trap '${policy:+rm -f "$policy"}' RETURN
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# Sorts the packages of the module: those whose code or tests link gVisor cannot
# have the race detector; those that start a Vault wait for it to be built.
sort_packages() {
  unit=() sandbox=() vault=() command=()
  local path deps
  while IFS='|' read -r path deps; do
    case $path,$deps, in
      warder/cmd/*) command+=("$path") ;;
      warder/internal/vaulttest,* | *,warder/internal/vaulttest,*) vault+=("$path") ;;
      *,gvisor.dev/* | *,warder/runner,*) sandbox+=("$path") ;;
      *) unit+=("$path") ;;
    esac
  done < <(go list -f '{{.ImportPath}}|{{join .Deps ","}},{{join .TestImports ","}},{{join .XTestImports ","}}' ./...)
  [ ${#unit[@]} -gt 0 ] && [ ${#sandbox[@]} -gt 0 ] && [ ${#vault[@]} -gt 0 ] && [ ${#command[@]} -gt 0 ]
}

say "what the tests need"
command -v go >/dev/null || { echo "test.sh: missing: Go, see the first lines of go.mod for the version" >&2; exit 1; }
needs
say "build"
make -s build
sort_packages || { echo "test.sh: a kind of package has vanished; this script must be told" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/evidence" ./tools/evidence
gotest() { "$work/evidence" run "$work/ran" go test "$@"; } # go test, and keeps what ran
racetest() { CGO_ENABLED=1 gotest -race "$@"; }
gotest_in() { # gotest_in MODULE ARGS…: the same for a module of its own
  "$work/evidence" run "$work/ran" go -C "$1" test "${@:2}"
}

part "unit tests" racetest -timeout 20m "${unit[@]}"

say "test Vault and Debian roots: building beside the sandbox tests"
nice tools/vaultserver/ensure.sh >"$work/path" 2>"$work/log" &
builder=$!
{ nice tools/debianroot/ensure.sh minbase && nice tools/debianroot/ensure.sh clients; } >"$work/debian" 2>&1 &
debian_builder=$!
part "sandbox on gVisor" gotest -timeout 20m "${sandbox[@]}"

if wait "$builder"; then
  WARDER_TEST_VAULT=$(cat "$work/path")
  export WARDER_TEST_VAULT
  part "credentials from Vault" racetest -timeout 15m "${vault[@]}"
else
  cat "$work/log" >&2
  say "test Vault: FAILED to build"
  failed+=("test Vault")
fi
if ! wait "$debian_builder"; then
  cat "$work/debian" >&2
  say "Debian roots: FAILED to build"
  failed+=("Debian roots")
fi
part "end to end" gotest -timeout 60m "${command[@]}"
part "peers of other people" gotest_in tools/interop -mod=mod -timeout 10m ./...
part "credentials on servers of other people" gotest_in tools/brokerpeers -mod=mod -timeout 15m ./...
part "the opa program" gotest_in tools/opa -mod=mod -timeout 15m ./...
part "known faults" "$work/evidence" check docs/faults.md "$work/ran"

if [ ${#failed[@]} -gt 0 ]; then
  printf '\ntest.sh: FAILED: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
  exit 1
fi
printf '\ntest.sh: all parts passed in %d s\n' "$SECONDS"
