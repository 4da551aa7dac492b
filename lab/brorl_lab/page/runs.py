"""Read runs for the page from their folders: curves, state, events, settings, evaluations.

The files may be incomplete, because a run is writing them or was killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import LARGE, SMALL, RecordError, record_bytes, record_object

from brorl_lab.intervals import Ends, as_number, interval_95
from brorl_lab.metric_registry import find_metric
from brorl_lab.page.answers import before_and_after
from nemo_brorl.config.same_run import RECORD, record_leaves
from nemo_brorl.config.schema import as_yaml
from nemo_brorl.config.schema import settings as declared_settings
from nemo_brorl.core.best_weights import weights_record
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.run_folders import run_folder
from nemo_brorl.core.step_time import step_seconds
from nemo_brorl.training.records import read_metrics, read_records

METRICS = "metrics.jsonl"
SILENT_S = 60.0  # age of the heartbeat of a run that has exited
MAX_EVENTS = 500  # number of newest events

Part = dict[str, Any]  # object that becomes JSON

# Panels of curves: title, sentence, words for each metric ({}: what its placeholder covers), scale of the y axis
PANELS: tuple[tuple[str, str, dict[str, str], str], ...] = (
    (
        "Held-out pass@1 and pass@k",
        "Questions that are never trained on. Bars: 95 % interval over questions.",
        {"validation/pass_at_1": "pass@1", "validation/pass_at_{k}": "pass@{}"},
        "share",
    ),
    (
        "pass@k of sampled groups",
        "Chance that one of k rollouts is right, unbiased, from the groups of a step.",
        {"rollouts/pass_at_{k}": "pass@{}"},
        "share",
    ),
    ("Raw reward", "Mean over all sampled rollouts, before shaping.", {"reward/mean": "raw reward"}, "plain"),
    ("Reward by task", "Mean raw reward over rollouts of a task.", {"reward/{task}": "{}"}, "plain"),
    (
        "Informative groups",
        "Share of judged groups with different rewards.",
        {"dynamic_sampling/keep_rate": "informative"},
        "share",
    ),
    (
        "Groups by number of right rollouts",
        "Share of the groups of a step.",
        {
            "rollouts/successes_0": "none right",
            "rollouts/successes_1": "1 right",
            "rollouts/successes_2_to_5": "2 to 5 right",
            "rollouts/successes_more": "more right",
            "rollouts/successes_all": "all right",
        },
        "share",
    ),
    (
        "Unsampled mass",
        "Probability of the responses that were not drawn: what a larger N would still find.",
        {
            "mass_balance/unsampled_mass": "by probabilities",
            "mass_balance/unsampled_mass_good_turing": "by counts (Good and Turing)",
        },
        "share",
    ),
    (
        "KL to the reference or teacher",
        "Mean over trained tokens, for a teacher also by task.",
        {
            "policy/kl_to_reference": "KL to the reference",
            "policy/kl_to_teacher": "KL to the teacher",
            "policy/kl_to_teacher/{task}": "KL to the teacher: {}",
        },
        "plain",
    ),
    (
        "KL of an update",
        "From the policy before the update, mean over trained tokens.",
        {"policy/approximate_kl": "KL of the update"},
        "plain",
    ),
    ("Entropy", "Of the policy before the update.", {"policy/entropy": "entropy"}, "plain"),
    (
        "Train-inference mismatch",
        "|log p of vLLM − log p of Megatron| under the same weights.",
        {"policy/log_prob_mismatch": "mean", "policy/log_prob_mismatch_max": "largest"},
        "log",
    ),
    (
        "Length of responses",
        "Sampled and held-out.",
        {
            "rollouts/response_tokens": "sampled, mean",
            "rollouts/response_tokens_max": "sampled, longest",
            "validation/response_tokens": "held-out, mean",
        },
        "plain",
    ),
    (
        "Truncated responses",
        "Share of responses that ended at the limit of tokens.",
        {"rollouts/truncated": "sampled", "validation/truncated": "held-out"},
        "share",
    ),
    ("Gradient norm", "Before clipping, mean over mini-batches.", {"policy/grad_norm": "gradient norm"}, "plain"),
    (
        "Clipped tokens",
        "Share of trained tokens whose ratio was clipped.",
        {"policy/clip_fraction": "clipped"},
        "share",
    ),
    (
        "Measured gain",
        "Change of the expected advantage by a step's own updates. Bars: 95 % interval over responses.",
        {"mass_balance/measured_gain": "measured gain"},
        "plain",
    ),
    (
        "Time of a step",
        "Wall time by stage.",
        {
            "time/generate_s": "sampling",
            "time/reward_s": "scoring",
            "time/log_prob_s": "log-probs",
            "time/update_s": "update",
            "time/sync_s": "weights to engines",
            "time/validate_s": "validation",
            "time/save_s": "checkpoint",
        },
        "plain",
    ),
    ("Throughput", "Response tokens per second of sampling.", {"generation/tokens_per_s": "throughput"}, "plain"),
    ("Rollouts per group", "Mean over sampled groups.", {"rollouts/group_size": "rollouts"}, "plain"),
)


@dataclass(frozen=True)
class RunView:
    """A run folder and the name that the page gives it."""

    folder: Path
    name: str


def open_runs(folders: Sequence[Path]) -> list[RunView]:
    """Return the runs in the given folders, with names that tell the runs apart.

    Raises ConfigError for a folder that no run has written to.
    """
    short = [folder.absolute().name for folder in folders]
    runs: list[RunView] = []
    for folder, name in zip(folders, short, strict=True):
        runs.append(RunView(run_folder(folder), name if short.count(name) == 1 else str(folder)))
    return runs


def overview(runs: Sequence[RunView]) -> Part:
    """Return the first part of the report page: every run's curves, state and events, and the metrics' meanings."""
    found = [_curves(run) for run in runs]
    names: dict[str, None] = {}
    for part in found:
        names.update(dict.fromkeys(part["metrics"]))
    panels: list[Part] = []
    for title, text, declared, scale in PANELS:
        words = _covered(names, declared)
        panels.append(
            {"title": title, "text": text, "metrics": list(words), "words": list(words.values()), "scale": scale}
        )
    return {
        "written": time.time(),
        "runs": found,
        "panels": panels,
        "meanings": _meanings(sorted(names)),
    }


def _covered(names: Iterable[str], declared: Mapping[str, str]) -> dict[str, str]:
    """Return those of a run's metric names that declared metrics cover, with their words, in the run's order."""
    found: dict[str, str] = {}
    for name in names:
        metric = find_metric(name)
        pattern = "" if metric is None else f"{name.partition('/')[0]}/{metric.name}"
        if pattern in declared:
            covered = name.removeprefix(pattern.partition("{")[0])
            found[name] = declared[pattern].format(covered)
    return found


def _curves(run: RunView) -> Part:
    read = read_rows(run.folder)
    steps = [row["step"] for row in read]
    rows: list[dict[str, float | None]] = []
    names: dict[str, None] = {}  # ordered by first row
    for row in read:
        rows.append({name: as_number(value) for name, value in row.items() if name != "step"})
        names.update(dict.fromkeys(rows[-1]))
    metrics: dict[str, list[float | None]] = {}
    intervals: dict[str, list[Ends | None]] = {}
    for name in names:
        metrics[name] = [row.get(name) for row in rows]
        if names.keys() & {f"{name}_low", f"{name}_standard_error", f"{name}_error"}:
            intervals[name] = [interval_95(row, name) for row in rows]
    return {
        "name": run.name,
        "folder": str(run.folder),
        "steps": steps,
        "metrics": metrics,
        "intervals": intervals,
        "seconds": sum(step_seconds(row) for row in rows),
        "answers": before_and_after(run.folder, max(steps, default=0)),
        "events": _json_lines(run.folder / "events.jsonl")[-MAX_EVENTS:],
        "state": state_of(run.folder),
        "max_steps": settings_of(run.folder).get("trainer.max_steps"),
        "evaluation": _evaluation(run.folder),
        "weights": weights_record(run.folder),
    }


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics file, or an empty list before the first step."""
    path = folder / METRICS
    return read_metrics(path) if path.is_file() else []


