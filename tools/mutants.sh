#!/usr/bin/env bash
# Mutation testing of the packages whose tests are quick. MUTANTS is how many
# for each package; PACKAGES replaces the list. Exit 2: some survived.
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra packages <<<"${PACKAGES:-internal/config internal/secret internal/scrub policies audit proxy}"
exec go run ./tools/mutants -n "${MUTANTS:-20}" "${packages[@]}"
