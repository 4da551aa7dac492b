"""A run folder is resumed with the settings of its run, also one that an earlier version began."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from nemo_brorl.config.load import load_config, to_yaml
from nemo_brorl.config.same_run import RECORD, check_same_run
from nemo_brorl.core.errors import CheckpointError


def begun(folder: Path, *left_out: str) -> str:
    """Record a run without some settings, as a version that did not have them, and return the folder's setting."""
    own = f"exp_manager.explicit_log_dir={folder}"
    tree = yaml.safe_load(to_yaml(load_config("brorl_cpu", [own])))
    for name in left_out:
        *sections, last = name.split(".")
        within = tree
        for section in sections:
            within = within[section]
        del within[last]
    (folder / RECORD).write_text(yaml.safe_dump(tree))
    return own


def test_settings_that_an_earlier_version_did_not_have_keep_their_defaults(tmp_path: Path) -> None:
    own = begun(tmp_path, "algorithm.kl.teachers", "data.template_date", "data.template_arguments")
    assert check_same_run(load_config("brorl_cpu", [own]))
    with pytest.raises(CheckpointError, match="data.template_arguments.thinking was None, now False"):
        check_same_run(load_config("brorl_cpu", [own, "+data.template_arguments.thinking=false"]))


def test_a_setting_that_training_does_not_read_may_differ(tmp_path: Path) -> None:
    own = begun(tmp_path)
    assert check_same_run(load_config("brorl_cpu", [own, "rollouts.schedule.plateau.window=6"]))
    assert check_same_run(load_config("brorl_cpu", [own, "sft.lr=1e-3"]))
    with pytest.raises(CheckpointError, match=r"algorithm.clip_high was 0.28, now 0.5"):
        check_same_run(load_config("brorl_cpu", [own, "algorithm.clip_high=0.5"]))
