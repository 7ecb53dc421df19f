# Shared by the scripts here; sourced, not run. Steps print one line; details go to a log file.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# run_logged NAME COMMAND…: keeps the output in build/NAME.log and shows its end on failure.
run_logged() {
  local log="build/$1.log"
  shift
  if ! "$@" > "$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "'$*' failed; the whole output is in $log"
  fi
}

# build_preset PRESET [TARGET…]
build_preset() {
  local preset="$1" begin=$SECONDS
  shift
  say "configuring and building ($preset)"
  run_logged "configure-$preset" cmake --preset "$preset"
  run_logged "build-$preset" cmake --build "build/$preset" ${1:+--target "$@"}
  say "built in $((SECONDS - begin)) s"
}
