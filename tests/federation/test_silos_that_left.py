"""Silos that are away: forgotten by an admin, gone with the roster, or refused by name."""

from __future__ import annotations

import time
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
def three_silos(
    folder: Path, people: People | None = None, **coordinator: Any
) -> Iterator[Federation]:
    people = people or People(folder / "pki")
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


JOB = """
strategy = "bagging"
seed = 5
min_silos = 3
[bagging]
rounds = 100000
[booster]
max_depth = 2
"""


def test_an_agent_whose_certificate_ends_stays_and_is_named_until_it_is_renewed(
    tmp_path: Path,
) -> None:
    people = People(tmp_path / "pki")
    with three_silos(tmp_path, people) as fed:
        people.make("silo/s2", Role.SILO, "s2", seconds=60.0)
        job_id = fed.submit(JOB)
        named_by = "certificate of silo s2 has expired"

        def detail() -> str:
            return next((o.detail for o in fed.client.get(job_id).silos if o.name == "s2"), "")

        wait_until(lambda: named_by in detail(), 120, "operators are told why")
        assert "no sign of life" not in detail()
        assert named_by in fed.log("coordinator")
        # Its metrics stay, by which HedgerowCertificateEnded goes on.
        port = fed.ports["agent-s2"]["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        (ends,) = [one for one in lines if one.startswith("hedgerow_certificate_expiry_seconds ")]
        assert 0 < float(ends.split()[1]) < time.time()
        assert fed.log("agent-s2").count("certificate ended") == 1
        people.make("silo/s2", Role.SILO, "s2")
        wait_until(lambda: all(one.alive for one in fed.client.silos()), 60, "it is back")
        assert fed.alive("agent-s2")
        fed.client.cancel(job_id)
