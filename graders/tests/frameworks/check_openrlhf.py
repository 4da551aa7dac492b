"""OpenRLHF's executor loads the README's example from a file, and grades responses without their prompts."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from example import README
from openrlhf.utils.agent import SingleTurnAgentExecutor

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
