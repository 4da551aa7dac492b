"""OpenRLHF's executor loads the README's example from a file, and grades responses without their prompts."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from example import README

# Importing the folder would import deepspeed. Only its module that loads and calls reward functions is needed.
spec = find_spec("openrlhf")
assert spec is not None and spec.submodule_search_locations is not None
utils = ModuleType("openrlhf.utils")
utils.__path__ = [f"{spec.submodule_search_locations[0]}/utils"]
sys.modules["openrlhf.utils"] = utils
from openrlhf.utils.agent import SingleTurnAgentExecutor  # noqa: E402

[source] = re.findall(r"(?s)### OpenRLHF\n\n```python\n(.*?)```", README.read_text(encoding="utf-8"))
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "reward.py"
    file.write_text(source, encoding="utf-8")
    executor = SingleTurnAgentExecutor(str(file))
    prompt = "User: what is \\boxed{8} - 1?\nAssistant:"
    queries = [prompt + response for response in (" It is \\boxed{7}.", " No idea.", " It is \\boxed{8}.")]
    found = asyncio.run(executor._fetch_rewards_via_func(queries, [prompt] * 3, ["7"] * 3))
    [lost] = asyncio.run(executor._fetch_rewards_via_func(["\\boxed{7}"], [prompt], ["7"]))
assert [one["rewards"] for one in found] == [1.0, 0.0, 0.0]
assert (lost["rewards"], lost["extra_logs"]) == (0.0, {"failed": 1.0})
print("rewards of OpenRLHF:", found)
