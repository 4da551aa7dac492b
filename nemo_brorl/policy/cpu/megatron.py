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
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

from nemo_brorl.policy.cpu.adam import FusedAdam
from nemo_brorl.policy.cpu.cuda_stand_in import do_nothing, stand_in
from nemo_brorl.policy.cpu.swiglu import SwiGLU

_PACKAGE = "megatron.core"
_FAKED_CALLS = ("cuda", "record_stream")  # methods that return their own tensor on CPU


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


_STAND_IN = stand_in()


def install() -> None:
    """Add the hook; calling it again does nothing. Must run before anything imports megatron.core."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    assert _PACKAGE not in sys.modules, "install() must run before megatron.core is imported"
    sys.meta_path.insert(0, _Finder())
