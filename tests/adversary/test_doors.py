"""A silo that sends too much, and a stranger who sends nothing at all, over real servers."""

from __future__ import annotations

import itertools
import resource
import socket
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hedgerow.api.federation.v1 import federation_service_pb2, job_pb2, job_service_pb2
from hedgerow.boosting.errors import JobStopped, OfferRejected
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.server.database import CHECKSUM, checksum
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import channel_credentials
from hedgerow.services.rpc import channel, server
from hedgerow.services.rpc.doorman import (
    MAX_ALL_STRANGERS,
    MAX_STRANGERS,
    SLOW_SECONDS,
    YOUNG_SECONDS,
    ConnectionLimiter,
    Peer,
)
from hedgerow.services.rpc.federation import AttemptKey, FederationClient, Registration
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire.acceptance import Declined
from hedgerow.services.wire.bounds import (
    MAX_NUMBERS,
    MAX_OBJECTS,
    MAX_REASON,
    MAX_REQUEST_BYTES,
    check_request,
)
from hedgerow.services.wire.results import Outcome
from tests.adversary.people import People
from tests.federation.processes import Federation, federation, wait_until
from tests.services.rpc.test_crypto_process import CryptoProcess

JOB = """
strategy = "bagging"
seed = 3
label = "label"
min_silos = 1
silos = ["s0"]
[bagging]
rounds = 1
evaluate = "none"
[booster]
max_depth = 2
"""


@contextmanager
def coordinator(folder: Path, prefix: list[str] | None = None) -> Iterator[Federation]:
    with federation(folder, 1, start=False) as fed:
        fed.start_coordinator(prefix)
        yield fed


def agent_of(fed: Federation, silo: str, record: Any = lambda *_: None) -> FederationClient:
    paths = IdentityPaths.of(fed.folder / "pki/silo" / silo)
    dialled = channel.dial(fed.address, channel_credentials(paths), Metrics())
    return FederationClient(dialled, fed.address, record)


# --- attack 8: texts that are stored ---


def test_a_silo_s_long_reason_ends_no_call_of_an_operator(tmp_path: Path) -> None:
    with coordinator(tmp_path) as fed:
        silo = agent_of(fed, "s0")
        job_id = fed.submit(JOB)
        lease = silo.register(Registration("i", version("hedgerow"), (), 0)).lease_id
        assignment = silo.await_assignment(lease, (), lambda: False)
        assert assignment is not None
        with pytest.raises(OfferRejected, match="AcceptAssignmentRequest: 3900"):
            silo.accept(lease, assignment.key, Declined("x" * 3_900_000))
        with pytest.raises(JobStopped):
            silo.accept(lease, assignment.key, Declined("y" * 2_000_000))
        (known,) = fed.end(job_id).silos
        assert known.detail == "y" * (MAX_REASON - 1) + "…"
        assert [view.job_id for view in fed.client.list()] == [job_id]


def test_a_silo_s_reason_forges_no_line_of_an_operator(tmp_path: Path) -> None:
    forged = "no\nround   0/0  valid auc 0.99999\r\x1b[2K\u2028\u202esucceeded"
    with coordinator(tmp_path) as fed:
        silo = agent_of(fed, "s0")
        job_id = fed.submit(JOB)
        lease = silo.register(Registration("i", version("hedgerow"), (), 0)).lease_id
        assignment = silo.await_assignment(lease, (), lambda: False)
        assert assignment is not None
        with pytest.raises(JobStopped) as refused:
            silo.accept(lease, assignment.key, Declined(forged))
        assert str(refused.value).isprintable()
        view = fed.end(job_id)
        assert "\\n" in view.silos[0].detail
        for text in (view.detail, view.silos[0].detail):
            assert text.isprintable()
        words = ("--coordinator", fed.address, "--identity", str(fed.folder / "pki/operator"))
        for command in (["watch", job_id], ["jobs"]):
            shown = CliRunner().invoke(main, [*command, *words], color=True).output
            assert "0.99999" in shown
            assert "\x1b" not in shown
            assert not any(line.lstrip().startswith("round") for line in shown.splitlines())
        assert "\nround" not in fed.log("coordinator")
        with sqlite3.connect(tmp_path / "state.db") as database:
            (kept,) = database.execute("select detail from job_silos").fetchone()
            assert kept.isprintable()


