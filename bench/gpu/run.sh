#!/usr/bin/env bash
# bench/gpu/run.sh [--tiny] [--only ceilings,tests,parity,…] [--again] [--minutes M] [--results FOLDER] [--pack FILE.tar.gz]
#
# The GPU bench: all parts, or those of --only, each in a process of its own with its own time limit; a part that is done with these
# sources is passed over. Ends with a table; full logs lie beside the results. README.md beside this says what every part measures.
# SITE=/tmp/site names the folder that shared/gpu_host was unpacked into, PYTHON the interpreter that has torch.
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ -n ${SITE:-} ]] && export PYTHONPATH="$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}"
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    [[ -z ${SITE:-} && -x .venv/bin/python ]] && PYTHON=.venv/bin/python
fi
unset PYTHONDONTWRITEBYTECODE             # without byte code every actor compiles all of its imports again
export RAY_memory_monitor_refresh_ms=0    # a small virtual machine's memory grows as it is used, and Ray would count it as full
export VLLM_PLUGINS="" VLLM_USE_FLASHINFER_SAMPLER=0 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
exec "$PYTHON" -m bench.gpu.run "$@"
