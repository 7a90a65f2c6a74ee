#!/usr/bin/env bash
# Fuzzes every target of the module, one after the other, FUZZTIME each.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${FUZZTIME:-30s}
found=0
while read -r file target; do
  found=1
  echo "== $target ($(dirname "$file"))"
  log=$(mktemp)
  if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$(dirname "$file")" 2>&1 | tee "$log"; then
    # The time may run out in the middle of an input, which go test calls a
    # failure; a real one names the input that failed.
    grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input' "$log" || exit 1
  fi
  rm -f "$log"
done < <(grep -rE '^func Fuzz' --include='*_test.go' --exclude-dir=tools . | sed -E 's/^([^:]*):func (Fuzz[A-Za-z0-9_]*).*/\1 \2/' | sort)
[ "$found" = 1 ] || { echo "fuzz.sh: no target found" >&2; exit 1; }
