#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All that a machine with a GPU has to run, in one call of under 10 minutes and without a network:
# build for its own arch, tests, compute-sanitizer, benchmark programs, report. Needs a torch with
# CUDA, nvcc, cmake (3.28 or newer) and ninja, and what pip installs with treeattn's extra `test`.
#   tools/gpu_run.sh OUTPUT_DIR
# Prints PASS, FAIL or SKIP per phase and goes on; the logs lie in OUTPUT_DIR. Exit status: 0, 1 when
# a phase failed, 2 for wrong arguments, 3 without a GPU.
set -uo pipefail

if [ $# -ne 1 ]; then
  echo "usage: $0 OUTPUT_DIR" >&2
  exit 2
fi
mkdir -p "$1" || exit 2
out="$(cd "$1" && pwd)"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
python="${PYTHON:-python3}"
build="build/gpu"
failed=0
summary="$out/summary.txt"
: > "$summary"

say() {
  echo "$*" | tee -a "$summary"
}

# phase NAME SECONDS COMMAND...: the command's output goes to NAME.log.
phase() {
  local name="$1" limit="$2" status=0 start=$SECONDS
  shift 2
  timeout --kill-after=10 "$limit" "$@" > "$out/$name.log" 2>&1 || status=$?
  local took=$((SECONDS - start))
  if [ "$status" -eq 0 ]; then
    say "PASS $name (${took}s)"
    return 0
  fi
  failed=1
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    say "FAIL $name: over its limit of ${limit}s, see $name.log"
  else
    say "FAIL $name: exit status $status (${took}s), see $name.log"
    tail -n 3 "$out/$name.log" | sed 's/^/     /'
  fi
  return 1
}

skip() {
  say "SKIP $1: $2"
}

# A tool beside the interpreter, where pip puts newer ones, on PATH, or in the CUDA toolkit.
find_tool() {
  local folder path
  path="$(command -v "$1")" || path=""
  for folder in "$(dirname "$(command -v "$python")")" "${path:+$(dirname "$path")}" \
    "${CUDA_HOME:-/usr/local/cuda}/bin" "${CUDA_HOME:-/usr/local/cuda}/compute-sanitizer"; do
    if [ -n "$folder" ] && [ -x "$folder/$1" ]; then
      echo "$folder/$1"
      return 0
    fi
  done
  return 1
}

if ! command -v "$python" > /dev/null; then
  say "FAIL machine: no $python; set PYTHON"
  exit 1
fi
arch="$("$python" -c 'import torch
print("{}.{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else "")' \
  2> "$out/machine.log")" || {
  say "FAIL machine: $python cannot import torch, see machine.log"
  exit 1
}
if [ -z "$arch" ]; then
  say "SKIP everything: torch sees no GPU"
  exit 3
fi
{
  "$python" -c 'import torch; print("torch", torch.__version__, torch.cuda.get_device_name())'
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv
  git rev-parse HEAD
} >> "$out/machine.log" 2>&1
say "arch $arch: $(head -n 1 "$out/machine.log")"

cmake="$(find_tool cmake)" || cmake=""
ninja="$(find_tool ninja)" || ninja=""
nvcc="$(find_tool nvcc)" || nvcc=""
missing=""
[ -n "$cmake" ] || missing="$missing cmake"
[ -n "$ninja" ] || missing="$missing ninja"
[ -n "$nvcc" ] || missing="$missing nvcc"

# shellcheck disable=SC2329  # phase runs it, in a shell of its own
configure_and_build() {
  "$cmake" -S . -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$ninja" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CUDA_COMPILER="$nvcc" -DPython_EXECUTABLE="$(command -v "$python")" \
    -DTREEATTN_CUDA=ON -DTREEATTN_CUDA_ARCHS="$arch" &&
    "$cmake" --build "$build" --target _C _host _cuda micro_cuda
}
export -f configure_and_build
export cmake ninja nvcc build arch python

built=0
if [ -n "$missing" ]; then
  failed=1
  say "FAIL build: cannot find$missing"
else
  phase build 200 bash -c configure_and_build && built=1
fi

# A build of an earlier call will do for the rest when this one failed half-way.
has() {
  [ -x "$build/micro_$1_cuda" ]
}
export PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}"

if ! "$python" -c 'import hypothesis, pytest' 2> /dev/null; then
  failed=1
  say "FAIL pytest: $python has no pytest or no hypothesis; pip install pytest hypothesis"
elif [ "$built" -eq 1 ]; then
  phase pytest 120 "$python" -m pytest -q -m cuda -p no:cacheprovider --maxfail=20
else
  skip pytest "the build failed"
fi

sanitizer="$(find_tool compute-sanitizer)" || sanitizer=""
# Seconds of a program under the sanitizer, and alone. All limits together stay below 10 minutes.
sanitizer_limit() {
  if [ "$1" = attention ]; then echo 30; else echo 10; fi
}
micro_limit() {
  if [ "$1" = attention ]; then echo 30; else echo 15; fi
}

for tool in memcheck racecheck; do
  for op in plan accept remap attention; do
    name="$tool-$op"
    if [ -z "$sanitizer" ]; then
      skip "$name" "no compute-sanitizer"
    elif ! has "$op"; then
      skip "$name" "micro_${op}_cuda is not built"
    else
      phase "$name" "$(sanitizer_limit "$op")" "$sanitizer" --tool "$tool" --error-exitcode 9 \
        "$build/micro_${op}_cuda" --check-only
    fi
  done
done

for op in plan accept remap attention; do
  if has "$op"; then
    phase "micro-$op" "$(micro_limit "$op")" "$build/micro_${op}_cuda" --quick --json "$out/micro_$op.json"
  else
    skip "micro-$op" "it is not built"
  fi
done

if [ "$built" -eq 1 ]; then
  report=()
  "$python" -c 'import matplotlib' 2> /dev/null && report=(--report "$out/report")
  phase bench 80 "$python" -m bench.gpu --quick --micro "$build" --json "$out/bench.json" \
    "${report[@]}"
else
  skip bench "the build failed"
fi
exit "$failed"
