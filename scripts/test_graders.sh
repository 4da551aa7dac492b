#!/usr/bin/env bash
# scripts/test_graders.sh [arguments of pytest]: the graders' tests in an environment with the graders' wheel and its libraries, and nothing else:
# neither Ray, torch and vLLM nor any other package of ours.
#
# .venv-graders has the libraries of requirements/graders.txt (scripts/install.sh). Wheel and tests are of a copy outside the checkout: a folder
# of the checkout on the path would offer its packages.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh graders
python=$PWD/.venv-graders/bin/python
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
mkdir "$scratch/wheel" "$scratch/graders"
cp -r graders/{brorl_graders,pyproject.toml,README.md} "$scratch/wheel"
cp -r graders/{tests,pyproject.toml} "$scratch/graders"
cd "$scratch"
unset PYTHONPATH
"$python" -m pip install -qq --no-deps --no-build-isolation --force-reinstall ./wheel
"$python" -m pytest "$@" graders/tests
