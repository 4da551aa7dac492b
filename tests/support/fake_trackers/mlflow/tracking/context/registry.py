"""Stand-in for mlflow.tracking.context.registry."""

from typing import Any


def resolve_tags(tags: dict[str, Any] | None = None) -> dict[str, Any]:
    return tags or {}
