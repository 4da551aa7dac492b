"""Write docs/configuration.md from the declared settings: `python scripts/configuration_page.py` (`make docs`)."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from brorl_graders.base.components import import_function
from brorl_graders.environments.registry import ENVIRONMENTS

from nemo_brorl.config.algorithm import CovarianceConfig
from nemo_brorl.config.help_pages import SETTINGS_THAT_MATTER
from nemo_brorl.config.schema import Setting, SettingSection, groups, section_of, settings
from nemo_brorl.prompts.row_formats import DATA_SETS, PRESETS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

# Parameters in a mapping that is a setting, by the section of this setting.
PARAMETERS = {"algorithm": section_of(CovarianceConfig, "algorithm.loss_params.covariance")}
LEAST_SHARED = 3  # fewest settings common to two sections that are named instead of shown again

INTRODUCTION = """# Settings

Made from the declarations in `nemo_brorl/config/` by `make docs`; a test asserts that it is current.

A YAML in `conf/` holds what differs from the defaults below and begins with `defaults: [brorl_schema, _self_]`, or with
the name of another YAML to build on. On the command line any setting is given as `KEY=VALUE` in Hydra's syntax:

```
brorl train --config-name brorl_cpu rollouts.num_per_prompt=64 "data.tasks=[{name: leg_counting}, {name: chain_sum}]"
brorl train --config-path my_configs --config-name mine   # may say `defaults: [brorl_cpu, _self_]`
brorl train --print-config                                # the resolved settings
```

Unknown keys, wrong types, numbers out of range and settings that do not fit each other are refused before anything is
started, with a message that says what to set instead. A run that is resumed may be given other values only for the
settings marked with a star.

## Settings that matter

