"""How each command of the pages is run: as it is shown, or changed in a way that its row gives a reason for.

A command without a row fails, and so does a row without a command. Words such as MODEL, which a reader replaces, have
values in `VALUES`. A row of a block that is saved as a file names the block by its first line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.documented_commands.pages import Command, as_one_line

RUN = "runs/sums_cpu"  # of `make train`, which all pages share
GPU_MODEL = {"MODEL": "Qwen/Qwen2.5-1.5B"}  # the planner knows its sizes without a network
VALUES = {
    "MODEL": "models/sums",
    "FOLDER": "models/sums",
    "RUN": RUN,
    "…": "--config-name sums_cpu exp_manager.explicit_log_dir=runs/other",
    "/shared/runs/": "runs/shared/",
    "[KEY=VALUE ...]": "trainer.max_steps=10 'data.tasks=[{name: gcd}]'",
}

ONE_OF_EACH = "generation.num_engines=1 policy.data_parallel_size=1 policy.num_threads=1 rewards.num_workers=1"
LITTLE = "evaluation.num_prompts=4 evaluation.samples_per_prompt=2 evaluation.max_response_tokens=16"
SMALL = (
    f"{ONE_OF_EACH} {LITTLE} rollouts.num_per_prompt=8 rollouts.prompts_per_step=4 rollouts.chunk_size=8 "
    "dynamic_sampling.enabled=false trainer.rehearsal=false parity.enabled=false"
)
STEP = f"{SMALL} trainer.max_steps=1 trainer.val_interval=0 trainer.save_interval=0"
SFT = (
    "policy.data_parallel_size=1 policy.num_threads=1 sft.max_steps=1 sft.max_tokens=256 sft.batch_size=4 "
    "trainer.val_interval=0 trainer.save_interval=0 exp_manager.explicit_log_dir=runs/"
)
# Checks what a run checks before Ray starts, and starts none. In place of `brorl try` it also tries an all-reduce.
DOCTOR = {"brorl train": "brorl doctor --all-reduce 0"}

IS_SMALL = "one engine, one rank, few rollouts: seconds in place of minutes"
NO_GPU = "needs GPUs: the planner checks settings and memory"
IS_CHECKED = "README and extend.md train: here the doctor checks settings, names, model and data"
IS_INSTALLED = "the packages are installed already"
NO_CONTAINERS = "needs Docker or enroot, and an hour"


@dataclass(frozen=True)
class Row:
    """How one command is run, or several that differ only in what `*` stands for."""

    shown: str
    why: str = ""  # empty: as it is shown, with values in place of words
    values: Mapping[str, str] = field(default_factory=dict)  # besides `VALUES`
    add: str = ""  # arguments at the end
    instead: str = ""  # what is run
    before: str = ""  # what a reader would have done
    until: str = ""  # words of the output at which a command that does not end is ended
    says: str = ""  # words of the output
    leaves: str = ""  # file that is there afterwards
    once: bool = False  # pages share its result
    save_as: str = ""  # name of a block that is a file
    head: str = ""  # what stands before the block in the file
    is_run: bool = True

    def matches(self, command: Command) -> bool:
        """Whether the row is about this command."""
        text = command.text.splitlines()[0] if command.is_file else command.text
        pattern = ".*".join(re.escape(part) for part in as_one_line(self.shown).split("*"))
        is_about = re.fullmatch(pattern, as_one_line(text)) is not None
        return is_about and bool(self.save_as) == command.is_file

    def as_run(self, command: Command) -> str:
        """What bash runs."""
        text = self.instead or ("true" if command.is_file else command.text)
        values = {**VALUES, **self.values}
        for word in sorted(values, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(word)}(?![A-Z])", lambda _, word=word: values[word], text)
        return f"{self.before}\n{text} {self.add}".strip()


README_AND_TUTORIALS = (
    Row("git clone <this repository>", "the address is the reader's", instead="git clone --quiet . ../again/nemo_brorl",
        once=True),
    Row("cd nemo_brorl", "every command starts there already", instead="cd ../nemo_brorl"),
    Row("make train", IS_SMALL, once=True, leaves=f"{RUN}/report.html",
        add=f'ARGS="{SMALL} trainer.max_steps=2 trainer.save_interval=1"'),
    Row("source .venv/bin/activate"),
    Row("make env"),
    Row("scripts/install.sh gpu", "needs GPUs and ten minutes", instead="scripts/install.sh cpu"),
    Row("python scripts/smollm2.py runs/smollm2/model", "93 MB from an index: the folder stands there already",
        before="mkdir -p runs/smollm2 && cp -r models/sums runs/smollm2/model"),
    Row("brorl try --config-name your_model policy.model=MODEL", IS_SMALL, add=ONE_OF_EACH),
    Row("brorl try --config-name your_model policy.model=runs/smollm2/model", "README tries it",
        values={"brorl try": "brorl doctor"}),
    Row("brorl train --config-name your_model policy.model=MODEL", IS_SMALL, add=STEP),
    Row("# my_reward.py", save_as="my_reward.py",
        instead="""python -c '
