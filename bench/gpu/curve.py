"""i: learning curves of a real model on one card, from questions that it does not solve in 16 tries.

    python -m bench.gpu.curve [--model runs/smollm2/sft/hf] [--seed 1] [--steps 24] [--lr 3e-5] [--tiny]

Arms: N = 16 on 256 prompts and N = 512 on 8 prompts with equally many samples, and N = 512 on 64 prompts at √8 times
the learning rate with an eighth of the steps. Curves of validations give pass@1 at equal samples and at equal training
time. Then the base and each arm's last weights answer 512 other questions 64 times: pass@1, pass@64, and the paired
difference from N = 16. `make real-model` makes the model, of which a host without a network needs the folder.

Hypothesis: at equal samples no arm with N = 512 is ahead of N = 16 by more than its interval, as in our CPU studies. At
equal time N = 512 is ahead only if its steps take less time.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from brorl_lab.commands.sweep import UNITS, SweepCurve, curve_of
from brorl_lab.paired_evaluations import EvaluationScores, compare_evaluations, read_evaluation

from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import TINY
from bench.gpu.training_run import TINY_RUN, character_model, overrides_for, write_rows
from bench.product import run
from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.training.records import read_metrics

BENCHMARK = "sums"
FIRST_ARM = "16x256"  # the others are compared with it
NUM_TRIES = 16
NUM_SAMPLES = 64  # of each reported question
ARMS = {  # N, prompts of a step, factor of the learning rate, share of the steps
    FIRST_ARM: (16, 256, 1.0, 1.0),
    "512x8": (512, 8, 1.0, 1.0),
    "512x64": (512, 64, math.sqrt(8), 1 / 8),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part to its parser."""
    parser.add_argument("--model", type=Path, default=Path("runs/smollm2/sft/hf"), help="a fine-tuned SmolLM2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=24, help="of the arms with 4,096 samples a step")
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--terms", type=int, default=3, help="of each sum")
    parser.add_argument("--questions", type=int, default=6144, help="tried, before the solved ones are left out")
    parser.add_argument("--reported", type=int, default=512)
    parser.add_argument("--validated", type=int, default=128)


def base_overrides(setting: Setting, model: Path) -> list[str]:
    """Return the settings of all commands."""
    recipe = [] if setting.is_tiny else ["--config-name", "smollm2_cpu"]
    return [*recipe, *overrides_for(setting), *(TINY_RUN if setting.is_tiny else ()), f"policy.model={model}"]


def evaluate(
    setting: Setting, model: Path, questions: Path, num_samples: int, output: Path, run_folder: Path | None = None
) -> EvaluationScores:
    """Sample answers to all questions of a file, and return the scores of the only benchmark, `BENCHMARK`.

    With `run_folder` the weights are those of the run's last checkpoint, whatever its validations chose.
    """
    benchmark = f"{{name: {BENCHMARK}, domain: math, source: jsonl, path: {questions}, verifier: exact_match}}"
    run(
        "evaluate",
        *base_overrides(setting, model),
        f"evaluation.benchmarks=[{benchmark}]",
        f"evaluation.samples_per_prompt={num_samples}",
        f"evaluation.pass_at_k=[{num_samples}]",
        f"evaluation.checkpoint={run_folder or 'null'}",
        f"evaluation.output={output}",
    )
    return read_evaluation(output / "evaluation.json")


def hard_questions(setting: Setting, model: Path) -> dict[str, Path]:
    """Write the questions without a right answer in `NUM_TRIES` tries, in three files without common questions."""
    import reasoning_gym

    extra, folder = setting.extra, setting.work / "questions"
    sizes = {"min_terms": extra.terms, "max_terms": extra.terms, "min_digits": 2, "max_digits": 2}
    generated = reasoning_gym.create_dataset("chain_sum", size=extra.questions, seed=extra.seed, **sizes)
    answers = {item["question"]: item["answer"] for item in generated}
    rows = [{"prompt": question, "answer": answer} for question, answer in answers.items()]
    tried = evaluate(setting, model, write_rows(folder / "all.jsonl", rows), NUM_TRIES, folder / "tried")
    hard = [row for row, share in zip(rows, tried.successes[BENCHMARK].values(), strict=True) if share == 0]
    setting.results.add(Row(f"questions unsolved in {NUM_TRIES} tries", len(hard), note=f"of {len(rows)}"))
    reported, validated = extra.reported, extra.reported + extra.validated
    parts = {"reported": hard[:reported], "validated": hard[reported:validated], "trained": hard[validated:]}
    return {name: write_rows(folder / f"{name}.jsonl", part) for name, part in parts.items()}


def train(setting: Setting, arm: str, model: Path, files: dict[str, Path]) -> Path:
    """Train one arm, and return its run folder."""
    num_per_prompt, num_prompts, rate, share = ARMS[arm]
    folder = setting.work / arm
    steps = max(1, round(setting.extra.steps * share))
    sizes = [] if setting.is_tiny else [
        f"rollouts.num_per_prompt={num_per_prompt}",
        f"rollouts.prompts_per_step={num_prompts}",
        f"rollouts.chunk_size={min(num_per_prompt, 64)}",
        "policy.tokens_per_micro_batch=16384",
        f"trainer.val_interval={max(1, steps // 6)}",
        f"evaluation.num_prompts={setting.extra.validated}",
        "evaluation.samples_per_prompt=16",
        "dynamic_sampling.fill=samples",
    ]  # fmt: skip
    run(
        "train",
        *base_overrides(setting, model),
        *sizes,
        "data.source=jsonl",
        f"data.path={files['trained']}",
        f"data.held_out_path={files['validated']}",
        f"trainer.seed={setting.extra.seed}",
        f"trainer.max_steps={steps}",
        f"trainer.save_interval={steps}",
        f"policy.optim.lr={setting.extra.lr * rate}",
        f"exp_manager.explicit_log_dir={folder}",
    )
    return folder


def add_scores(setting: Setting, arm: str, scores: EvaluationScores, first: EvaluationScores | None) -> None:
    """Add an arm's pass@1 and pass@k, and its paired difference from the first arm, in points."""
    own = scores.successes[BENCHMARK].values()
    setting.results.add(Row(f"{arm}: pass@1", 100 * statistics.fmean(own), "%"))
    for k, found in scores.benchmarks[BENCHMARK]["scores"]["pass_at_k"].items():
        setting.results.add(Row(f"{arm}: pass@{k}", 100 * found["value"], "%"))
    if first is not None:
        compared = compare_evaluations(first, scores, EvaluationConfig().bootstrap_samples)[BENCHMARK]
        difference = compared.test.difference
        low, high = difference.interval
        note = f"{100 * low:+.2f} to {100 * high:+.2f}, {scores.confidence:.0%} over questions"
        setting.results.add(Row(f"{arm} − {FIRST_ARM}", 100 * difference.value, "points", note=note))


def add_curves(setting: Setting, curves: dict[str, SweepCurve]) -> None:
    """Add validated pass@1 at the most samples, and at the most training time, that all arms reached."""
    for unit in UNITS:
        amount = min(getattr(curve, unit)[-1] for curve in curves.values())
        for arm, curve in curves.items():
            note = f"at {amount:,.0f} {unit}, from {100 * curve.score[0]:.1f} %"
            setting.results.add(Row(f"{arm}: validated pass@1", 100 * curve.score_at(unit, amount), "%", note=note))


def main() -> None:
    """Choose the questions, train every arm, and report each as soon as it is through."""
    setting = open_setting("curve", __doc__, add_arguments)
    model = setting.extra.model
    if setting.is_tiny:
        extra = setting.extra
        extra.steps, extra.questions, extra.reported, extra.validated = 2, 40, 8, 8
        model = character_model(setting, "tiny_characters", TINY)
    elif not (model / "config.json").is_file():
        raise SystemExit(f"--model {model} is no model folder: run `make real-model`, or pass another folder")
    files = hard_questions(setting, model)
    num_samples = 2 if setting.is_tiny else NUM_SAMPLES
    base = evaluate(setting, model, files["reported"], num_samples, setting.work / "base")
    add_scores(setting, "base", base, None)
    curves: dict[str, SweepCurve] = {}
    first: EvaluationScores | None = None
    for arm in ARMS:
        folder = train(setting, arm, model, files)
        curve = curve_of(read_metrics(folder / "metrics.jsonl"))
        if curve is not None:
            curves[arm] = curve
        output = setting.work / f"{arm}_evaluated"
        scores = evaluate(setting, model, files["reported"], num_samples, output, folder)
        add_scores(setting, arm, scores, first)
        first = first or scores
    if curves:
        add_curves(setting, curves)
    setting.results.finish()


if __name__ == "__main__":
    main()
