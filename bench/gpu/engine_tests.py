"""a, its second half: the GPU tests that start vLLM: the engine itself, CUDA IPC into it, sleep levels.

python -m bench.gpu.engine_tests [--tiny] [--results FOLDER] [--select EXPRESSION]
"""

from __future__ import annotations

from bench.gpu.gpu_tests import WITH_ENGINE, run_tests


def main() -> None:
    """Run the GPU tests that start an engine, and record how many pass."""
    run_tests("engine_tests", __doc__, WITH_ENGINE)


if __name__ == "__main__":
    main()
