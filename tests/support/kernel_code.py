"""Code of FlexAttention's kernels and of the rotation of heads, made for a Hopper card without one: what torch's
compiler writes in Triton for the policy, compiled by Triton and by the ptxas in its wheel.
`python -m tests.support.kernel_code LIBRARY` prints what every kernel takes of a multiprocessor.

It cannot show that a kernel computes what it should or how fast, that a driver loads it, nor what torch would choose
among several configurations: all of them are compiled. Kernels of log-probs and of the merge of flash calls are left
out: while torch writes those, it computes a constant on the card. Needs `triton` of the version in
requirements/gpu.txt, which torch's CPU wheel does not bring.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support import fake_cuda

# NVIDIA's H100; torch reads its registers and threads for configurations, its shared memory for choices of kernels
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 * 2**30,
    shared_memory_per_block=48 * 1024,
    shared_memory_per_block_optin=227 * 1024,
    shared_memory_per_multiprocessor=228 * 1024,
    L2_cache_size=50 * 2**20,
)
SHAPES = {  # heads and key-value heads on a rank, and their size
    "1.5B": (12, 2, 128),
    "7B over 4 ranks": (7, 1, 128),
    "0.5B": (14, 2, 64),
}


@dataclass(frozen=True)
class Kernel:
    """What one configuration of a kernel takes of a multiprocessor."""

    part: str  # what it is compiled for
    name: str
    warps: int
    shared: int  # bytes of a block
    registers: int  # of a thread
    spilled: int  # bytes that a thread stores because it has no register for them
    instructions: int  # of its code, where every thread works on the same number of elements


sources: dict[str, str] = {}  # by kernel, since the last part


def show_hopper() -> None:
    """Have torch's compiler find one, hand its kernels to `sources`, and compute graphs as they stand."""
    import torch

    _show_card()
    import torch._dynamo.device_interface  # takes torch.cuda's functions as they are now
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.async_compile import AsyncCompile

    torch._functorch.config.enable_autograd_cache = False
    torch._inductor.config.fx_graph_cache = False
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.joint_graph_constant_folding = False  # computes on the card
    interface = torch._dynamo.device_interface.CudaInterface
    interface.Worker.get_device_properties = staticmethod(lambda *arguments: PROPERTIES)
    interface.is_available = staticmethod(lambda: True)
    interface.get_compute_capability = staticmethod(lambda *arguments: 90)
    AsyncCompile.triton = _keep_source
    compile_for_good = torch.compile
    torch.compile = lambda function, **options: compile_for_good(function, backend=_backend, **options)
    _show_triton()


def _show_card() -> None:
    import torch

    torch.version.cuda = "13.0"
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 1
    torch.cuda.synchronize = lambda *arguments: None
    torch.cuda.get_rng_state = lambda *arguments: torch.empty(0)
    torch.cuda.set_rng_state = lambda *arguments, **settings: None
    torch.cuda.get_device_properties = lambda *arguments: PROPERTIES
    torch.cuda.get_device_name = lambda *arguments: PROPERTIES.name
    torch.cuda.get_device_capability = lambda *arguments: (9, 0)
    torch.cuda._exchange_device = lambda index: 0
    torch.cuda._maybe_exchange_device = lambda index: 0
    torch._C._cuda_getCurrentRawStream = lambda index: 0


def _show_triton() -> None:
    import torch
    import triton
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget

    triton_helpers.set_driver_to_gpu = lambda: None  # would load CUDA's driver
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device=0: 0,
            get_device_interface=lambda: torch.cuda,
            get_active_torch_device=lambda: torch.device("cuda", 0),
        )
    )


def _keep_source(compiler: Any, name: str, source: str, device_str: str = "cuda") -> Any:
    sources[name] = source
    return SimpleNamespace(run=None)


def _backend(graph: Any, inputs: Any) -> Any:
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, inner_compile=_write_kernels)


def _write_kernels(graph: Any, inputs: Any, **settings: Any) -> Any:
    """Kernels of a forward or backward graph to `sources`; the graph itself runs over fake tensors."""
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx_inner

    with _available():
        compile_fx_inner(graph, inputs, **settings)
    return make_boxed_func(graph.forward)


@contextlib.contextmanager
def _available() -> Iterator[None]:
    """A card is there; not while graphs are traced, when torch would ask its generator for numbers."""
    import torch

    before = torch.cuda.is_available
    torch.cuda.is_available = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_available = before


def kernels_of(part: str, function: Callable[[], None]) -> Iterator[Kernel]:
    """Every configuration of every kernel that a function makes torch compile."""
    from nemo_brorl.policy.process.device import forget_compiled

    forget_compiled()
    sources.clear()
    function()
    for name, source in sources.items():
        yield from _compiled(part, name, source)


def _compiled(part: str, name: str, source: str) -> Iterator[Kernel]:
    """Of Triton's compiler and ptxas for sm_90a."""
    import triton
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.triton_heuristics import ASTSource, GPUTarget

    kernel = getattr(PyCodeCache.load(source), name)
    for configuration in kernel.configs:
        meta = kernel._create_compile_meta(configuration)
        code = ASTSource(kernel.fn, meta["signature"], meta["constants"], meta["configs"][0])
        options = kernel._create_compile_options(configuration, meta)
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            binary = triton.compile(code, target=GPUTarget("cuda", 90, 32), options=options)
        assert binary.asm["cubin"], name
        registers, spilled = usage(log.getvalue())
        instructions = num_instructions(binary.asm["cubin"])
        yield Kernel(part, name, configuration.num_warps, binary.metadata.shared, registers, spilled, instructions)


def num_instructions(cubin: bytes) -> int:
    """Instructions of a kernel's code, by the disassembler in Triton's wheel."""
    import triton

    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([disassembler, "-c", file.name], capture_output=True, text=True, check=True)
    return len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", done.stdout, re.MULTILINE))


def usage(log: str) -> tuple[int, int]:
    """Registers and bytes of spill stores of a thread, as ptxas says them."""
    used = re.search(r"Used (\d+) registers", log)
    stored = re.search(r"(\d+) bytes spill stores", log)
    assert used and stored, f"ptxas said {log!r}"
    return int(used[1]), int(stored[1])


def main() -> None:
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # what is in a cache is not compiled
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # nor a kernel that two parts share
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    fake_cuda.use(Path(sys.argv[1]))
    import torch

    from nemo_brorl.policy.cpu import megatron
    from tests.support import gpu_compilation as parts

    show_hopper()
    megatron.install()
    torch.set_num_threads(1)
    parts.NUM_LENGTHS = 1
    found: list[Kernel] = []
    for name, shape in SHAPES.items():
        parts.HEADS, parts.KV_HEADS, parts.HEAD_SIZE = shape
        found += kernels_of(f"FlexAttention, {name}", partial(parts.attend, with_gradient=True))
        found += kernels_of(f"rotation, {name}", parts.rotate_heads)
    print(json.dumps([asdict(kernel) for kernel in found]))


if __name__ == "__main__":
    main()