def test_a_long_text_of_an_older_version_s_database_ends_no_call(tmp_path: Path) -> None:
    with coordinator(tmp_path) as fed:
        jobs = [fed.submit(JOB) for _ in range(3)]
        for job_id in jobs:
            fed.client.cancel(job_id)
        with sqlite3.connect(tmp_path / "state.db") as database:
            database.create_function(CHECKSUM, -1, checksum)
            database.execute("update jobs set detail = ?", ("x" * 4_500_000,))
            database.execute("update job_silos set detail = ?", ("x" * 4_500_000,))
        assert {view.job_id for view in fed.client.list()} == set(jobs)
        assert len(fed.client.get(jobs[0]).detail) == MAX_REASON


def test_a_page_of_jobs_is_as_short_as_a_reply_must_be(tmp_path: Path) -> None:
    with coordinator(tmp_path) as fed:
        names = [f"{k:060}" for k in range(20_000)]
        long = JOB.replace("min_silos", f"features = {names}\nmin_silos").replace("'", '"')
        jobs = [fed.submit(long) for _ in range(5)]
        assert sum(len(view.spec) for view in fed.client.list()) > 5 << 20
        assert {view.job_id for view in fed.client.list()} == set(jobs)


def requests() -> list[Descriptor]:
    """The requests of the control plane, silos' and operators'."""
    services = (
        federation_service_pb2.DESCRIPTOR.services_by_name["FederationService"],
        job_service_pb2.DESCRIPTOR.services_by_name["JobService"],
    )
    return [method.input_type for service in services for method in service.methods]


def oversized(kind: Descriptor, depth: int = 5) -> Iterator[tuple[str, Message]]:
    """Yield a message for each text, bytes and list in it, which is too long."""
    for field in kind.fields:
        message = GetMessageClass(kind)()
        whole = getattr(message, field.name)
        if field.is_repeated and field.message_type is None:
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                whole.extend(["x"] * (MAX_OBJECTS + 1))
            else:
                whole.extend([1] * (MAX_NUMBERS + 1))
            yield field.full_name, message
        if field.message_type is not None:
            for name, inner in oversized(field.message_type, depth - 1) if depth else ():
                message = GetMessageClass(kind)()
                own = getattr(message, field.name)
                if field.message_type.GetOptions().map_entry:
                    if name.startswith(field.message_type.full_name):
                        name = field.full_name
                    value = inner.value  # type: ignore[attr-defined]
                    if isinstance(value, Message):
                        own[inner.key].CopyFrom(value)  # type: ignore[attr-defined]
                    else:
                        own[inner.key] = value  # type: ignore[attr-defined]
                else:
                    (own.add() if field.is_repeated else own).CopyFrom(inner)
                yield name, message
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            message = GetMessageClass(kind)()
            n = MAX_REQUEST_BYTES - 1000
            long = "x" * n if field.type == FieldDescriptor.TYPE_STRING else b"x" * n
            if field.is_repeated:
                getattr(message, field.name).append(long)
            else:
                setattr(message, field.name, long)
            yield field.full_name, message


def test_every_text_and_list_of_every_request_is_bounded() -> None:
    tried = 0
    for kind in requests():
        for name, message in oversized(kind):
            tried += 1
            said = ""
            try:
                check_request(message, message.ByteSize())
            except OfferRejected as error:
                said = str(error)
            whole = f"at most {MAX_REQUEST_BYTES}" in said
            assert name in said or whole or message.ByteSize() < 3 * MAX_REASON, (
                f"{name} has any length"
            )
    assert tried > 40
    check_request(job_pb2.JobSpec(features=["a" * 200] * 9000), 1 << 20)


