"""Write docs/reference/models.md from the table of families: `python scripts/families_page.py` (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.core.families import FAMILIES, LACKING, LLAMA_NORMS, Family

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "models.md"
HEAD = """# Models

Made from the table in `nemo_brorl/core/families.py` by `make docs`; a test asserts that it is current.

`policy.model` is a Hugging Face model of one of these families. `model_type` is a key of its `config.json`. For every
family log-probs are compared with those of transformers under tensor, sequence and pipeline parallelism.
"""
TRAITS = {
    "has_qk_norm": "norms of each query and key head",
    "has_joint_qk_norm": "one norm over all query heads and one over all key heads",
    "has_experts": "mixture of experts",
    "has_fused_mlp": "one tensor for gate and up projection",
    "has_interleaved_rope": "partial, interleaved rotation",
    "has_multipliers": "multipliers of embeddings, sublayers, attention and logits",
    "has_layers_without_rope": "layers without rotation (`no_rope_layers`)",
}


def traits(family: Family) -> str:
    """Return what a family's layers have that Llama's have not."""
    found = []
    if family.has_qkv_bias:
        key = f" (`{family.has_qkv_bias}`)" if isinstance(family.has_qkv_bias, str) else ""
        found.append(f"biases of queries, keys and values{key}")
    if family.norms != LLAMA_NORMS:
        place = "before and behind" if family.norms.before_attention else "behind"
        found.append(f"norms {place} attention and MLP")
    found += [text for name, text in TRAITS.items() if getattr(family, name)]
    return ", ".join(found) or "–"


def refused(family: Family) -> str:
    """Return the keys of config.json with which a model of a family is refused."""
    window = f"`{family.window_switch}=true`" if family.window_switch else "a number in `sliding_window`"
    return window if family.has_qkv_bias else f"{window}, `attention_bias=true`"


def page() -> str:
    """Return the text of docs/reference/models.md."""
    lines = [HEAD, "| `model_type` | models | beside what Llama has | refused |", "|---|---|---|---|"]
    for name, family in FAMILIES.items():
        lines.append(f"| `{name}` | {family.models} | {traits(family)} | {refused(family)} |")
    lines += ["", "## Other families", "", "`brorl try` refuses them and says what is missing.", ""]
    lines += ["| `model_type` | missing | nearest family |", "|---|---|---|"]
    lines += [f"| `{other}` | {part} | `{nearest}` |" for other, (part, nearest) in sorted(LACKING.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
