"""Chromium without a window, driven by Playwright: for tests of pages, pictures of them, and how fast they open."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
WINDOW = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


def missing() -> str | None:
    """What a browser lacks here, None where there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    if _program() is None:
        return f"no browser: none of {', '.join(NAMES)} is installed"
    return None


@contextmanager
def open_browser() -> Iterator[Any]:
    """Playwright's browser."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_program(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def _program() -> str | None:
    found = [path for name in NAMES if (path := shutil.which(name))]
    return found[0] if found else None