def _meanings(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the unit, aggregation and meaning of metrics by full name.

    Metrics that are not declared, such as those of a user's own loss, are left out.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        metric = find_metric(name)
        if metric is not None:
            found[name] = [metric.unit, metric.aggregation, metric.meaning]
    return found


def state_of(folder: Path) -> Part:
    """Return the state of a training run according to its heartbeat file.

    The state is running, stalled, ended, silent when the heartbeat stopped without an end, or unknown without a
    heartbeat.
    """
    try:
        heartbeat = record_object(folder / "heartbeat.json", SMALL)
        age_s = time.time() - heartbeat["written_at"]
        state = heartbeat["state"]
        if state != "ended" and age_s > SILENT_S:
            state = "silent"
        return {
            "state": str(state),
            "stage": str(heartbeat["stage"]),
            "detail": str(heartbeat["detail"]),
            "late": list(heartbeat["late"]),
            "written_at": heartbeat["written_at"],
        }
    except (OSError, *MALFORMED):
        return {"state": "unknown"}


def settings_of(folder: Path) -> dict[str, Any]:
    """Return a run's settings by dotted name, with interpolations as text, or no settings when they cannot be read."""
    try:
        return record_leaves(folder / RECORD)
    except RecordError:
        return {}


def settings_table(runs: Sequence[RunView]) -> Part:
    """Return every setting of the runs: its default, its meaning and each run's value, as YAML."""
    by_run = [settings_of(run.folder) for run in runs]
    names: set[str] = set()
    for found in by_run:
        names.update(found)
    known = declared_settings()
    rows: list[Part] = []
    for name in sorted(names):
        setting = known.get(name)
        rows.append(
            {
                "name": name,
                "values": [as_yaml(found[name]) if name in found else None for found in by_run],
                "default": None if setting is None else setting.default,
                "meaning": "" if setting is None else setting.declared.meaning,
            }
        )
    revisions = [_text(run.folder / "revision.txt") for run in runs]
    return {"rows": rows, "runs": [run.name for run in runs], "revisions": revisions}


def _evaluation(folder: Path) -> Part | None:
    """Return the scores of the latest `brorl evaluate` in a run folder, with their intervals, or None without one."""
    try:
        found = record_object(folder / "evaluation.json", LARGE)
        return {
            "model": found["model"],
            "confidence": found["confidence"],
            "scores": {name: benchmark["scores"] for name, benchmark in found["benchmarks"].items()},
        }
    except (OSError, *MALFORMED):
        return None


def _json_lines(path: Path) -> list[Part]:
    return read_records(path) if path.is_file() else []


def _text(path: Path) -> str:
    try:
        return record_bytes(path, SMALL).decode("utf-8", errors="replace").strip()
    except (OSError, RecordError):
        return "unknown"
