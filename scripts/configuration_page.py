"""Write docs/configuration.md from the declared settings: `python scripts/configuration_page.py` (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.config.reference import Group, Setting, groups

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

INTRODUCTION = """# Settings

Made from the declarations in `nemo_brorl/config/sections/` by `make docs`; a test asserts that it is current.

A YAML in `conf/` holds what differs from the defaults below and begins with `defaults: [brorl_schema, _self_]`, or with
the name of another YAML to build on. On the command line any setting is given as `KEY=VALUE` in Hydra's syntax:

```
brorl train --config-name brorl_cpu rollouts.num_per_prompt=64 "data.tasks=[{name: leg_counting}, {name: chain_sum}]"
brorl train --config-path my_configs --config-name mine   # may say `defaults: [brorl_cpu, _self_]`
brorl train --print-config                                # the resolved settings
```

Unknown keys, wrong types, numbers out of range and settings that do not fit each other are refused before anything is
started, with a message that says what to write instead. A run that is resumed may be given other values only for the
settings marked "may change".
"""


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(section(group) for group in groups() if group.settings)


def section(group: Group) -> str:
    """A heading and a table with one row for each setting."""
    rows = "".join(row(setting) for setting in group.settings)
    return (
        f"\n## {group.path}\n\n{group.summary}\n\n"
        "| setting | type | default | allowed | may change | meaning |\n|---|---|---|---|---|---|\n"
        f"{rows}"
    )


def row(setting: Setting) -> str:
    """One line of a table."""
    declared = setting.declared
    resumed = "yes" if setting.may_change else ""
    allowed = declared.allowed.removeprefix("of ")
    name = setting.path.rpartition(".")[2]
    cells = (
        f"`{name}`",
        f"`{setting.annotation}`",
        f"`{setting.default}`",
        allowed,
        resumed,
        declared.meaning,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
