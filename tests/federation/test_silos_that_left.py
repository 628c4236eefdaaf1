"""A silo that has left is away for ever no more: forgotten by an admin, or with the roster."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import Unauthorised
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.certificates import Role
from hedgerow.services.rpc.errors import LeaseHeld, NotFound
from tests.adversary.people import People
from tests.federation.processes import Federation, wait_until, write_table

SILOS = ("s0", "s1", "s2")


@contextmanager
def three_silos(folder: Path, **coordinator: Any) -> Iterator[Federation]:
    people = People(folder / "pki")
    people.make("coordinator", Role.COORDINATOR, "coordinator", "127.0.0.1")
    people.make("operator", Role.OPERATOR, "ann")
    people.make("admin", Role.ADMIN, "root")
    tables = {}
    for k, silo in enumerate(SILOS):
        people.make(f"silo/{silo}", Role.SILO, silo)
        tables[silo] = write_table(folder / f"{silo}.parquet", 60, k)
    fed = Federation(folder, tables, make_certificates=False, lease_seconds=4.0, **coordinator)
    try:
        fed.start()
        wait_until(lambda: all(one.alive for one in fed.client.silos()), 60, "all are there")
        wait_until(lambda: named(fed) == [*SILOS], 60, "all are known")
        yield fed
    finally:
        fed.stop()


def away(fed: Federation) -> float:
    port = fed.ports["coordinator"]["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [one for one in lines if one.startswith('hedgerow_silos{state="away"}')]
    return float(line.split()[-1])


def named(fed: Federation) -> list[str]:
    return [one.name for one in fed.client.silos()]


def test_a_silo_that_has_left_is_forgotten_by_an_admin(tmp_path: Path) -> None:
    with three_silos(tmp_path) as fed:
        admin = client_for(fed.address, tmp_path / "pki/admin", None)
        with pytest.raises(LeaseHeld, match="s2 is connected"):
            admin.forget_silo("s2")
        fed.kill("agent-s2")
        wait_until(lambda: away(fed) == 1, 60, "s2 is away")
        with pytest.raises(Unauthorised):
            fed.client.forget_silo("s2")
        words = ("--coordinator", fed.address, "--identity", str(tmp_path / "pki/admin"))
        done = CliRunner().invoke(main, ["silos", "forget", "s2", *words])
        assert done.exit_code == 0, done.output
        assert named(fed) == ["s0", "s1"]
        wait_until(lambda: away(fed) == 0, 60, "it is away no more")
        with pytest.raises(NotFound, match="no silo s2"):
            admin.forget_silo("s2")
        assert "silo forgotten" in fed.log("coordinator")
        fed.start_agent("s2")
        wait_until(lambda: named(fed) == ["s0", "s1", "s2"], 60, "it is known again")


def test_a_silo_that_has_left_the_roster_is_gone(tmp_path: Path) -> None:
    with three_silos(tmp_path, silos=[*SILOS]) as fed:
        fed.kill("agent-s2")
        wait_until(lambda: away(fed) == 1, 60, "s2 is away")
        file = tmp_path / "coordinator.toml"
        file.write_text(file.read_text().replace('"s2"', "").replace(", ]", "]"))
        wait_until(lambda: away(fed) == 0, 60, "it is away no more")
        assert named(fed) == ["s0", "s1"]
