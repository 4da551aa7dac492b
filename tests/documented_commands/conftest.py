"""One used clone for all processes of pytest-xdist, and one process for all commands of a page."""

from __future__ import annotations

import os
import re

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.documented_commands.used_clone import UsedClone

# These pages write files of the same names into the clone, or go on where README ends.
FOLLOWS = {"docs/howto/reward_function.md": "README.md", "docs/tutorials/first_run.md": "README.md"}


class PageScheduling(LoadScopeScheduling):
    """Sends the commands of a page to one process, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        page = re.search(r"\[([\w/.]+):\d+ ", nodeid)
        return FOLLOWS.get(page.group(1), page.group(1)) if page else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> PageScheduling | None:
    """Take the place of xdist's groups, which these commands have without marks."""
    return PageScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> UsedClone:
    folder = tmp_path_factory.getbasetemp()
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    return UsedClone((folder.parent if is_shared else folder) / "used")
