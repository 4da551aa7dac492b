"""What settings and folders say of teachers is checked before a machine with the models is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.commands.teachers import check_local_teachers
from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import BroRLError

COEFFICIENT = "algorithm.kl.coefficient=1"


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ("algorithm.kl.teacher=/no/teacher", "algorithm.kl.teacher=/no/teacher: there is no such folder"),
        ("algorithm.kl.teachers={chain_sum: /no/teacher}", "algorithm.kl.teachers.chain_sum=/no/teacher"),
        ("algorithm.kl.teacher=models/products", "another num_layers (2, not 3)"),
        ("algorithm.kl.teachers={sums: models/sums}", "no question has the task sums. Set some of chain_sum"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_with_its_setting(tmp_path: Path, teacher: str, message: str) -> None:
    run = f"exp_manager.explicit_log_dir={tmp_path}"
    with pytest.raises(BroRLError) as error:
        check_local_teachers(load_config("sums_cpu", [teacher, COEFFICIENT, run]))
    assert message in str(error.value)


def test_a_teacher_of_the_hub_and_tasks_of_files_are_left_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 2", "answer": "3"}\n')
    of_a_file = ["data.source=jsonl", f"data.path={tmp_path}/rows.jsonl", "data.tasks=[]"]
    teacher = "algorithm.kl.teachers={arithmetic: owner/name}"
    run = f"exp_manager.explicit_log_dir={tmp_path}"
    check_local_teachers(load_config("sums_cpu", [teacher, COEFFICIENT, run, *of_a_file]))
