"""Write docs/rollout_store.md from the columns of its tables: `python scripts/rollout_store_page.py` (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.training.store.columns import GROUP_COLUMNS, ROLLOUT_COLUMNS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rollout_store.md"
HEAD = """# Rollout store

Made from `nemo_brorl/training/store/columns.py` by `make docs`; a test asserts that it is current.

The rollout store of a [run directory](reference/run_directory.md) holds the groups of every step as Parquet files.
`store/groups/step_000007.parquet` has a row for each group of step 7, and `store/rollouts/step_000007.parquet` a row
for each rollout of step 7. The settings [`store`](configuration.md#store) control the store, and
[queries](howto/replay_and_export.md#query-the-store) read it. A resumed run overwrites the steps after its checkpoint.
A token takes about 5 bytes on disk for small vocabularies.

A carried-over group is in two steps. The condition `fate = 'trained'` counts each trained group once, and
`origin = 'sampled'` counts each sampled group once.
"""
TABLES = {"Groups": GROUP_COLUMNS, "Rollouts": ROLLOUT_COLUMNS}
METADATA = """The schema metadata of the groups table (key `brorl`, JSON) has the update's `learning_rate`, `loss_scale`
and `version`. The key `left_out` in the metadata counts the groups that are not stored because of `store.share`.
"""


def page() -> str:
    """Return the text of docs/rollout_store.md."""
    lines = [HEAD]
    for title, columns in TABLES.items():
        lines += [f"## {title}", "", "| column | type | meaning |", "|---|---|---|"]
        for name, (kind, meaning) in columns.items():
            # Arrow names the elements of a list, which says nothing here.
            lines.append(f"| `{name}` | `{str(kind).replace('item: ', '')}` | {meaning} |")
        lines.append("")
    return "\n".join([*lines, METADATA])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
