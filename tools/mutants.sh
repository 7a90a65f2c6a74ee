#!/usr/bin/env bash
# Takes every guard of tools/mutants/list.txt away in turn and runs the test that
# must notice. With MUTANTS=n, also n mutants at random of each package whose tests
# are quick; PACKAGES replaces that list. MUTANTSIN is a regular expression of the files
# whose guards are tried. Exit 2: some survived.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=()
if [ "${MUTANTS:-0}" != 0 ]; then
  read -ra packages <<<"${PACKAGES:-internal/config internal/secret internal/scrub policies audit proxy}"
fi
exec go run ./tools/mutants -list tools/mutants/list.txt -only "${MUTANTSIN:-}" -n "${MUTANTS:-0}" "${packages[@]}"
