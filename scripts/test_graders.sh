#!/usr/bin/env bash
# scripts/test_graders.sh [arguments of pytest]: run the graders' tests in an environment that has only the graders' wheel and its libraries.
# Ray, torch, vLLM and the repository's other packages are missing there.
#
# .venv-graders has the libraries of requirements/graders.txt (scripts/install.sh). Wheel and tests are built from a copy outside the checkout,
# because a folder of the checkout on the path would offer its other packages.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh graders
python=$PWD/.venv-graders/bin/python
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
mkdir "$scratch/wheel" "$scratch/graders"
cp -rL graders/{brorl_graders,LICENSE,pyproject.toml,README.md} "$scratch/wheel"
cp -r graders/{tests,pyproject.toml} "$scratch/graders"
cd "$scratch"
unset PYTHONPATH
"$python" -m pip install -qq --no-deps --no-build-isolation --force-reinstall ./wheel
"$python" -m pytest "$@" graders/tests
