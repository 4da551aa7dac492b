"""Which language a text is in, by py3langid: offline, the same answer every time, about 140 languages by their ISO 639
codes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

UNLIKELY = 0.1  # of the likeliest language's probability: below it, a language is not the text's. A few words fit many

UNTOLD = 0.02  # a probability of the likeliest language below it is no more than that of a text without letters


def load() -> None:
    """Read the model (0.5 s)."""
    _identifier()


def known_languages() -> set[str]:
    """Codes that `is_in_language` can tell apart."""
    return set(_identifier().nb_classes)


def is_in_language(text: str, code: str) -> bool:
    """Whether a text may be in the language `code` (`zh-cn` counts as `zh`): it is the likeliest one, or not much less
    likely."""
    lower = text.lower()  # in capitals, known letter sequences are rare
    ranked = _identifier().rank(lower)
    _, highest = ranked[0]
    language, _, _ = code.lower().partition("-")
    probability = dict(ranked).get(language, 0.0)
    return float(probability) >= UNLIKELY * float(highest)


def is_told(text: str) -> bool:
    """Whether a text has a sequence of letters that speaks for any language: "a" and "ok" have none."""
    _, highest = _identifier().rank(text.lower())[0]
    return float(highest) >= UNTOLD


def is_likeliest(text: str, code: str) -> bool:
    """Whether a text is more likely in the language `code` than in any other: a word or two often are not."""
    language, _ = _identifier().classify(text.lower())
    return bool(language == code)


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
