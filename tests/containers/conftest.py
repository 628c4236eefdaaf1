"""What the container tests share; they are collected only where they are asked for by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.compose import TAG, Project, docker, eventually, project, run
from tests.containers.matrix import FILE, Matrix


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what is marked quick")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: part of make test-containers-quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick", default=False):
        left_out = [item for item in items if item.get_closest_marker("quick") is None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("quick")]


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
        for image in ("coordinator", "console", "agent", "agent-dask", "crypto", "demo"):
            docker("image", "inspect", f"hedgerow/{image}:{TAG}")
    except (OSError, AssertionError) as error:
        pytest.exit(f"container tests need a Docker engine and `make images`: {error}", 2)


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """What the faults did; a run of all tests is written to build/."""
    found = Matrix()
    yield found
    config = request.config
    if (
        config.args == ["tests/containers"]
        and not config.option.quick
        and not config.option.keyword
    ):
        FILE.parent.mkdir(exist_ok=True)
        record = found.record() | {"failed": request.session.testsfailed}
        FILE.write_text(json.dumps(record, indent=1) + "\n")


@pytest.fixture(scope="session")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A running federation for all faults; each test leaves it healthy."""
    services = ("prometheus", "agent-0", "agent-1", "agent-2", "crypto-0", "crypto-1", "crypto-2")
    with project(tmp_path_factory.mktemp("disturbed"), small_volumes=True) as made:
        made.up(*services, "coordinator")
        eventually(made.healthy, 120, "the federation is healthy")
        yield made
