#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does one wheel run under several torch versions? Builds it in the active environment, then imports
# it and runs the doctor's self-tests under each version in an environment of its own.
#   tools/check_torch_versions.sh 2.11.0 2.14.1
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python="${PYTHON:-python}"

if [ $# -eq 0 ]; then
  echo "usage: $0 TORCH_VERSION..." >&2
  exit 2
fi

"$python" -m pip wheel -q --no-build-isolation --no-deps -w "$work/wheels" "$root"
built_with="$("$python" -c 'import torch; print(torch.__version__)')"

for version in "$@"; do
  "$python" -m venv "$work/$version"
  "$work/$version/bin/pip" install -q --disable-pip-version-check "torch==$version" numpy
  "$work/$version/bin/pip" install -q --disable-pip-version-check --no-deps "$work"/wheels/*.whl
  echo "== built with torch $built_with, running under $version"
  (cd "$work" && "$version/bin/treeattn" doctor)
  rm -rf "${work:?}/$version"
done
