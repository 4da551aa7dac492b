"""Lets megatron-core run on a machine without CUDA, by an import hook that touches `megatron.core.*` and nothing else.

While such a module is compiled, the names by which it reaches the CUDA device are bound to the CPU:

    torch.cuda.X                  becomes  __cuda__.X, the stand-in namespace below
    from torch.cuda import X      becomes  X = __cuda__.X
    "cuda", "cuda:0"              becomes  "cpu"
    t.cuda(), t.record_stream()   becomes  t;      t.is_cuda becomes True
    pin_memory=True               becomes  pin_memory=False
    "torch.cuda.FloatTensor"      becomes  "torch.FloatTensor", for comparisons with Tensor.type()

torch itself is not patched: no cost per operation, other libraries in the process do not notice, and it holds in every
thread. Line numbers are kept, so tracebacks point at Megatron's real source.

`Adam` is for the CPU, with the interface and the state layout of Transformer Engine's and Apex's FusedAdam.

Megatron-core 0.16.1 cannot save and load its distributed optimizer around torch's own Adam: `state_dict()` asserts
before the first step, loading looks for a `step` per group, and the loaded step becomes one tensor that all parameters
share and advance once each, which makes the bias correction wrong without a word. Here `step` is a number of the
parameter group.

SwiGLU (arXiv 2002.05202) takes the place of the fused function that Megatron would leave to torch.compile. Its backward
writes both halves of the gradient where they belong instead of joining them, a few rows at a time, which stay
in the processor's cache. Same numbers as torch's silu and its gradient, bit for bit.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor


class FusedAdam(torch.optim.Optimizer):
    """Adam (arXiv 1412.6980), or AdamW (arXiv 1711.05101) when `adam_w_mode`; runs torch's fused kernel."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.kernel = torch._fused_adamw_ if adam_w_mode else torch._fused_adam_

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                group["step"] = group.get("step", 0) + 1
                self._update(group, params)

    def _update(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        gradients = []
        means = []
        squares = []
        for param in params:
            state = self.state[param]
            if not state:
                state["exp_avg"] = torch.zeros_like(param)
                state["exp_avg_sq"] = torch.zeros_like(param)
            gradients.append(param.grad)
            means.append(state["exp_avg"])
            squares.append(state["exp_avg_sq"])
        step = torch.tensor(float(group["step"]))
        beta1, beta2 = group["betas"]
        self.kernel(
            params,
            gradients,
            means,
            squares,
            [],
            [step] * len(params),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            amsgrad=False,
            maximize=False,
        )


_TILE = 1 << 17  # numbers


class SwiGLU(torch.autograd.Function):
    """silu(gate) * up of [n, 2 f] = (gate, up); the signature is that of Megatron's `SwiGLUFunction`."""

    @staticmethod
    def forward(
        ctx: Any,
        gate_and_up: Tensor,
        fp8_input_store: bool,
        cpu_offload_input: bool,
    ) -> Tensor:
        assert not fp8_input_store and not cpu_offload_input, "neither is there on CPU"
        ctx.save_for_backward(gate_and_up)
        gate, up = gate_and_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gate_and_up,) = ctx.saved_tensors
        result = torch.empty_like(gate_and_up)
        row_size = max(1, grad.size(-1))
        num_rows = max(1, _TILE // row_size)
        for start in range(0, len(grad), num_rows):
            tile = slice(start, start + num_rows)
            gate, up = gate_and_up[tile].chunk(2, -1)
            gate_grad, up_grad = result[tile].chunk(2, -1)
            torch.mul(grad[tile], F.silu(gate), out=up_grad)
            silu_grad = grad[tile] * up
            torch.ops.aten.silu_backward.grad_input(silu_grad, gate, grad_input=gate_grad)
        return result, None, None


_PACKAGE = "megatron.core"
_FAKED_CALLS = ("cuda", "record_stream")  # methods that return their own tensor on CPU


class _Idle:
    """A CUDA stream or event on a machine that has none: every method does nothing and returns the object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., _Idle]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class _Generators:
    """torch.cuda.default_generators: Megatron's RNG tracker then drives torch's CPU generator."""

    def __getitem__(self, index: int) -> torch.Generator:
        return torch.default_generator


class _CudaStandIn(types.SimpleNamespace):
    """What megatron.core sees as torch.cuda; names that are not listed come from torch.cuda itself."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _no_context(*args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _stand_in() -> _CudaStandIn:
    idle = _Idle()
    device = torch.device("cpu")

    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    return _CudaStandIn(
        current_device=lambda: device,
        device_count=lambda: 1,
        set_device=_do_nothing,
        synchronize=_do_nothing,
        empty_cache=_do_nothing,
        current_stream=lambda *args: idle,
        default_stream=lambda *args: idle,
        stream=_no_context,
        device=_no_context,
        Stream=_Idle,
        Event=_Idle,
        is_current_stream_capturing=lambda: False,
        nvtx=types.SimpleNamespace(
            range_push=_do_nothing,
            range_pop=_do_nothing,
            range=_no_context,
        ),
        random=types.SimpleNamespace(get_rng_state=get_rng_state),
        get_rng_state=get_rng_state,
        set_rng_state=lambda state, *args, **kwargs: torch.set_rng_state(state),
        manual_seed=torch.manual_seed,
        default_generators=_Generators(),
        _lazy_call=lambda call, **kwargs: call(),
        _lazy_init=_do_nothing,
        amp=types.SimpleNamespace(
            custom_fwd=lambda function=None, **kwargs: torch.amp.custom_fwd(function, device_type="cpu", **kwargs),
            custom_bwd=lambda function=None, **kwargs: torch.amp.custom_bwd(function, device_type="cpu"),
        ),
        FloatTensor=torch.FloatTensor,
        HalfTensor=torch.HalfTensor,
        BFloat16Tensor=torch.BFloat16Tensor,
        memory_allocated=lambda *args: 0,
        max_memory_allocated=lambda *args: 0,
        memory_reserved=lambda *args: 0,
    )


class _CudaToCpu(ast.NodeTransformer):
    """Rewrites one module's syntax tree as the module docstring says."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
        if node.attr == "cuda" and is_of_torch:
            stand_in = ast.Name("__cuda__", node.ctx)
            return ast.copy_location(stand_in, node)
        if node.attr == "is_cuda" and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Constant(True), node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.AST]:
        if node.level != 0 or node.module != "torch.cuda":
            return node
        bound: list[ast.AST] = []
        for alias in node.names:
            stand_in = ast.Name("__cuda__", ast.Load())
            source = ast.Attribute(stand_in, alias.name, ast.Load())
            target = ast.Name(alias.asname or alias.name, ast.Store())
            assignment = ast.Assign([target], source)
            bound.append(ast.copy_location(assignment, node))
        return bound

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in _FAKED_CALLS:
                return node.func.value
            if node.func.attr == "device":
                node.args = node.args[:1]  # torch.device("cuda", i)
        for keyword in node.keywords:
            if keyword.arg == "pin_memory" and isinstance(keyword.value, ast.Constant):
                unpinned = ast.Constant(False)
                keyword.value = ast.copy_location(unpinned, keyword.value)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        text = node.value
        if not isinstance(text, str):
            return node
        if text == "cuda" or text.startswith("cuda:"):
            return ast.copy_location(ast.Constant("cpu"), node)
        if text.startswith("torch.cuda.") and text.endswith("Tensor"):
            of_cpu = ast.Constant(text.replace("torch.cuda.", "torch."))
            return ast.copy_location(of_cpu, node)
        return node


def _use_own_adam(module: types.ModuleType) -> None:

    module.Adam = FusedAdam
    module.USING_PYTORCH_OPTIMIZER = False
    module.USING_APEX_OPTIMIZER = module.HAVE_APEX_OR_TE = True


def _use_own_swiglu(module: types.ModuleType) -> None:

    module.SwiGLUFunction = SwiGLU


def _skip_compiler(module: types.ModuleType) -> None:
    module.jit_fuser = lambda function: function  # torch.compile would double the import time


def _fill_missing_name(module: types.ModuleType) -> None:
    module.__dict__.setdefault("te_general_gemm", None)  # 0.16: a NameError without Transformer Engine


_AFTER_IMPORT: dict[str, Callable[[types.ModuleType], None]] = {
    "megatron.core.fusions.fused_bias_swiglu": _use_own_swiglu,
    "megatron.core.jit": _skip_compiler,
    "megatron.core.transformer.moe.moe_utils": _fill_missing_name,
    "megatron.core.optimizer": _use_own_adam,
    "megatron.core.optimizer.distrib_optimizer": _use_own_adam,
}


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the rewritten source; it is never written to the byte-code cache, which belongs to the original."""

    def get_code(self, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        if b"cuda" not in source:
            return super().get_code(fullname)
        tree = ast.fix_missing_locations(_CudaToCpu().visit(ast.parse(source)))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__cuda__"] = _STAND_IN
        super().exec_module(module)
        _AFTER_IMPORT.get(module.__name__, _do_nothing)(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _PACKAGE and not fullname.startswith(_PACKAGE + "."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


_STAND_IN = _stand_in()


def install() -> None:
    """Add the hook; calling it again does nothing. Must run before anything imports megatron.core."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    assert _PACKAGE not in sys.modules, "cpu_megatron.install() must run before megatron.core is imported"
    sys.meta_path.insert(0, _Finder())