from my_reward import score
assert score({"answer": "5"}, "It is 5.") == (1.0, "right")
'"""),
    Row("PYTHONPATH=. brorl train --config-name your_model policy.model=MODEL data.source=jsonl *", IS_SMALL,
        add=STEP),
    Row("with Session(recipe=recipe, settings=line.overrides) as session:",
        "test_documents.py finds it in examples/rl_loop.py", save_as="loop.py", is_run=False),
    Row("brorl base --config-name smollm2_sft", IS_SMALL, add="sft.max_steps=1 sft.batch_size=4 sft.val_examples=4 "
        "sft.max_tokens=256 policy.data_parallel_size=1"),
    Row("brorl try --config-name smollm2_cpu", "README tries another recipe", values={"brorl try": "brorl doctor"}),
    Row("brorl plan --config-name smollm2_cpu"),
    Row("brorl train --config-name smollm2_cpu exp_manager.explicit_log_dir=runs/mine", IS_SMALL, add=STEP),
    Row("brorl evaluate --config-name smollm2_cpu *", IS_SMALL, add=f"{ONE_OF_EACH} {LITTLE}"),
    Row("brorl compare runs/mine/before runs/mine/after"),
)  # fmt: skip

CLUSTER = (
    Row("brorl plan --config-name brorl_64gpu policy.model=MODEL", values=GPU_MODEL),
    Row("brorl submit --config-name brorl_64gpu policy.model=MODEL", values=GPU_MODEL,
        leaves="runs/brorl_64gpu/launch/code/nemo_brorl/__init__.py"),
    Row("brorl status RUN"),
    Row("cp conf/site/example.yaml conf/site/mine.yaml"),
    Row("export BRORL_SITE=mine"),
    Row("FIRST=*"),
    Row("brorl render $FIRST --dry-run"),
    Row("brorl submit $FIRST", leaves="runs/shared/first/launch/code/nemo_brorl/__init__.py"),
    Row("brorl status /shared/runs/first --watch", until="run "),
    Row("brorl attach /shared/runs/first", "no job runs: its log is written here", until="a line of the log",
        before="echo a line of the log > runs/shared/first/logs/slurm-101.log"),
    Row("scancel --batch --signal=USR1 4711"),
    Row("brorl submit --config-name brorl_64gpu --run /shared/runs/brorl policy.model=MODEL", values=GPU_MODEL,
        leaves="runs/shared/brorl/launch/job.sbatch"),
    Row("SMALL=*"),
    Row("BRORL_DRIVER=true * slurm/brorl_64gpu.sh policy.model=MODEL", "the doctor of 64 GPUs", is_run=False),
    Row("srun -N1 --gpus-per-node=8 *", "tests of GPUs", is_run=False),
    Row("BRORL_RUN=* slurm/brorl_8gpu.sh *", NO_GPU, values=GPU_MODEL,
        instead="brorl plan --config-name brorl_8gpu policy.model=MODEL $SMALL rollouts.prompts_per_step=16"),
    Row("BRORL_RUN=* slurm/brorl_64gpu.sh policy.model=MODEL $SMALL *", NO_GPU, values=GPU_MODEL,
        instead="brorl plan --config-name brorl_64gpu policy.model=MODEL $SMALL rollouts.prompts_per_step=64"),
    Row("BRORL_RUN=* slurm/brorl_64gpu.sh policy.model=MODEL", "the planner has checked the recipe", is_run=False),
    Row("docker build -t brorl:gpu .", NO_CONTAINERS, is_run=False),
    Row("enroot *", NO_CONTAINERS, is_run=False),
    *(
        Row(f"sbatch slurm/{name}.sh [KEY=VALUE ...]", before=f"bash -n slurm/{name}.sh")
        for name in ("brorl_32b_256gpu", "brorl_64gpu", "brorl_7b_64gpu", "brorl_8gpu", "brorl_cpu")
    ),
)  # fmt: skip