Most runs change only the settings in this table, which `brorl train --help` prints too. The planner
[chooses each size](planner.md#automatic-sizes) that is `null`, or `auto` on the command line.

| setting and default | change it to |
|---|---|
"""


def page() -> str:
    """Return the text of docs/configuration.md."""
    shown: dict[str, str] = {}
    sections = []
    for group in groups():
        if group.settings:
            sections.append(section(group, shown))
            if group.path in PARAMETERS:
                sections.append(section(PARAMETERS[group.path], shown))
            for setting in group.settings:
                shown.setdefault(_said(setting), group.path)
        if group.path == "data.columns":
            sections.append(presets() + environments())
    important = [reason_row(settings()[path], reason) for path, reason in SETTINGS_THAT_MATTER.items()]
    return _with_links(INTRODUCTION + "".join(important + sections))


def reason_row(setting: Setting, reason: str) -> str:
    """Return one line of the table of settings that matter, with a link to the setting's section."""
    section_path = setting.path.rpartition(".")[0]
    return f"| [`{setting.path}={setting.default}`](#{_anchor(section_path)}) | {reason} |\n"


def _with_links(text: str) -> str:
    """Make a link of each page that the text of a setting names."""
    return re.sub(r"docs/([\w/]+\.md)", r"[\g<0>](\1)", text)


def section(group: SettingSection, shown: dict[str, str]) -> str:
    """Return a section's heading and a table with one row for each setting.

    `shown` maps the rows on the page so far to their section. Settings that equal rows of such a section are named
    below the heading and get no row.
    """
    shared = _shared(group, shown)
    again = {setting.path for common in shared.values() for setting in common}
    text = f"\n## {group.path}\n\n{group.summary}\n"
    for path, common in shared.items():
        text += _as_in(path, common, is_whole=len(common) == len(group.settings))
    rows = [row(setting) for setting in group.settings if setting.path not in again]
    if rows:
        head = "| setting and default | type | meaning |\n|---|---|---|\n"
        text += "\n" + head + "".join(rows)
    return text


def _shared(group: SettingSection, shown: dict[str, str]) -> dict[str, list[Setting]]:
    found: dict[str, list[Setting]] = {}
    for setting in group.settings:
        if _said(setting) in shown:
            found.setdefault(shown[_said(setting)], []).append(setting)
    least = min(LEAST_SHARED, len(group.settings))
    return {path: settings for path, settings in found.items() if len(settings) >= least}


def _as_in(path: str, settings: list[Setting], is_whole: bool) -> str:
    names = ", ".join(f"`{_name(setting)}`" for setting in settings)
    change = " All of these have a star." if all(setting.may_change for setting in settings) else ""
    what = "The settings are" if is_whole else f"{names} are"
    return f"\n{what} those of [{path}](#{_anchor(path)}).{change}\n"


def _said(setting: Setting) -> str:
    """Return everything in a setting's row of the page, except whether it may change."""
    declared = setting.declared
    return "\n".join((_name(setting), setting.annotation, setting.default, declared.allowed, declared.meaning))


def _name(setting: Setting) -> str:
    return setting.path.rpartition(".")[2]


def _anchor(path: str) -> str:
    """Return the anchor of a heading, by the rule of GitHub and MkDocs."""
    return re.sub(r"[^\w-]", "", path.lower())


def row(setting: Setting) -> str:
    """Return one line of the table of settings in docs/configuration.md."""
    declared = setting.declared
    star = " *" if setting.may_change else ""
    what = f"`{_name(setting)}`, required" if setting.default == "required" else f"`{_name(setting)}={setting.default}`"
    cells = (what + star, _type(setting), declared.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _type(setting: Setting) -> str:
    """Return the choices of a setting as text, or its type with the range."""
    allowed = setting.declared.allowed.removeprefix("of ")
    if setting.declared.choices:
        return allowed
    kind = f"`{setting.annotation.removesuffix(' | None')}`"
    if setting.annotation.endswith(" | None"):
        kind += " or null"
    return f"{kind}, {allowed}" if allowed else kind


def presets() -> str:
    """Return the section of docs/configuration.md about the presets of `data.preset`, one row for each row format."""
    text = "\n## Presets of rows\n\nPaths of fields, by `data.preset`. `?` marks a field that may be missing.\n\n"
    text += "| preset | data set | prompt | answer | task | more payload | verifier |\n|---|---|---|---|---|---|---|\n"
    for name, formats in PRESETS.items():
        for layout in formats:
            data_set = DATA_SETS[name]
            if layout.when:
                data_set += ", rows whose `{}` is `{}`".format(*layout.when)
            named = (path if path.rstrip("?") == key else f"{key}={path}" for key, path in layout.payload.items())
            paths = [_code(layout.prompt), _code(layout.answer), _code(layout.task_path), ", ".join(map(_code, named))]
            text += f"| `{name}` | {data_set} | {' | '.join(paths)} | `{layout.verifier}` |\n"
    return text


def environments() -> str:
    """Return the section of docs/configuration.md about the built-in environments, from signatures and docstrings."""
    text = "\n## Built-in environments\n\nValues of `data.environment`, with keys of `data.environment_settings`.\n\n"
    text += "| environment | settings and defaults | meaning |\n|---|---|---|\n"
    for name, path in ENVIRONMENTS.items():
        kind = import_function("environment", path)
        settings = ", ".join(_argument(argument) for argument in inspect.signature(kind).parameters.values())
        details = (inspect.getdoc(kind.__init__) or "").partition("\n\n")[2]
        sentences = re.split(r"(?<=\.)\s+", f"{inspect.getdoc(kind)} {details}".strip())
        meaning = " ".join(sentence for sentence in sentences if not sentence.startswith("Raises"))
        text += f"| `{name}` | {settings} | {' '.join(meaning.split())} |\n"
    return text


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _argument(argument: inspect.Parameter) -> str:
    if argument.default is inspect.Parameter.empty:
        return f"`{argument.name}` (required)"
    return f"`{argument.name}={json.dumps(argument.default)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
