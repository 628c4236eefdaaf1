from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from hedgerow.api.federation.v1 import federation_service_pb2_grpc
from hedgerow.boosting.exchange import Silo
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import FileIdentity, Identities
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.channel import Channels
from hedgerow.services.rpc.federation import FederationClient
from hedgerow.services.rpc.metering import MeteredChannel, Metrics
from tests.federation.processes import federation, wait_until


class Silent(federation_service_pb2_grpc.FederationServiceServicer):
    """Never answers who waits for an assignment."""

    async def AwaitAssignment(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.process
async def test_an_agent_that_ends_does_not_wait_for_an_assignment() -> None:
    server = grpc.aio.server()
    federation_service_pb2_grpc.add_FederationServiceServicer_to_server(Silent(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        with grpc.insecure_channel(address) as channel:
            client = FederationClient(
                MeteredChannel(channel, Metrics()),
                address,
                lambda method, request, job_id, told: None,
            )
            answer = await asyncio.to_thread(client.await_assignment, "lease", (), lambda: True)
    finally:
        await server.stop(0)
    assert answer is None


@pytest.mark.process
def test_an_agent_that_is_terminated_ends_well(tmp_path: Path) -> None:
    with federation(tmp_path, 1) as running:
        wait_until(lambda: "registered" in running.log("agent-s0"), 30, "the agent has its lease")
        running.kill("agent-s0", signal.SIGTERM)
        assert running.processes["agent-s0"].returncode == 0


def test_renewed_certificate_signs_without_a_restart(tmp_path: Path) -> None:
    made = throwaway(tmp_path / "old", ["s"], time.time())["silo/s"]
    identities = Identities(made, RevokedCertificates(made))
    before = identities()
    assert identities() is before
    renewed = throwaway(tmp_path / "new", ["s"], time.time())["silo/s"]
    for name in ("tls.key", "tls.crt", "ca.crt"):
        (made.key.parent / name).write_bytes((renewed.key.parent / name).read_bytes())
    after = identities()
    assert after.certificate == renewed.certificate.read_bytes()
    FileIdentity(renewed).verify(Silo("s"), after.certificate, b"m", after.sign(b"m"))


def test_half_replaced_identity_leaves_the_one_before(tmp_path: Path) -> None:
    made = throwaway(tmp_path / "old", ["s"], time.time())["silo/s"]
    paths = IdentityPaths.of(made.key.parent)
    identities = Identities(paths, RevokedCertificates(paths))
    before = identities().certificate
    renewed = throwaway(tmp_path / "new", ["s"], time.time())["silo/s"]
    made.certificate.write_bytes(renewed.certificate.read_bytes())
    assert identities().certificate == before


def test_half_replaced_identity_leaves_the_channel_and_the_whole_one_makes_another(
    tmp_path: Path,
) -> None:
    made = throwaway(tmp_path / "old", ["s"], time.time())["silo/s"]
    channels = Channels("127.0.0.1:1", made, Metrics())
    before = channels()
    renewed = throwaway(tmp_path / "new", ["s"], time.time())["silo/s"]
    made.key.write_bytes(renewed.key.read_bytes())
    assert channels() is before
    for name in ("tls.crt", "ca.crt"):
        (made.key.parent / name).write_bytes((renewed.key.parent / name).read_bytes())
    after = channels()
    assert after is not before
    assert channels() is after
    before.close()
    after.close()