HOW_TO = (
    Row("brorl train * rollouts.prompt_pool.name=*", IS_CHECKED, values=DOCTOR),
    Row("brorl train * 'trainer.observers=*", IS_CHECKED, values=DOCTOR),
    Row("brorl train * \"data.tasks=[{name: gcd, *", IS_CHECKED, values=DOCTOR),
    Row("brorl train * data.path=questions.jsonl", IS_CHECKED, values=DOCTOR),
    Row("brorl train * data.path=DATA/gsm8k *", IS_CHECKED, values=DOCTOR),
    Row("brorl train * data.environment=verify_and_retry *", IS_CHECKED, values=DOCTOR),
    Row("brorl train * data.source=environment data.environment=mastermind", IS_CHECKED, values=DOCTOR),
    Row("from brorl_graders import Action, Environment, Step", "an episode without a model", save_as="guess.py",
        instead="""python -c '
from guess import Action, GuessTheNumber
game = GuessTheNumber()
game.reset(game.task(seed=41), seed=0)
assert [game.step(Action(text)).terminated for text in ("7", "42")] == [False, True]
'"""),
    Row("# my_sums.py", save_as="my_sums.py", instead="""python -c '
from my_sums import questions, reward
assert reward({"answer": 4}, "1+1=2+2=4<answer>4</answer>") == 1.0
'"""),
    Row("# my_training.py", "its command is next", save_as="my_training.py", instead="test -f my_sums.py"),
    Row("python my_training.py", says="rewards [", leaves="runs/from_python/hf/model.safetensors"),
    Row("# my_loop.py", "its command is next", save_as="my_loop.py", instead="test -f my_sums.py"),
    Row("python my_loop.py", says="step 2 0.", leaves="runs/own_loop/weights/model.safetensors"),
    Row("from openai import AsyncOpenAI", save_as="my_agent.py", instead="PYTHONPATH=. python -c 'import my_agent'"),
    Row("PYTHONPATH=. brorl train * data.environment=agent *", IS_SMALL,
        add=f"{STEP} exp_manager.explicit_log_dir=runs/agent"),
    Row("pip install 'verifiers<0.4'", "the test has no network, and changes no package", is_run=False),
    Row("brorl train * data.source=environment data.environment=verifiers *", "the library is not installed",
        is_run=False),
    Row("brorl evaluate --config-name sums_cpu policy.model=runs/sums_cpu/hf *", IS_SMALL,
        add=f"{ONE_OF_EACH} {LITTLE}"),
    Row("brorl evaluate --config-name sums_cpu evaluation.checkpoint=*", IS_SMALL, add=f"{ONE_OF_EACH} {LITTLE}",
        values={"step_20": "step_2"}),
    Row("BENCHMARKS=DATA/benchmarks brorl evaluate --config-name evaluation policy.model=FOLDER *", IS_SMALL,
        add="trainer.gpus_per_node=0 policy.data_parallel_size=1 generation.num_engines=1 rewards.num_workers=1 "
        f"{LITTLE} evaluation.pass_at_k=[2] generation.max_model_len=512 data.max_prompt_tokens=256"),
    Row("brorl compare runs/best runs/last"),
    Row("brorl train * algorithm.kl.teacher=runs/sums_cpu/hf *", IS_SMALL, add=STEP, says="KL "),
    Row("brorl evaluate * policy.model=runs/student/hf *", IS_SMALL, add=f"{ONE_OF_EACH} {LITTLE}"),
    Row("# module my_pkg.advantages", save_as="my_pkg/advantages.py"),
    Row("PYTHONPATH=. brorl train * algorithm.advantage=my_pkg.advantages:capped *", IS_CHECKED, values=DOCTOR),
    Row("# module my_pkg.losses", save_as="my_pkg/losses.py"),
    Row("def shorter_is_better(rewards, scored, max_tokens, step):", "the loop to fork trains with all three functions",
        save_as="my_pkg/shaping.py", says="step 1: reward 0.",
        instead="PYTHONPATH=. python examples/rl_loop.py … algorithm.advantage=my_pkg.advantages:capped "
        '"algorithm.advantage_params={cap: 3}" algorithm.loss=my_pkg.losses:policy_gradient '
        f"rewards.shaping.function=my_pkg.shaping:shorter_is_better {STEP} "
        "exp_manager.explicit_log_dir=runs/extended"),
    Row("VLLM_PLUGINS= python -m vllm.entrypoints.openai.api_server *", "test_judge.py starts this server",
        is_run=False),
    Row("brorl report runs/sums_cpu", leaves=f"{RUN}/report.html"),
    Row("brorl report runs/n64 runs/n512 --output compare.html", leaves="compare.html"),
    Row("brorl watch runs/sums_cpu", until="http"),
    Row("brorl runs"),
    Row("brorl diff runs/n64 runs/n512"),
    Row("make env KIND=gpu", IS_INSTALLED, instead="make --dry-run env KIND=gpu"),
    Row("brorl * --config-name brorl_1gpu policy.model=/path/to/a/1.5B/checkpoint", NO_GPU,
        values={"/path/to/a/1.5B/checkpoint": GPU_MODEL["MODEL"], "brorl train": "brorl plan"}),
    Row("bench/gpu/run.sh*", "needs a GPU", add="--help"),
    Row("brorl replay RUN --step 40", "the run has two steps", values={"--step 40": "--step 2"}, says="bit-identical"),
    Row("brorl replay RUN --step 40 --set *", "the run has two steps", values={"--step 40": "--step 2"}),
    Row("brorl replay RUN --step 40 --through 45 *", "the run has two steps",
        values={"--step 40": "--step 1", "--through 45": "--through 2"}, says="steps from 2 on are off-policy"),
    Row("brorl rescore RUN --verifier math --steps 30-40", "the run has two steps", values={"30-40": "1-2"},
        says="wrong now"),
    Row("PYTHONPATH=. brorl rescore RUN --verifier my_code:score *"),
    Row("PYTHONPATH=. brorl rescore RUN 'rewards.verifiers=*"),
    Row("brorl export-sft RUN *", leaves=f"{RUN}/sft.jsonl"),
    Row("-- the outcome of the groups of each task", "DuckDB is no package of ours", save_as="query.sql", is_run=False),
    Row("PYTHONPATH=. brorl try --config-name your_model policy.model=MODEL data.path=questions.jsonl *",
        "README tries and trains", values={"brorl try": "brorl doctor"}),
    Row("PYTHONPATH=. brorl train * 'rewards.verifiers=*", IS_CHECKED, values=DOCTOR,
        before="""cat > my_reward.py <<'END'
from dataclasses import dataclass

@dataclass
class Params:
    wrong_number: float = 0.0

def score(payload, response, params: Params):
    return 1.0 if response.endswith(str(payload["answer"])) else params.wrong_number
END"""),
    Row("brorl sft data.path=chat.jsonl policy.model=MODEL", IS_SMALL, add=f"{SFT}lines"),
    Row("brorl sft data.path=chat.parquet *", IS_SMALL, add=f"{SFT}parquet"),
    Row("brorl sft data.path=RUN/sft.jsonl policy.model=MODEL", IS_SMALL, add=f"{SFT}exported"),
    Row("config: sums_cpu *", "a sweep trains for hours", save_as="sweep.yaml",
        instead="brorl sweep sweep.yaml --list"),
)  # fmt: skip

SETTINGS = tuple(
    Row(
        f"{section}:",
        save_as=f"shown/{section}.yaml",
        head="defaults: [sums_cpu, _self_]\n",
        instead=f"brorl train --config-path shown --config-name {section} --print-config",
    )
    for section in ("data", "evaluation", "rewards", "trainer")
)
TABLE = (*README_AND_TUTORIALS, *CLUSTER, *HOW_TO, *SETTINGS)


def rows_of(command: Command) -> list[Row]:
    """The rows about a command: one, if the table is right."""
    return [row for row in TABLE if row.matches(command)]