def test_texts_that_a_silo_may_not_send_are_refused_by_the_server(tmp_path: Path) -> None:
    with coordinator(tmp_path) as fed:
        silo = agent_of(fed, "s0")
        with pytest.raises(OfferRejected, match="instance_id: 5000 long"):
            silo.register(Registration("i" * 5000, version("hedgerow"), (), 0))
        for columns in (("x",) * 501, ("x" * 129,), ("two\nlines",)):
            lying = Registration("i", version("hedgerow"), (), 0, columns=columns)
            with pytest.raises(OfferRejected, match="s0: columns: expected at most 500 names"):
                silo.register(lying)
        lease = silo.register(Registration("i", version("hedgerow"), (), 0)).lease_id
        with pytest.raises(OfferRejected, match="job_id: 5000 long"):
            silo.report(lease, AttemptKey("j" * 5000, 1), Outcome())


# --- attack 12: connections that never shake hands ---


@contextmanager
def idle(port: int, number: int) -> Iterator[list[socket.socket]]:
    """Hold connections to a port that send nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        held = []
        for _ in range(number):
            connection = socket.create_connection(("127.0.0.1", port))
            held.append(stack.enter_context(connection))
        yield held
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def n_open(connections: list[socket.socket]) -> int:
    """How many have not been shut by the other end."""
    number = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            number += bool(connection.recv(1024))
        except BlockingIOError:
            number += 1
        except ConnectionResetError:
            continue
    return number


FEW_DESCRIPTORS = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh"]


def test_idle_connections_keep_no_operator_out(tmp_path: Path) -> None:
    with coordinator(tmp_path, FEW_DESCRIPTORS) as fed:
        port = fed.ports["coordinator"]["port"]
        with idle(port, 1300) as held:
            # An operator who was not there before.
            assert list(fed.client.list()) == []
            wait_until(lambda: n_open(held) <= MAX_STRANGERS, 60, "the oldest are shut")
            job_id = fed.submit(JOB)
            assert fed.client.cancel(job_id) == "CANCELLED"


def test_a_connection_that_never_shakes_hands_is_shut_though_there_is_room(tmp_path: Path) -> None:
    with coordinator(tmp_path) as fed, idle(fed.ports["coordinator"]["port"], 1) as held:
        wait_until(lambda: n_open(held) == 0, 60, "it is shut")


def test_idle_connections_keep_no_scraper_out(tmp_path: Path) -> None:
    with coordinator(tmp_path, FEW_DESCRIPTORS) as fed:
        port = fed.ports["coordinator"]["metrics_port"]
        with idle(port, 1300) as held:
            wait_until(lambda: n_open(held) <= MAX_STRANGERS, 60, "the oldest are shut")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                assert b"hedgerow_jobs" in answer.read()
            assert list(fed.client.list()) == []


def test_idle_connections_keep_no_agent_from_its_crypto_process(tmp_path: Path) -> None:
    crypto = CryptoProcess(tmp_path)
    vault = crypto.start()
    try:
        # Without a call its connection could be a stranger's; the agent would call again.
        assert len(vault.create_mask_key("job/0")) == 32
        with idle(crypto.ports["port"], 1300) as held:
            assert len(vault.create_mask_key("job/1")) == 32
            wait_until(lambda: n_open(held) <= MAX_STRANGERS, 60, "the oldest are shut")
            assert len(vault.create_mask_key("job/2")) == 32
    finally:
        crypto.stop(15)


@contextmanager
def accepted(number: int) -> Iterator[tuple[ConnectionLimiter, list[str], list[socket.socket]]]:
    """Connections that a server of this process has accepted, as gRPC names their other ends."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=number))
        port = listening.getsockname()[1]
        clients = stack.enter_context(idle(port, number))
        for _ in clients:
            stack.enter_context(listening.accept()[0])
        peers = [f"ipv4:127.0.0.1:{client.getsockname()[1]}" for client in clients]
        clock = itertools.count(step=YOUNG_SECONDS)
        yield ConnectionLimiter(port, now=lambda: next(clock)), peers, clients


def test_the_oldest_strangers_go_and_holders_of_certificates_stay() -> None:
    with accepted(MAX_STRANGERS + 30) as (doorman, peers, clients):
        for peer in peers[:10]:
            doorman.know(peer, "hedgerow://trial/silo/north")
        assert doorman.look() == 0, "those that have just come may be being set up"
        assert doorman.look() == 20
        wait_until(lambda: n_open(clients) == len(clients) - 20, 60, "they are shut")
        assert n_open(clients[:10]) == 10
        assert doorman.look() in (0, 20), "what is shut may not be closed by its owner yet"


