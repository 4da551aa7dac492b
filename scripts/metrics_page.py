"""Write docs/metrics.md from the registry of metrics: `python scripts/metrics_page.py` (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from brorl_lab.metric_registry import GROUPS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
HEAD = """# Metrics

Made from `lab/brorl_lab/metric_registry.py` by `make docs`; a test asserts that it is current.

A run writes one flat JSON object a step to `metrics.jsonl`, keys `group/name`, and the same to the trackers that are
on: `exp_manager.create_X_logger=true` with X one of `tensorboard` (the default), `wandb`, `mlflow`, `clearml`,
`neptune`, `dllogger`, `swanlab`, `trackio`, and the tracker's own arguments in `exp_manager.X_logger_kwargs`. All but
TensorBoard are packages to install (`pip install nemo_brorl[loggers]`); keys come from the environment.

`{…}` stands for a task, a domain or a number. A metric that has no value in a step is left out of its row, or is NaN
where the table says so. Metrics that a loss of your own returns are written as they are.
"""


def page() -> str:
    """Return the text of docs/metrics.md."""
    lines = [HEAD]
    for group, (summary, metrics) in GROUPS.items():
        lines += [f"## {group}", "", summary, ""]
        lines += ["| metric | unit, taken over | meaning |", "|---|---|---|"]
        for metric in metrics:
            unit = f"{metric.unit}, " if metric.unit else ""
            lines.append(f"| `{group}/{metric.name}` | {unit}{metric.aggregation} | {metric.meaning} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
