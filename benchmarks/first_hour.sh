#!/usr/bin/env bash
# Times what a newcomer waits for, from a fresh clone of HEAD: install, --help, demo, reproduce. Run by hand:
#   benchmarks/first_hour.sh > benchmarks/results/first_hour_$(date +%F).txt
set -euo pipefail
root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
desk=$(mktemp -d)
trap 'rm -rf "$desk"' EXIT
git clone -q "$root" "$desk/project"
[ -d "$root/../shared" ] && ln -s "$(realpath "$root/../shared")" "$desk/shared"
cd "$desk/project"
unset PYTHONDONTWRITEBYTECODE # a normal machine caches byte code

echo "commit   $(git rev-parse --short HEAD)"
echo "machine  $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 2^20}' /proc/meminfo), $(uname -srm)"
timed() { # label, command...
  local label=$1 start end
  shift
  start=$(date +%s.%N)
  "$@" >"$desk/log" 2>&1 || { echo "$label failed"; tail -n 20 "$desk/log"; exit 1; }
  end=$(date +%s.%N)
  printf '%-34s %7.1f s\n' "$label" "$(echo "$end - $start" | bc)"
}
timed "base install (venv and pip)" make .venv/.installed-light
timed "libra --help, first" .venv/bin/libra --help
for _ in 1 2 3; do timed "libra --help, again" .venv/bin/libra --help; done
timed "libra demo" .venv/bin/libra demo --store demo-runs
timed "make reproduce, installed" make reproduce
echo "peak memory of one cell: $(/usr/bin/time -f '%M' .venv/bin/libra run smoke --seeds 1 --steps 12 \
  --launcher inline --store memory-runs 2>&1 >/dev/null | tail -n 1) KiB (inline, 12 steps)"
.venv/bin/libra status | cat
