"""What the container tests share; they are collected only where they are asked for by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.compose import ROOT, Project, docker, eventually, project, run
from tests.containers.matrix import Matrix


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these tests to ``make test-containers``: the others need no engine."""
    if any("containers" in argument for argument in config.args):
        return None
    return True


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Fail loudly where there is no engine or an image is missing."""
    try:
        docker("info")
        run("docker", "compose", "version")
        for image in ("coordinator", "agent", "crypto", "demo"):
            docker("image", "inspect", f"hedgerow/{image}:dev")
    except (OSError, AssertionError) as error:
        pytest.exit(f"container tests need a Docker engine and `make images`: {error}", 2)


@pytest.fixture(scope="session")
def matrix() -> Iterator[Matrix]:
    """Recovery times, written to build/ when all tests are through."""
    found = Matrix()
    yield found
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    (folder / "fault-matrix.json").write_text(json.dumps(found.rows(), indent=1) + "\n")
    (folder / "fault-matrix.md").write_text(found.table())


@pytest.fixture(scope="session")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A running federation for all faults; each test leaves it healthy."""
    services = ("prometheus", "agent-0", "agent-1", "agent-2", "crypto-0", "crypto-1", "crypto-2")
    with project(tmp_path_factory.mktemp("disturbed"), small_volumes=True) as made:
        made.up(*services, "coordinator")
        eventually(made.healthy, 120, "the federation is healthy")
        yield made
