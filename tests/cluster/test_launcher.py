"""The launcher on a real Slurm: a chain of two jobs that trains on two nodes with frozen code, looked at while it ran
and afterwards."""

from __future__ import annotations

import json

from tests.cluster.chain import Chain


def test_a_chain_trains_once_with_the_code_that_was_frozen(chain: Chain) -> None:
    assert "note: Slurm would take it" in chain.submitted.stderr
    assert chain.submitted_again.returncode == 2, "one writer at a time"
    assert (chain.first_state, chain.second_state) == ("COMPLETED", "COMPLETED"), chain.first.log[-6000:]
    assert "step 3: nothing to do" in (chain.run / "logs" / f"slurm-{chain.second.id}.log").read_text()
    assert [json.loads(line)["step"] for line in (chain.run / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    assert (chain.run / "revision.txt").read_text() == (chain.run / "launch" / "revision.txt").read_text()
    shown = chain.status()
    assert (shown["state"]["step"], shown["state"]["is_finished"]) == (3, True)
    assert [job["state"] for job in shown["jobs"]] == ["COMPLETED", "COMPLETED"]
    assert chain.leftovers == []


def test_a_job_that_runs_can_be_looked_at_on_each_of_its_nodes(chain: Chain) -> None:
    assert chain.attached.count("Ray is up on 2 nodes") == 1
    assert chain.step.stdout.strip() == chain.last_node, chain.step.stderr
    assert "raylet" in chain.logs.stdout, chain.logs.stderr
