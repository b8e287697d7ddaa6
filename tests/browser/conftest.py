"""A headless Chromium, and servers of the built-in model for it. Without a Chromium the run fails.

They run alone: Playwright's event loop runs until the session ends, and other tests start loops of their own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import arbora
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from served import Served, serve
from watched_page import watched

BUILTIN = Path(arbora.__file__).parent / "runtime/model/builtin"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not path:
        pytest.exit(f"no Chromium: install one of {', '.join(NAMES)}, or name its program in CHROMIUM", 1)
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serve(BUILTIN, "--kv-memory", "32MiB") as server:
        yield server


@pytest.fixture(scope="session")
def guarded() -> Iterator[Served]:
    with serve(BUILTIN, "--kv-memory", "32MiB", "--api-key", "secret", key="secret") as server:
        yield server


@pytest.fixture
def faults() -> list[str]:
    """Errors and refused loads that the page has reported. A test fails if any are left."""
    return []


@pytest.fixture
def page(browser: Browser, server: Served, faults: list[str]) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = watched(context.new_page(), faults)
        page.goto(server.url)
        yield page
    assert faults == []
