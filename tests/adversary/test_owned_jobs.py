"""Whose job is whose, and a database in a thief's hands, with processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.errors import OfferRejected, SignatureInvalid
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.records import Records
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.coordinator.server.database import CHECKSUM, checksum
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import FileIdentity, channel_credentials
from hedgerow.services.process import ledgers
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.wire.signed_job import (
    SignedJob,
    sign_job,
)
from tests.adversary.people import People
from tests.adversary.test_signed_jobs import ALL, altered, spec
from tests.federation.processes import Federation, wait_until, write_table


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("jobs")
    people = People(folder / "pki")
    people.make("coordinator", Role.COORDINATOR, "coordinator", "127.0.0.1")
    for name in ("ann", "bob"):
        people.make(name, Role.OPERATOR, name)
    people.make("root", Role.ADMIN, "root")
    tables = {}
    for k, silo in enumerate(ALL[:2]):
        people.make(f"silo/{silo}", Role.SILO, silo)
        tables[silo] = write_table(folder / f"{silo}.parquet", 200, k)
    (folder / "pki/operator").symlink_to(folder / "pki/ann")
    made = Federation(folder, tables, make_certificates=False)
    try:
        yield made.start()
    finally:
        made.stop()


def test_a_job_is_its_operators_alone_and_an_admins(fed: Federation) -> None:
    ann, bob, root = (
        client_for(fed.address, fed.folder / "pki" / n, None) for n in ("ann", "bob", "root")
    )
    job_id = ann.create(spec(ALL[:2], rounds=2000))
    for foreign in (bob.get, bob.cancel, bob.download, lambda j: next(bob.watch(j))):
        with pytest.raises(NotFound, match=f"operator bob has no job {job_id}"):
            foreign(job_id)
    with pytest.raises(NotFound, match="operator bob has no job nothing"):
        bob.get("nothing")
    signed = sign_job(spec(ALL[:2]), FileIdentity(IdentityPaths.of(fed.folder / "pki/ann")))
    with pytest.raises(SignatureInvalid, match="operator ann signed the job, not bob"):
        bob.submit(signed)
    mine = bob.create(spec(ALL[:2], rounds=2))
    assert [view.job_id for view in bob.list()] == [mine]
    assert {view.job_id for view in root.list()} == {mine, job_id}
    assert root.get(job_id).operator == "ann"
    assert root.cancel(job_id) == "CANCELLED"
    assert ann.get(job_id).state == "CANCELLED"


def test_a_job_that_is_submitted_again_stays_one(fed: Federation) -> None:
    signed = sign_job(spec(ALL[:2]), FileIdentity(IdentityPaths.of(fed.folder / "pki/ann")))
    first = fed.client.submit(signed)
    fed.end(first)
    assert fed.client.submit(signed) == first
    assert fed.client.get(first).attempt == 1


def test_reflection_is_for_admins_too(fed: Federation) -> None:
    credentials = channel_credentials(IdentityPaths.of(fed.folder / "pki/root"))
    with grpc.secure_channel(fed.address, credentials) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([request]))
    names = [one.name for one in answer.list_services_response.service]
    assert "hedgerow.api.federation.v1.JobService" in names


def test_a_job_that_fills_the_coordinators_memory_is_refused(fed: Federation) -> None:
    many = job_pb2.JobSpec.FromString(spec(ALL[:2]))
    many.features.extend([""] * (1 << 17) + ["x"])
    with pytest.raises(OfferRejected, match="more than 131072 elements"):
        fed.client.create(many.SerializeToString())


def rewrite(fed: Federation, sql: str, *values: object) -> None:
    """Change the database of a coordinator, as its thief would, and start it again."""
    fed.kill("coordinator")
    with sqlite3.connect(fed.folder / "state.db") as database:
        database.create_function(CHECKSUM, -1, checksum)
        assert database.execute(sql, values).rowcount == 1
    database.close()
    fed.start_coordinator()


def entries(fed: Federation, silo: str) -> int:
    """Return how many payloads a silo has sent."""
    found = ledgers.read(fed.folder / f"state-agent-{silo}/ledger.jsonl")
    return sum(not entry.is_control for entry in found)


def test_silos_decline_a_job_that_is_repeated_or_changed_in_the_coordinators_database(
    fed: Federation,
) -> None:
    job_id = fed.client.create(spec(ALL[:2]))
    assert fed.end(job_id).state == "SUCCEEDED"
    for silo in ALL[:2]:
        state = fed.folder / f"state-agent-{silo}"
        records = Records(
            state / "accepted", state / "turns/accepted", (state / "records.key").read_bytes()
        )
        wait_until(
            lambda records=records: job_id not in ReplayGuard(records).open,  # type: ignore[misc]
            60,
            "the silo knows the end",
        )
    sent = {silo: entries(fed, silo) for silo in ALL[:2]}
    rewrite(fed, "update jobs set state = 'PENDING', ended = 0 where job_id = ?", job_id)
    view = fed.end(job_id)
    assert view.state == "FAILED"
    # The job ends with the first that declines: two silos cannot come together any more.
    assert {s.detail for s in view.silos} - {""} == {f"job {job_id} has ended; it is not repeated"}

    with sqlite3.connect(fed.folder / "state.db") as database:
        (kept,) = database.execute("select signed from jobs where job_id = ?", (job_id,)).fetchone()
    database.close()
    changed = altered(SignedJob.parse(kept), spec=spec(ALL[:2], min_silos=1, rounds=7))
    rewrite(
        fed,
        "update jobs set state = 'PENDING', ended = 0, signed = ? where job_id = ?",
        changed.serialise(),
        job_id,
    )
    view = fed.end(job_id)
    assert view.state == "FAILED"
    assert {s.detail for s in view.silos} - {""} == {
        "the signature is not that of the job's operator"
    }
    assert sent == {silo: entries(fed, silo) for silo in ALL[:2]}
