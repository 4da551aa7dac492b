"""Write the answers to `--help`, `--help SECTION` and `--help all` from the declarations of the settings."""

from __future__ import annotations

import difflib
import re

from nemo_brorl.config.schema import Setting, SettingSection, groups, settings
from nemo_brorl.core.errors import ConfigError

EVERYTHING = "all"

# What a recipe needs, and the shipped recipes that need it.
RECIPES = {
    "a laptop": ("sums_cpu", "brorl_cpu", "prorl_n16_cpu", "agent_cpu", "smollm2_cpu", "smollm2_sft"),
    "your own model or files": ("your_model", "sft", "evaluation", "evaluation_brorl"),
    "one GPU of 80 GB": ("brorl_1gpu",),
    "8 GPUs": ("brorl_8gpu",),
    "64 GPUs": (
        "brorl_64gpu",
        "brorl_64gpu_fast",
        "brorl",
        "prorl_v1",
        "prorl_v2",
        "brorl_on_plateau",
        "brorl_five_domains",
        "brorl_7b",
        "brorl_7b_fp8",
        "brorl_qwen3_30b_a3b",
    ),
    "256 GPUs": ("brorl_32b",),
}

# Arguments of commands, as one would write them.
EXAMPLES = {
    "train": (
        "--config-name sums_cpu",
        "--config-name your_model policy.model=MODEL rollouts.num_per_prompt=64",
        "--config-name brorl_64gpu policy.model=MODEL --print-config",
    ),
    "try": (
        "--config-name sums_cpu",
        "--config-name your_model policy.model=MODEL",
        "--config-name your_model policy.model=MODEL data.source=jsonl data.path=questions.jsonl data.verifier=math",
    ),
    "evaluate": (
        "--config-name sums_cpu policy.model=runs/sums_cpu/hf",
        "--config-name your_model policy.model=MODEL evaluation.samples_per_prompt=16",
        "--config-name evaluation policy.model=MODEL evaluation.only=[aime24]",
    ),
    "sft": (
        "policy.model=MODEL data.path=conversations.jsonl",
        "policy.model=MODEL data.path=conversations.jsonl policy.optim.lr=1e-5",
        "policy.model=MODEL data.path=conversations.jsonl --print-config",
    ),
    "base": ("--config-name brorl_cpu", "--config-name agent_cpu", "--config-name smollm2_sft"),
    "convert": (
        "--config-name sums_cpu",
        "--config-name your_model --checkpoint runs/your_model/checkpoints/step_20 --output my_model",
        "--config-name your_model --push-to-hub USER/NAME --dry-run",
    ),
    "doctor": (
        "--config-name sums_cpu",
        "--config-name your_model policy.model=MODEL",
        "--config-name brorl_64gpu policy.model=MODEL --json doctor.json",
    ),
}

# Settings that most recipes give a value, in the order in which one meets them, each with the reason to change it.
SETTINGS_THAT_MATTER = {
    "policy.model": "train another model",
    "data.tasks": "choose generated tasks",
    "data.source": "use your own questions (docs/howto/data.md)",
    "data.path": "name the file of your own questions",
    "data.verifier": "choose a verifier (docs/reference/verifiers.md), or your own function",
    "data.max_prompt_tokens": "accept longer prompts",
    "rollouts.num_per_prompt": "choose N, the rollouts per prompt (docs/howto/choose_n.md)",
    "rollouts.prompts_per_step": "train on more prompts a step",
    "rollouts.chunk_size": "balance engines (smaller chunks), or share more prefix work (larger chunks)",
    "rollouts.max_response_tokens": "allow longer responses, if rollouts/truncated is high",
    "dynamic_sampling.fill": "decide when a batch is full (docs/howto/choose_n.md)",
    "policy.optim.lr": "adapt the learning rate to model and batch",
    "algorithm.num_mini_batches": "take more optimizer steps per training step",
    "policy.precision": "use bf16 instead of fp32",
    "policy.tensor_model_parallel_size": "split a model over GPUs of a node",
    "policy.tokens_per_micro_batch": "save memory, or use larger, faster micro-batches",
    "policy.recompute": "trade speed for activation memory",
    "generation.gpu_memory_utilization": "share a GPU between engine and policy",
    "generation.max_model_len": "limit prompt and response together",
    "evaluation.num_prompts": "validate faster, or with less noise",
    "evaluation.samples_per_prompt": "validate faster, or with less noise",
    "trainer.max_steps": "train longer",
    "trainer.val_interval": "validate more often",
    "trainer.save_interval": "save more often",
    "exp_manager.explicit_log_dir": "choose the run folder",
}


