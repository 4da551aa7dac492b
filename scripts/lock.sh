#!/usr/bin/env bash
# scripts/lock.sh [--keep] [cpu|gpu|graders ...]: resolve requirements/KIND.in into requirements/KIND.txt, with the sha256 of every file.
# `graders` writes the packages that the graders' tests need, with their lines of cpu.txt. `cpu` writes this list, too.
#
# --keep keeps the versions and fetches their sums again. Needs uv (`pip install uv`). The lists are for Linux on x86-64 and
# Python 3.11 to 3.13. Sums are PyPI's, of all wheels and sources of a version, for every platform. UV_FIND_LINKS and UV_INDEX name
# other sources to choose versions from. Resolve cpu.txt where uv finds torch's CPU build, whose sums are written by hand
# (cpu-torch.txt). Its local part (+cpu) is cut off here, and the packages that PyPI's build also needs go to cpu-cuda.txt.
# (`echo NAME==VERSION | uv pip compile - --no-deps --generate-hashes` prints sums for lists written by hand.)
# docs/supply_chain.md explains what the sums check, and what they do not.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
command -v uv >/dev/null || fail "uv is not installed: pip install uv"

keep=
[[ ${1:-} == --keep ]] && { keep=1; shift; }
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
pins=$scratch/pins.txt added=$scratch/added.txt new=$scratch/new.txt

options=(--python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet)
compile() { uv pip compile "${options[@]}" "$@"; }
compile_from_pypi() { env -u UV_FIND_LINKS -u UV_INDEX -u UV_EXTRA_INDEX_URL -u UV_DEFAULT_INDEX uv pip compile "${options[@]}" "$@"; }
names_and_versions() { grep -oE '^[A-Za-z0-9._-]+==[^ ;+]+' "$1"; }

# Write the names and versions of the file $1 as the list $2, with sums.
write_with_sums() {
    compile_from_pypi "$1" --no-deps --generate-hashes >"$new"
    if grep -qE '://|@ |/' "$new"; then fail "the new $2 names a host or a path"; fi
    diff <(names_and_versions "$new") "$1" >&2 || fail "PyPI does not have the versions of $2 that were chosen"
    cp "$new" "$2"
    echo "requirements/$2: $(grep -c '==' "$2") packages, $(grep -c -- '--hash' "$2") sums"
}

# Write the list of packages that PyPI's torch needs beyond its CPU build.
write_cuda_list() {
    local versions=(--constraint "$pins")
    [[ $keep ]] && versions+=(--constraint cpu-cuda.txt)
    grep '^torch==' "$pins" | compile_from_pypi - "${versions[@]}" >"$new"
    grep -vxFf "$pins" "$new" >"$added"
    write_with_sums "$added" cpu-cuda.txt
    local torch
    torch=$(grep '^torch==' "$pins")
    grep -q "^$torch+cpu " cpu-torch.txt ||
        fail "cpu-torch.txt is not of $torch: write the sums of its wheels for Python 3.11 and 3.12 on PyTorch's CPU wheel index"
}

# Write the lines of cpu.txt that building and testing the graders needs, with all of their libraries.
write_graders_list() {
    names_and_versions cpu.txt >"$pins"
    echo setuptools | compile - ../graders/pyproject.toml --extra test --constraint "$pins" --override cpu-overrides.txt >"$new"
    names_and_versions "$new" | awk 'NR == FNR { wanted[$1]; next } /^[^ ]/ { is_wanted = $1 in wanted } is_wanted' - cpu.txt >graders.txt
    echo "requirements/graders.txt: $(grep -c '==' graders.txt) packages"
}

for kind in "${@:-cpu}"; do
    if [[ $kind == graders ]]; then
        write_graders_list
        continue
    fi
    if [[ $keep ]]; then
        names_and_versions "$kind.txt" >"$pins"
    else
        compile "$kind.in" --override "$kind-overrides.txt" >"$new"
        names_and_versions "$new" >"$pins"
    fi
    write_with_sums "$pins" "$kind.txt"
    if [[ $kind == cpu ]]; then
        write_cuda_list
        write_graders_list
    fi
done
