"""A browser for all pages that are tested in one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "no chromium: deploy/ci/install-services installs it"
    with sync_playwright() as playwright:
        # Tests in containers run as root, where Chromium has no sandbox of its own.
        started = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()
