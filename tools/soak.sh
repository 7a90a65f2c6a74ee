#!/usr/bin/env bash
# Mixed traffic through the proxy for SOAKPROXYTIME (20m), at saturation, with a new
# policy every second and faults of the upstream: nothing may go wrong that was not
# injected, and memory, descriptors and goroutines stay flat. Then one client floods,
# and another's slowest answers stay as they are (tools/bench/soak*.go).
#
# Then it starts runs for SOAKTIME seconds (or 30m, 2h), several at a time, and kills
# some of them with -9 at a random moment. At the end one more start sweeps, and
# nothing of the dead runs may be left: no process, mount, cgroup or state file.
set -euo pipefail
cd "$(dirname "$0")/.."

soak=${SOAKTIME:-30m}
case $soak in
  *h) seconds=$((${soak%h} * 3600)) ;;
  *m) seconds=$((${soak%m} * 60)) ;;
  *) seconds=${soak%s} ;;
esac
jobs=${SOAKJOBS:-4}

# The log: SOAKRECORDS records written and verified, in memory that stays flat.
WARDER_SOAK_RECORDS=${SOAKRECORDS:-1000000} go test ./audit -count=1 -timeout 60m -v -run '^TestSoakALongLog$' | grep -v '^=== '

# The proxy under load.
go build -o bin/bench ./tools/bench
bin/bench soak -warder bin/warder -time "${SOAKPROXYTIME:-20m}"

# 5 GiB each way through interception, and 5,000 clients that go away.
WARDER_SOAK_BODY_MIB=${SOAKBODY:-5120} WARDER_SOAK_CLIENTS=${SOAKCLIENTS:-5000} \
  go test ./proxy -count=1 -timeout 60m -v -run '^(TestLargeBodiesInConstantMemory_F060|TestNothingIsLeftOfClientsThatWentAway_F064)$' | grep -v '^=== '

dir=$(mktemp -d)
export WARDER_STATE_DIR=$dir/state
printf 'version: 1\naudit: {dir: %s/audit}\n' "$dir" >"$dir/warder.yaml"
warder=(bin/warder run --config "$dir/warder.yaml")

worker() { # one run after the other until the deadline
  local deadline=$1 pid status ok=0 killed=0
  while [ "$SECONDS" -lt "$deadline" ]; do
    "${warder[@]}" --disk 16Mi -- sh -c 'head -c 4000000 /dev/zero >/out/x; sleep 0.5; exit 7' >/dev/null 2>"$dir/err.$BASHPID" &
    pid=$!
    if ((RANDOM % 4 == 0)); then
      sleep "0.$((RANDOM % 10))" # a random moment of the run's life
      kill -9 "$pid" 2>/dev/null || true
      wait "$pid" 2>/dev/null || true
      killed=$((killed + 1))
    else
      status=0
      wait "$pid" || status=$?
      if [ "$status" != 7 ]; then
        echo "soak: a run that nobody killed ended with $status:" >&2
        cat "$dir/err.$BASHPID" >&2
        return 1
      fi
      ok=$((ok + 1))
    fi
  done
  echo "soak: $ok runs ended, $killed were killed"
}

# A run of a minute whose tokens live ten seconds.
WARDER_SOAK_TOKENS=${SOAKTOKENS:-10s} go test ./broker -count=1 -timeout 10m -run '^TestARunOutlivesItsTokensWithoutAFailedRequest$'

# A file of 3 GiB arrives as it is: through the copy alone, and inside.
CGO_ENABLED=0 go test -trimpath -tags soak -run TestALargeInput ./runner
truncate -s 3G "$dir/big"
printf mark >>"$dir/big"
want=$(sha256sum <"$dir/big")
got=$("${warder[@]}" --disk 4Gi --memory 5Gi --input "$dir/big:big" -- sh -c 'sha256sum <big')
[ "$got" = "$want" ] || { echo "soak: a file of 3 GiB changed on its way in" >&2; exit 1; }
rm "$dir/big"

# Many runs, one after the other and at once: nothing is left, and none sees another.
WARDER_SOAK_RUNS=${SOAKRUNS:-300} WARDER_SOAK_ATONCE=${SOAKATONCE:-50} \
  go test -trimpath ./cmd/warder -count=1 -timeout 60m -v -run '^TestE2EManyRuns' | grep -v '^=== '

# 5 GiB each way over one connection, and 50,000 connections one after the other.
WARDER_SOAK_TRANSFER_MIB=${SOAKTRANSFER:-5120} WARDER_SOAK_CONNECTIONS=${SOAKCONNECTIONS:-50000} \
  go test -trimpath ./runner -count=1 -timeout 60m -v -run '^(TestHalfCloseAndLargeTransfers|TestManyShortConnections)$' | grep -v '^=== '

# 100,000 files, and 10 GiB on both streams at once.
WARDER_SOAK_FILES=${SOAKFILES:-100000} WARDER_SOAK_OUTPUT_MIB=${SOAKOUTPUT:-10240} \
  go test -trimpath ./cmd/warder -count=1 -timeout 120m -v -run '^(TestE2EHogsAreHeld|TestE2EEndlessOutput)' | grep -v '^=== '

before=$(grep -c . /proc/self/mounts)
status=0
pids=()
deadline=$((SECONDS + seconds))
for ((i = 0; i < jobs; i++)); do
  worker "$deadline" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done

"${warder[@]}" -- true # sweeps what the killed runs left
left=$(find "$WARDER_STATE_DIR/runs" -mindepth 1 ! -name .lock)
[ -z "$left" ] || { printf 'soak: state is left:\n%s\n' "$left" >&2; status=1; }
left=$(find /sys/fs/cgroup -type d -name 'warder-r-*' 2>/dev/null || true)
[ -z "$left" ] || { printf 'soak: cgroups are left (of other runs, perhaps):\n%s\n' "$left" >&2; status=1; }
[ "$(grep -c . /proc/self/mounts)" = "$before" ] || { echo "soak: mounts are left" >&2; status=1; }
if pgrep -f "$dir/warder.yaml" >/dev/null; then
  echo "soak: processes are left:" >&2
  pgrep -af "$dir/warder.yaml" >&2
  status=1
fi
bin/warder audit verify --dir "$dir/audit" || status=1
rm -rf "$dir"
exit "$status"