def help_page(command: str, description: str, default_config: str, topic: str) -> str:
    """Return the text that `brorl COMMAND --help [TOPIC]` prints.

    `topic` is "" for one screen, "all" for every setting, or a section or setting such as "policy.optim". Raises
    ConfigError for any other topic.
    """
    usage = _usage(command, description, default_config)
    if not topic:
        return "\n".join([*usage, *_one_screen(command)])
    if topic == EVERYTHING:
        return "\n".join([*usage, *_sections(groups())])
    if topic in settings():
        return _line(settings()[topic])
    chosen = [group for group in groups() if re.match(rf"{re.escape(topic)}(\.|\[|$)", group.path)]
    if not chosen:
        near = difflib.get_close_matches(topic, [EVERYTHING, *(group.path for group in groups()), *settings()], 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        sections = ", ".join(group.path for group in groups() if group.path and "." not in group.path)
        raise ConfigError(f"--help {topic}: this is no section.{hint} Pass one of {sections}, or {EVERYTHING}.")
    return "\n".join(_sections(chosen))


def _one_screen(command: str) -> list[str]:
    width = max(len(need) for need in RECIPES)
    recipes = [f"  {need:<{width}}  {', '.join(names)}" for need, names in RECIPES.items()]
    defaults = [f"{path}={settings()[path].default}" for path in SETTINGS_THAT_MATTER]
    longest = max(map(len, defaults))
    important = [
        f"  {default:<{longest}}  {reason}"
        for default, reason in zip(defaults, SETTINGS_THAT_MATTER.values(), strict=True)
    ]
    return [
        "examples:",
        *(f"  brorl {command} {arguments}" for arguments in EXAMPLES.get(command, ())),
        "",
        "recipes, by what they need:",
        *recipes,
        "",
        "settings that matter, with their defaults, and what to change each for:",
        *important,
        "",
        "--help SECTION shows the settings of a section, for example --help policy.optim.",
        f"--help {EVERYTHING} shows all {len(settings())}.",
    ]


def _usage(command: str, description: str, default_config: str) -> list[str]:
    return [
        f"usage: brorl {command} [--config-name NAME] [--config-path FOLDER] [KEY=VALUE ...]",
        "",
        description,
        "",
        f"  --config-name NAME    a recipe: a YAML of conf/ (default: {default_config})",
        "  --config-path FOLDER  look for the YAML there; it may build on the shipped ones",
        "  --print-config        print the resolved configuration and stop",
        "  KEY=VALUE             a setting, in Hydra's override syntax: rollouts.num_per_prompt=64",
        "",
    ]


def _sections(chosen: list[SettingSection] | tuple[SettingSection, ...]) -> list[str]:
    lines: list[str] = []
    for group in chosen:
        if group.settings:
            lines += [f"{group.path}: {group.summary}", *(_line(setting) for setting in group.settings), ""]
    return lines


def _line(setting: Setting) -> str:
    declared = setting.declared
    choices = f"[{declared.allowed}] " if declared.choices else ""
    return f"  {setting.path + '=' + setting.default:<52} {setting.annotation:<22} {choices}{declared.meaning}".rstrip()
