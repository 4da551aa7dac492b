#!/usr/bin/env bash
# scripts/test_adapters.sh [trl|verl|verifiers|openrlhf|openenv ...]: run the examples of graders/README.md with the frameworks themselves.
#
# Each framework is installed from PyPI into an environment of its own, beside the graders' wheel alone, and the environment is deleted
# afterwards. This needs an index of packages and some GB of disk, so it is no part of `make test`. flash-attn and deepspeed of OpenRLHF need
# a GPU to be built: OpenRLHF is installed without its libraries, and the module that loads reward functions runs.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
declare -A packages=(
  [trl]="torch==2.13.0 trl==1.16.0"
  [verl]="torch==2.13.0 verl==0.9.1"
  [verifiers]="verifiers==0.4.0"
  [openrlhf]="aiohttp"
  [openenv]="openenv-core==0.3.0"
)
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
mkdir "$scratch/source"
cp -rL graders/{brorl_graders,LICENSE,pyproject.toml,README.md} "$scratch/source"
"${PYTHON:-python3}" -m pip wheel -q --no-deps --wheel-dir "$scratch" "$scratch/source"
(($#)) || set -- trl verl verifiers openrlhf openenv
for name; do
  "${PYTHON:-python3}" -m venv "$scratch/$name"
  python=$scratch/$name/bin/python
  read -ra wanted <<<"${packages[$name]}"
  "$python" -m pip install -q --no-compile "${wanted[@]}" "$scratch"/*.whl
  [[ $name != openrlhf ]] || "$python" -m pip install -q --no-deps openrlhf==0.11.2
  echo "== $name"
  (cd "$scratch" && env -u PYTHONPATH "$python" "$repository/tests/frameworks/check_$name.py")
  rm -r "${scratch:?}/$name"
done
