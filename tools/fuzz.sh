#!/usr/bin/env bash
# Fuzzes every target of the module, one after the other, FUZZTIME each.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${FUZZTIME:-30s}
found=0
while read -r file target; do
  found=1
  echo "== $target ($(dirname "$file"))"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$(dirname "$file")"
done < <(grep -rE '^func Fuzz' --include='*_test.go' --exclude-dir=tools . | sed -E 's/^([^:]*):func (Fuzz[A-Za-z0-9_]*).*/\1 \2/' | sort)
[ "$found" = 1 ] || { echo "fuzz.sh: no target found" >&2; exit 1; }