def test_a_holder_s_own_connections_have_a_limit_too() -> None:
    with accepted(300) as (doorman, peers, clients):
        for peer in peers:
            doorman.know(peer, "hedgerow://trial/silo/north")
        assert doorman.look() == 300 - 256
        wait_until(lambda: n_open(clients) == 256, 60, "they are shut")
        assert MAX_ALL_STRANGERS > MAX_STRANGERS


class Listed(ConnectionLimiter):
    """A doorman of connections from many networks, of which a machine has one."""

    def __init__(self) -> None:
        self.clock, self.peers, self.shut = 0.0, list[Peer](), set[Peer]()
        super().__init__(now=lambda: self.clock)

    def _connections(self) -> dict[Peer, int]:
        return dict.fromkeys(self.peers, -1)

    def _shut(self, descriptor: int, peer: Peer) -> None:
        self.shut.add(peer)


@pytest.mark.parametrize("networks", [4096, 1])
def test_a_flood_displaces_itself_and_not_many_agents_of_one_site(networks: int) -> None:
    doorman = Listed()
    most = min(MAX_ALL_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    flood = [(f"2001:db8:0:{k % networks:x}::1", 1024 + k) for k in range(most)]
    if networks > 1:  # held for long, one from each network
        doorman.peers = list(flood)
        assert doorman.look() == 0
        doorman.clock += 100.0
    site = [("203.0.113.9", 2000 + k) for k in range(20)]
    doorman.peers = [*flood, *site]
    assert doorman.look() == len(site)
    assert doorman.shut < set(flood)


def test_a_descriptor_that_has_another_owner_is_another_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
        port = listening.getsockname()[1]
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)
        ]
        doorman, numbers = ConnectionLimiter(port), set()
        for client in clients:
            with listening.accept()[0] as served:
                assert doorman._connections() == {client.getsockname(): served.fileno()}
                numbers.add(served.fileno())
        assert len(numbers) == 1, "the system gives the lowest number that is free"


def test_behind_holders_that_wait_long_for_a_first_call_others_may_too() -> None:
    """A thousand agents that come back to one coordinator would otherwise never all get in."""
    doorman = Listed()
    doorman.peers = [("203.0.113.9", 2000 + k) for k in range(200)]
    assert doorman.look() == 0
    doorman.clock += YOUNG_SECONDS
    doorman.know("ipv4:203.0.113.9:2000", "hedgerow://trial/silo/north")
    assert doorman.look() == 0
    doorman.clock += SLOW_SECONDS
    assert doorman.look() == 199 - MAX_STRANGERS


def test_a_slow_machine_has_as_long_to_connect_as_the_server_waits() -> None:
    """It is the least time of an attempt, TCP and TLS together; 200 ms were too few."""
    tries = dict(channel.OPTIONS)["grpc.min_reconnect_backoff_ms"]
    assert tries >= dict(server.OPTIONS)["grpc.server_handshake_timeout_ms"] >= 10_000


def test_reflection_is_for_operators(tmp_path: Path) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    people = People(tmp_path / "pki")
    people.make("coordinator", Role.COORDINATOR, "coordinator", "127.0.0.1")
    for role in (Role.OPERATOR, Role.ADMIN, Role.VIEWER, Role.SILO):
        people.make(role.value, role, "x")
    with federation(tmp_path, 0, start=False, make_certificates=False) as fed:
        fed.start_coordinator()

        def services(name: str) -> list[reflection_pb2.ServerReflectionResponse]:
            paths = IdentityPaths.of(fed.folder / "pki" / name)
            with grpc.secure_channel(fed.address, channel_credentials(paths)) as dialled:
                stub = reflection_pb2_grpc.ServerReflectionStub(dialled)
                return list(stub.ServerReflectionInfo(iter([request]), timeout=120))

        for name in ("operator", "admin"):
            (shown,) = services(name)
            assert "JobService" in str(shown)
        for name in ("viewer", "silo"):
            with pytest.raises(grpc.RpcError, match="for the role operator"):
                services(name)
