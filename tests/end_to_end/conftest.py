"""What end-to-end tests share: Ray, and small random models that the policy's tests do not change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.model_factory import make_model
from tests.support.ray_cluster import end_ray, use_ray


@pytest.fixture(scope="session", autouse=True)
def ray_ends_with_the_tests() -> Iterator[None]:
    yield
    end_ray()


@pytest.fixture(scope="module")
def cluster() -> None:
    """Ray with two slots; it stays up for the next file."""
    use_ray(num_cpus=2)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all files, so that what one rank computes with it is computed once (`policy_ranks.outcomes_of`)."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same shape: whoever loads a checkpoint starts from it, so everything must come from the
    files."""
    return make_model(tmp_path_factory.mktemp("other"), seed=9)
