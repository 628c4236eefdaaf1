"""What ``make unit`` selects starts nothing: each way to do so is refused to a unit test."""

from __future__ import annotations

import json
import multiprocessing
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
import yaml
from loky import get_reusable_executor

from tests import alone
from tests.alone import NotAlone
from tests.federation import forked

ROOT = Path(__file__).resolve().parents[1]
TRUE = ("/bin/sh", "-c", "true")


def by_multiprocessing(kind: str) -> None:
    multiprocessing.get_context(kind).Process(target=print).start()


async def listen_asynchronously() -> None:
    grpc.aio.server()


STARTS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run(TRUE),
    "os.system": lambda: os.system("true"),
    "os.fork": os.fork,
    "os.posix_spawn": lambda: os.posix_spawn(TRUE[0], TRUE, {}),
    "os.spawnv": lambda: os.spawnv(os.P_WAIT, TRUE[0], TRUE),
    "os.execv": lambda: os.execv(TRUE[0], TRUE),
    "pty": lambda: pty.spawn(TRUE),
    "fork": lambda: by_multiprocessing("fork"),
    "spawn": lambda: by_multiprocessing("spawn"),
    "loky": lambda: get_reusable_executor(1).submit(abs, -1).result(),
    "fork server": lambda: forked.hedgerow("--version"),
    "listen": lambda: socket.create_server(("127.0.0.1", 0)),
    "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    "grpc": lambda: grpc.server(None),
}


@pytest.mark.parametrize("way", STARTS)
def test_a_unit_test_starts_nothing(way: str) -> None:
    with alone.alone(), pytest.raises(NotAlone, match=r"mark it with pytest\.mark\.process"):
        STARTS[way]()


async def test_a_unit_test_serves_nothing() -> None:
    with alone.alone(), pytest.raises(NotAlone):
        await listen_asynchronously()


def test_a_test_that_is_marked_may() -> None:
    with alone.alone(enabled=False):
        assert subprocess.run(TRUE).returncode == 0


def test_make_unit_selects_the_tests_that_are_refused_these() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [line] = re.findall(r"^unit:.*\n\t(.*)", makefile, re.MULTILINE)
    words = shlex.split(line)
    assert words[words.index("-m", words.index("pytest")) + 1] == alone.SELECTED
    [packages] = re.findall(r"^PACKAGE \?= (.*)", makefile, re.MULTILINE)
    assert sorted(packages.split()) == sorted(alone.PACKAGES)
    assert words[-1] == "tests/,$(PACKAGE))"


CONFTEST = """
from pathlib import Path
from tests import alone
from tests.conftest import pytest_runtest_protocol

alone.FOLDERS = (Path(__file__).parent,)
alone.watch()
"""
UNIT = """
import subprocess, sys
import pytest

def test_a():
    subprocess.run([sys.executable, "-c", ""])

@pytest.mark.process
def test_b():
    subprocess.run([sys.executable, "-c", ""])

def test_c():
    sys.version
"""


def test_a_process_fails_its_test_and_a_marked_one_is_not_selected(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(UNIT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "pyproject.toml",
         "-m", alone.SELECTED, tmp_path],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 failed, 1 passed, 1 deselected" in done.stdout
    assert "NotAlone: subprocess.Popen" in done.stdout


def test_the_folders_of_unit_tests_are_there() -> None:
    assert all(folder.is_dir() for folder in alone.FOLDERS)


def test_ci_has_a_section_of_it_which_goes_first() -> None:
    done = subprocess.run([ROOT / ".ci/run", "--list"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "unit"


def test_the_dev_container_is_the_machine_of_the_forges_jobs() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert {job["container"] for job in jobs.values() if "container" in job} == {container["image"]}
    assert (
        alone.SELECTED
        in container["customizations"]["vscode"]["settings"]["python.testing.pytestArgs"]
    )
    assert jobs["section"]["needs"] == "unit"
    assert ".ci/run unit" in [step.get("run") for step in jobs["unit"]["steps"]]
