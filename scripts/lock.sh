#!/usr/bin/env bash
# scripts/lock.sh [cpu|gpu ...]: resolve requirements/KIND.in into requirements/KIND.txt, names and versions only.
#
# Needs uv (`pip install uv`). The lists are for Linux on x86-64. Local version parts (+cpu) are cut off, so that pip takes the
# CPU build of torch where it is offered and the ordinary one elsewhere. UV_FIND_LINKS and UV_INDEX name other sources.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v uv >/dev/null || { echo "error: uv is not installed: pip install uv" >&2; exit 1; }

for kind in "${@:-cpu}"; do
    list=requirements/$kind.txt
    uv pip compile "requirements/$kind.in" --override "requirements/$kind-overrides.txt" --python-version 3.11 \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet |
        sed -E 's/\+[A-Za-z0-9.]+$//' >"$list.new"
    if grep -qE '://|@ |/' "$list.new"; then
        echo "error: $list.new names a host or a path" >&2
        exit 1
    fi
    mv "$list.new" "$list"
    echo "$list: $(grep -c '==' "$list") packages"
done
