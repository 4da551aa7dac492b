"""Settings that are given and not read are named; those of the repository's own recipes are all read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nemo_brorl.config.load import CommandLine, given_by, load_config, shipped_folder, to_yaml
from nemo_brorl.config.schema import groups, settings
from nemo_brorl.config.unread import EVALUATE, OF_OTHER_COMMANDS, SFT, SWITCHES, TRAIN, late_steps, unread_settings
from nemo_brorl.core.errors import ConfigError
from tests.unit.prompts.files import plain_rows, write_jsonl

MODEL = "policy.model=models/sums"


def unread(*overrides: str, name: str = "your_model", command: str = TRAIN, folder: Path | None = None) -> list[str]:
    line = CommandLine(name, (MODEL, *overrides), folder)
    config = load_config(*line)
    return unread_settings(config, *given_by(line), command)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("data.columns.prompt=x", "data.columns.prompt=x is not read: data.source=reasoning_gym"),
        ("data.held_out_path=x", "data.held_out_path=x is not read: data.source=reasoning_gym"),
        ("data.preset=deepscaler", "data.preset=deepscaler is not read: data.source=reasoning_gym"),
        ("data.only={level: hard}", "data.only.level=hard is not read: data.source=reasoning_gym"),
        ("data.dataset_split=test", "data.dataset_split=test is not read: data.source=reasoning_gym"),
        ("data.max_bad_rows=3", "data.max_bad_rows=3 is not read: data.source=reasoning_gym"),
        (
            "algorithm.pass_at_k=4",
            "algorithm.pass_at_k=4 is not read: algorithm.advantage=reinforce_plus_plus_baseline",
        ),
        ("algorithm.credit=return", "algorithm.credit=return is not read: data.environment=null"),
        (
            "algorithm.importance_correction.low=0.1",
            "algorithm.importance_correction.low=0.1 is not read: algorithm.importance_correction.kind=tis",
        ),
        (
            "algorithm.loss_params.covariance.share=0.1",
            "algorithm.loss_params.covariance.share=0.1 is not read: algorithm.loss_params.covariance.kind=none",
        ),
        (
            "algorithm.reference_reset.clear_optimizer=true",
            "algorithm.reference_reset.clear_optimizer=true is not read: algorithm.reference_reset.interval=0",
        ),
        ("policy.fp8_recipe=delayed", "policy.fp8_recipe=delayed is not read: policy.fp8=null"),
        ("parity.max_fp8_mismatch=0.1", "parity.max_fp8_mismatch=0.1 is not read: policy.fp8=null"),
        (
            "generation.gpu_memory_utilization=0.5",
            "generation.gpu_memory_utilization=0.5 is not read: trainer.gpus_per_node=0",
        ),
        ("profile.steps=[3]", "profile.steps.0=3 is not read: profile.kind='off'"),
        (
            "rewards.shaping.cosine.on_steps=5",
            "rewards.shaping.cosine.on_steps=5 is not read: rewards.shaping.cosine.enabled=false",
        ),
        (
            "rewards.code.memory_mib=99",
            "rewards.code.memory_mib=99 is not read: no question is scored by running programs",
        ),
        ("rewards.services.concurrency=2", "rewards.services.concurrency=2 is not read: rewards.services.endpoints=[]"),
        (
            "rewards.environments.num_processes=4",
            "rewards.environments.num_processes=4 is not read: data.environment=null",
        ),
        (
            "rollouts.schedule.plateau.window=4",
            "rollouts.schedule.plateau.window=4 is not read: rollouts.schedule.kind=constant",
        ),
        ("evaluation.pass_at_k=[2]", "evaluation.pass_at_k.0=2 is not read by `brorl train`: `brorl evaluate` does"),
        ("sft.lr=1e-3", "sft.lr=0.001 is not read by `brorl train`: `brorl sft` and `brorl base` do"),
    ],
)
def test_a_setting_without_effect_is_named_with_what_switches_it_off(given: str, said: str) -> None:
    assert unread(given) == [said]


@pytest.mark.parametrize(
    "given",
    [
        ("algorithm.advantage=pass_at_k", "algorithm.pass_at_k=4"),
        ("algorithm.advantage=mine:estimate", "algorithm.pass_at_k=4"),
        ("algorithm.importance_correction.kind=icepop", "algorithm.importance_correction.low=0.1"),
        ("algorithm.loss_params={covariance: {kind: clip_cov, low: 0.5}}",),
        ("algorithm.reference_reset.patience=2", "algorithm.reference_reset.clear_optimizer=true"),
        ("policy.fp8=hybrid", "policy.fp8_recipe=delayed", "policy.fp8_amax_history=16"),
        (
            "generation.kv_cache_gib=1",
            "policy.num_threads=1",
            "data.verifier=exact_match",
            "data.verifier_options={a: 1}",
        ),
        ("rewards.shaping.overlong_buffer=8", "rewards.shaping.overlong_penalty=0.5"),
        ("data.environment=calculator", "rollouts.max_turn_tokens=20", "rewards.trajectory_reward=last"),
        ("data.verifier='http://localhost:1/score'", "rewards.services.concurrency=2"),
        ("data.verifier=composite", "data.verifier_options={parts: [{verifier: code}]}", "rewards.code.memory_mib=99"),
        ("policy.fp8_params=false", "data.path=null", "evaluation.first_prompt=4"),
    ],
)
def test_a_setting_with_an_effect_is_not_named(given: tuple[str, ...]) -> None:
    assert unread(*given) == []


def test_a_file_reads_settings_of_files_and_not_those_of_another_kind(tmp_path: Path) -> None:
    path = f"data.path={write_jsonl(tmp_path / 'a.jsonl', plain_rows(2))}"
    assert unread(path, "data.columns.prompt=prompt", "data.only={prompt: q1}", "data.max_bad_rows=1") == []
    assert unread(path, "data.dataset_split=test") == ["data.dataset_split=test is not read: data.source=jsonl"]
    held_out = f"data.held_out_path={write_jsonl(tmp_path / 'b.jsonl', plain_rows(2))}"
    assert unread(path, held_out, "data.held_out_fraction=0.2") == [
        f"data.held_out_fraction=0.2 is not read: {held_out}"
    ]


def test_a_mixture_reads_the_settings_of_its_domains(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", plain_rows(2))
    first, second = f"{{name: a, path: {path}, max_bad_rows: 1}}", "{name: b, tasks: [{name: gcd}], preset: ifeval}"
    domains = f"data.domains=[{first}, {second}]"
    assert unread("data.source=mixture", domains, "data.verifier=math", "data.held_out_fraction=0.2") == [
        "data.domains.1.preset=ifeval is not read: data.domains.1.source=reasoning_gym",
        "data.verifier=math is not read: data.source=mixture",
    ]


def test_two_sources_of_questions_are_refused_where_one_origin_gives_both(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", plain_rows(2))
    file = ("data.source=jsonl", f"data.path={path}")
    with pytest.raises(ConfigError, match="data.tasks.0.name=gcd and data.source=jsonl name two sources"):
        unread(*file, "data.tasks=[{name: gcd}]")
    with pytest.raises(ConfigError, match="data.path=.* and data.source=mixture name two sources"):
        unread("data.source=mixture", f"data.path={path}", "data.domains=[{name: a, tasks: [{name: gcd}]}]")
    (tmp_path / "own.yaml").write_text("defaults: [your_model, _self_]\ndata: {tasks: [{name: gcd}]}\n")
    assert unread(*file, name="own", folder=tmp_path) == ["data.tasks.0.name=gcd is not read: data.source=jsonl"]


def test_an_evaluation_names_what_it_replaces() -> None:
    assert unread(
        "rollouts.num_per_prompt=8", "rollouts.temperature=0.7", "algorithm.kl.coefficient=1", command=EVALUATE
    ) == [
        "rollouts.num_per_prompt=8 is not read by `brorl evaluate`: evaluation.samples_per_prompt is",
        "rollouts.temperature=0.7 is not read by `brorl evaluate`: evaluation.temperature is",
        "algorithm.kl.coefficient=1 is not read by `brorl evaluate`: `brorl train` does",
    ]
    benchmark = (
        "evaluation.benchmarks=[{name: sums, source: reasoning_gym, tasks: [{name: chain_sum}], num_prompts: 9}]"
    )
    assert unread(benchmark, "evaluation.num_prompts=5", "data.path=a.jsonl", command=EVALUATE) == [
        "evaluation.num_prompts=5 is not read: evaluation.benchmarks lists what is asked",
        "data.path=a.jsonl is not read: evaluation.benchmarks lists what is asked",
    ]


def test_fine_tuning_names_what_it_replaces() -> None:
    said = unread("policy.optim.lr=1e-6", "trainer.max_steps=5", "rollouts.num_per_prompt=8", command=SFT)
    assert [text.rpartition(": ")[2] for text in said] == ["sft.lr is", "sft.max_steps is", "`brorl train` does"]


def test_a_file_may_hold_settings_of_other_commands_and_defaults(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "defaults: [your_model, _self_]\nsft: {lr: 0.001}\nevaluation: {pass_at_k: [2]}\n"
        "policy: {fp8_recipe: tensorwise}\nstore: {enabled: false, text: true}\n"
    )
    said = ["store.text=true is not read: store.enabled=false"]
    assert unread(name="own", folder=tmp_path) == said
    assert unread(name="own", folder=tmp_path, command=SFT) == []


@pytest.mark.parametrize("name", sorted(path.stem for path in shipped_folder().glob("*.yaml")))
def test_the_repositorys_own_recipes_are_read_as_a_whole(tmp_path: Path, name: str) -> None:
    for path in shipped_folder().glob("*.yaml"):
        shutil.copy(path, tmp_path)
    file = write_jsonl(tmp_path / "a.jsonl", plain_rows(2))
    needed = {"sft": [f"data.path={file}"], "brorl_five_domains": []}.get(name, [])
    line = CommandLine(name, tuple(needed), tmp_path)
    try:
        config = load_config(*line)
    except ConfigError as error:
        # Its files are the user's.
        assert name == "brorl_five_domains" and "needs data.domains.0.path" in str(error)
        return
    command = SFT if "sft" in name else TRAIN
    assert unread_settings(config, {}, given_by(line)[1], command) == []
    assert list(late_steps(config, given_by(line)[1], command)) == []


def test_a_warm_up_longer_than_the_run_is_named_and_the_proposal_is_taken() -> None:
    config = load_config("your_model", [MODEL, "policy.optim.warmup_steps=500"])
    (said,) = late_steps(config, {}, TRAIN)
    assert said.startswith("policy.optim.warmup_steps=500 and trainer.max_steps=20: the learning rate never reaches")
    proposal = said.rpartition("Set ")[2]
    assert list(late_steps(load_config("your_model", [MODEL, proposal]), {}, TRAIN)) == []
    config = load_config("your_model", [MODEL, "sft.max_steps=10"])
    (said,) = late_steps(config, {}, SFT)
    assert said.endswith("Set sft.warmup_steps=1")


def test_steps_behind_the_end_are_named() -> None:
    given = {"algorithm.reference_reset.interval": 50}
    config = load_config(
        "your_model", [MODEL, "algorithm.reference_reset.interval=50", "profile.kind=torch", "profile.steps=[30]"]
    )
    assert list(late_steps(config, given, TRAIN)) == [
        "algorithm.reference_reset.interval=50 is beyond trainer.max_steps=20: the reference is never reset",
        "profile.steps=[30] are beyond trainer.max_steps=20: set profile.steps=[20]",
    ]


def test_the_tables_name_settings_that_exist() -> None:
    known = {*settings(), *(group.path for group in groups()), "algorithm.loss_params.covariance"}
    names = []
    for line in SWITCHES.strip().splitlines():
        section, ends, by, *_ = (cell.strip() for cell in line.split(" | "))
        if section != "algorithm.loss_params.covariance":
            names += [section if end == "*" else f"{section}.{end}" for end in ends.split()]
        names += [] if by in ("verifier code", "algorithm.covariance.kind") else by.split()
    for line in OF_OTHER_COMMANDS.strip().splitlines():
        names += line.split(" | ")[1].split()
    assert [name for name in names if name not in known] == []


def test_the_settings_of_a_frozen_job_are_no_file_of_the_users(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", plain_rows(2))
    asked = load_config("brorl_cpu", [MODEL, "data.source=jsonl", f"data.path={file}"])
    assert asked.data.tasks, "its settings hold the recipe's own tasks"
    (tmp_path / "config.yaml").write_text(to_yaml(asked), encoding="utf-8")
    assert unread(name="config", folder=tmp_path) == []
