"""Let megatron-core run on a machine without CUDA, by an import hook that changes only `megatron.core.*`.

Megatron-core 0.16.1 names the CUDA device in all of its code: as `torch.cuda` and as strings, in calls and in the
defaults of parameters. Neither can be changed from outside without patching torch itself for the whole process. So
while one of its modules is compiled, these names are bound to the CPU in its syntax tree:

    in the source               becomes                 where a run on CPU meets it
    torch.cuda.X                __cuda__.X, of          streams and the current device of collectives, pipeline and
                                `cuda_stand_in`         experts; the states of random numbers; classes of tensors
    from torch.cuda import X    X = __cuda__.X          `tensor_parallel.random`
    "cuda", "cuda:0"            "cpu"                   small tensors of norms, loss scale and token counts
    t.cuda()                    t                       the tied embedding of the first and last stage
    "torch.cuda.FloatTensor"    "torch.FloatTensor"     the distributed optimizer, which compares Tensor.type()

Some names are replaced once a module is imported, and its source stays as it is:

    name                            replacement
    Adam of both optimizers         `cpu.adam`, whose state Megatron's checkpoints can save and load
    SwiGLUFunction                  `cpu.swiglu`, in place of a function for torch.compile
    jit_fuser                       nothing: torch.compile would double the time of imports
    maybe_move_tensor_to_cpu        its conversion to numpy, which Megatron leaves out where the tensor is on no GPU
    te_general_gemm                 None: Megatron reads the name, and defines it with Transformer Engine only

Torch itself is not patched. So there is no cost per operation, other libraries in the process are not affected, and it
works in every thread. Line numbers are kept, so tracebacks point at Megatron's real source.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nemo_brorl.policy.cpu.adam import FusedAdam
from nemo_brorl.policy.cpu.cuda_stand_in import do_nothing, stand_in
from nemo_brorl.policy.cpu.swiglu import SwiGLU

_PACKAGE = "megatron.core"

_STAND_IN = stand_in()


class _CudaToCpu(ast.NodeTransformer):
    """Rewriter of a Megatron module's syntax tree that binds the names of CUDA to the CPU."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
        if node.attr == "cuda" and is_of_torch:
            stand_in = ast.Name("__cuda__", node.ctx)
            return ast.copy_location(stand_in, node)
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
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            return node.func.value
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
    module.jit_fuser = lambda function: function


def _adapt_experts(module: types.ModuleType) -> None:
    module.__dict__.setdefault("te_general_gemm", None)
    module.maybe_move_tensor_to_cpu = _on_host


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Return the result of Megatron's `maybe_move_tensor_to_cpu` for a tensor that is on the CPU already.

    Python numbers are returned unchanged.
    """
    if as_numpy and isinstance(tensor, torch.Tensor):
        return tensor.numpy()
    return tensor


_AFTER_IMPORT: dict[str, Callable[[types.ModuleType], None]] = {
    "megatron.core.fusions.fused_bias_swiglu": _use_own_swiglu,
    "megatron.core.jit": _skip_compiler,
    "megatron.core.transformer.moe.moe_utils": _adapt_experts,
    "megatron.core.optimizer": _use_own_adam,
    "megatron.core.optimizer.distrib_optimizer": _use_own_adam,
}


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader that compiles the rewritten source of a module.

    It never writes to the byte-code cache, which belongs to the original.
    """

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
        _AFTER_IMPORT.get(module.__name__, do_nothing)(module)


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


def install() -> None:
    """Install the import hook that lets megatron.core run without CUDA. Calling it again does nothing.

    It must run before anything imports megatron.core.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    assert _PACKAGE not in sys.modules, "install() must run before megatron.core is imported"
    sys.meta_path.insert(0, _Finder())
