"""The crypto service over mTLS: whom it serves, how it holds back, what it says of failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass

from hedgerow.api.crypto.v1 import cipher_pb2 as pb
from hedgerow.api.crypto.v1 import crypto_service_pb2 as service
from hedgerow.api.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.key_files import KeyFolder, SealingSecret
from hedgerow.crypto.errors import InputRefused, VaultRefused
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.rpc.crypto import CryptoServicer, RemoteVault
from hedgerow.services.rpc.crypto_calls import refused
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import ciphers
from tests.services.rpc.crypto_servers import SILO, CryptoServers, crypto_servers

METHODS = {m.name: m for m in service.DESCRIPTOR.services_by_name["CryptoService"].methods}


@pytest.fixture(scope="module")
def shared() -> Iterator[CryptoServers]:
    with crypto_servers() as servers:
        yield servers


@pytest.fixture
def servers(shared: CryptoServers) -> Iterator[CryptoServers]:
    yield shared
    shared.clear()


def vault(**options: Any) -> LocalVault:
    return LocalVault(engine=Engine(workers=1), insecure_test_keys=True, **options)


def stub_of(servers: CryptoServers, address: str, who: str = "silo/ash") -> Any:
    return crypto_service_pb2_grpc.CryptoServiceStub(servers.connected(address, who))  # type: ignore[arg-type]


def call(stub: Any, name: str, frames: list[Any]) -> list[Any]:
    """Call any method with these frames, and read its whole answer."""
    method = METHODS[name]
    request = iter(frames) if method.client_streaming else frames[0]
    answer = getattr(stub, name)(request, timeout=100)
    return list(answer) if method.server_streaming else [answer]


def refusal(run: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        run()
    return caught.value.code(), caught.value.details()


@pytest.mark.process
@pytest.mark.parametrize("who", ["silo/birch", "coordinator", "operator", "crypto/ash"])
def test_no_method_serves_anybody_but_the_silos_own_agent(servers: CryptoServers, who: str) -> None:
    address = servers.address_of(vault())
    stub = stub_of(servers, address, who)
    for name, method in METHODS.items():
        request = GetMessageClass(method.input_type)()
        code, said = refusal(lambda n=name, r=request: call(stub, n, [r]))
        assert code is grpc.StatusCode.PERMISSION_DENIED, name
        assert "serves ash, not birch" in said or "is for the role silo" in said, name


@pytest.mark.process
def test_a_caller_without_a_certificate_gets_no_connection(servers: CryptoServers) -> None:
    address = servers.address_of(vault())
    roots = servers.paths["silo/ash"].roots.read_bytes()
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel:
        stub = crypto_service_pb2_grpc.CryptoServiceStub(channel)
        code, _ = refusal(
            lambda: stub.DeleteKeys(service.DeleteKeysRequest(session="s"), timeout=60)
        )
    assert code is grpc.StatusCode.UNAVAILABLE


# --- frames that do not fit -----------------------------------------------------------------


def ints(*values: int, dtype: str = "<i8") -> bytes:
    return np.array(values, dtype).tobytes()


def ciphertexts(data: bytes = b"", part: int = 0) -> Any:
    return pb.CiphertextBlock(part=part, data=data)


INTEGERS = pb.EncryptIntegersHead(session="job")
BLIND = pb.BlindIdentifiersHead(session="job")
LAYOUT = pb.PairLayout(fraction_bits=4, largest_grad=16, largest_hess=16, n_rows=16, n_classes=1)
BAD_FRAMES: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "no frame": ("EncryptIntegers", [], "expected a head as the first frame"),
    "no head": ("EncryptIntegers", [{"values": ints(1)}], "expected a head as the first frame"),
    "two heads": ("EncryptIntegers", [{"head": INTEGERS}] * 2, "expected one head, and values"),
    "no value": ("EncryptIntegers", [{"head": INTEGERS}, {}], "expected one head, and values"),
    "truncated": (
        "EncryptIntegers",
        [{"head": INTEGERS}, {"values": ints(1)}, {"values": bytes(7)}],
        "values: expected numbers of 8 bytes, received 15 bytes",
    ),
    "no bins": (
        "HoldRows",
        [{"head": pb.HoldRowsHead(n_bins=[2], bin_bytes=3)}],
        "expected features with bins of 1 or 2 bytes",
    ),
    "no features": (
        "HoldRows",
        [{"head": pb.HoldRowsHead(bin_bytes=1)}],
        "received 0 features",
    ),
    "half a row": (
        "HoldRows",
        [{"head": pb.HoldRowsHead(n_bins=[2, 2], bin_bytes=1)}, {"bins": bytes(3)}],
        "expected rows of 2 bins, received 3 bins",
    ),
    "cells of other bins": (
        "HoldRows",
        [
            {"head": pb.HoldRowsHead(n_bins=[2], usual_bins=[0], sparse_rows=4)},
            {"cells": ints(0, 1, 1, dtype="<u4")},
            {"listed": ints(0, 1, dtype="<u4")},
        ],
        "expected 1 to",
    ),
    "half a row number": (
        "HoldRows",
        [
            {"head": pb.HoldRowsHead(n_bins=[2], usual_bins=[0], sparse_rows=4)},
            {"cells": ints(0, 1, dtype="<u4")},
            {"listed": bytes(6)},
        ],
        "listed: expected numbers of 4 bytes, received 6 bytes",
    ),
    "a part is missing": (
        "DecryptHistograms",
        [
            {"head": pb.DecryptHistogramsHead(layout=LAYOUT)},
            {"ciphertexts": ciphertexts(part=1)},
        ],
        "expected part 0 of ciphertexts, received 1",
    ),
    "two parts": (
        "DecryptIntegers",
        [
            {"head": pb.DecryptIntegersHead(session="job")},
            {"ciphertexts": ciphertexts()},
            {"ciphertexts": ciphertexts(part=1)},
        ],
        "expected one part of ciphertexts, received 2",
    ),
    "no layout": (
        "EncryptGradients",
        [
            {"head": pb.EncryptGradientsHead(session="job")},
            {"rows": pb.GradientRows()},
        ],
        "expected 1 to",
    ),
    "gradients without hessians": (
        "EncryptGradients",
        [
            {"head": pb.EncryptGradientsHead(session="job", layout=LAYOUT)},
            {"rows": pb.GradientRows(grad=bytes(8))},
        ],
        "expected rows of 8 bytes, received 8 bytes of grad and 0 of hess",
    ),
    "a node too many": (
        "SumBins",
        [
            {"head": pb.SumBinsHead(session="job", n_nodes=1)},
            {"rows": pb.NodeRows(node=1, rows=ints(0, dtype="<u4"))},
        ],
        "expected nodes below 1, received 1",
    ),
    "nodes without end": (
        "SumBins",
        [{"head": pb.SumBinsHead(session="job", n_nodes=1 << 31)}],
        "expected at most 1048576 nodes",
    ),
    "a sum is missing": (
        "SumBins",
        [
            {"head": pb.SumBinsHead(session="job", n_sums=2)},
            {"order": ints(0, dtype="<u4")},
        ],
        "expected 2 sums in order, received 1",
    ),
    "falling starts": (
        "SumSelected",
        [
            {"head": pb.SumSelectedHead(public_key=b"key")},
            {"index": ints(0, dtype="<u4")},
            {"starts": ints(1, 0)},
        ],
        "not a Paillier public key",
    ),
    "narrow points": (
        "BlindIdentifiers",
        [{"head": BLIND}, {"points": bytes(124)}],
        "32 bytes a point expected, received 124",
    ),
    "second batch": (
        "BlindIdentifiers",
        [{"head": BLIND}, {"points": b"\x09" * 32}, {"points": b"\x09" * 33}],
        "32 bytes a point expected, received 33",
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("case", BAD_FRAMES)
def test_frames_that_do_not_fit_are_refused_with_what_was_expected(
    servers: CryptoServers, case: str
) -> None:
    name, frames, expected = BAD_FRAMES[case]
    local = vault()
    local.create_cipher_key("job", 64)
    stub = stub_of(servers, servers.address_of(local))
    request = GetMessageClass(METHODS[name].input_type)
    code, said = refusal(lambda: call(stub, name, [request(**frame) for frame in frames]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert expected in said
    key = stub.CreateKeys(service.CreateKeysRequest(session="job", kind=service.KEY_KIND_PAILLIER))
    assert key.public_key == local.create_cipher_key("job"), "the process serves on"


def test_a_head_that_asks_for_a_million_nodes_makes_no_array_for_each() -> None:
    sent = [pb.NodeRows(node=1, rows=ints(n, dtype="<u4")) for n in (3, 5)]
    found = ciphers.nodes(sent, ciphers.MAX_NODES)
    assert len(found) == ciphers.MAX_NODES
    assert found[1].tolist() == [3, 5]
    assert len({id(rows) for rows in found}) == 2
    assert len(found[0]) == 0


@pytest.mark.process
def test_an_unknown_kind_of_key_is_refused(servers: CryptoServers) -> None:
    stub = stub_of(servers, servers.address_of(vault()))
    code, said = refusal(lambda: stub.CreateKeys(service.CreateKeysRequest(session="s", kind=9)))
    assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, "key kind 9 is not known")


# --- back-pressure --------------------------------------------------------------------------


def states(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["state"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "hedgerow_crypto_calls"
    }


class Frames:
    """A stream of points that counts how far it is read, and ends when it is released."""

    def __init__(self, session: str) -> None:
        self.n_read = 0
        self.begun, self.release = asyncio.Event(), asyncio.Event()
        self._head = pb.BlindIdentifiersHead(session=session)

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.n_read += 1
        self.begun.set()
        yield pb.BlindIdentifiersRequest(head=self._head)
        await self.release.wait()
        yield pb.BlindIdentifiersRequest(points=b"\x09" * 32)


async def test_a_call_without_a_place_waits_unread(servers: CryptoServers) -> None:
    metrics = Metrics()
    servicer = CryptoServicer(vault(), SILO, metrics, 1)

    async def answers(frames: Frames) -> list[Any]:
        return [one async for one in servicer.BlindIdentifiers(aiter(frames), servers.context())]

    first, second = Frames("first"), Frames("second")
    calls = [asyncio.create_task(answers(first)), asyncio.create_task(answers(second))]
    await first.begun.wait()
    assert states(metrics) == {"waiting": 1, "open": 1}
    key = service.CreateKeysRequest(session="s", kind=service.KEY_KIND_X25519)
    response = await servicer.CreateKeys(key, servers.context())
    assert response.public_key, "small calls are not held back"
    assert (first.n_read, second.n_read) == (1, 0)
    first.release.set()
    second.release.set()
    assert [len(found) for found in await asyncio.gather(*calls)] == [1, 1]
    assert states(metrics) == {"waiting": 0, "open": 0}


async def test_rows_are_read_as_their_answers_are_taken(servers: CryptoServers) -> None:
    n_frames, n_rows, n_read = 5, 16, 0
    local = vault()
    local.create_cipher_key("job", scheme="elgamal")
    servicer = CryptoServicer(local, SILO, Metrics(), 1)

    async def frames() -> AsyncIterator[Any]:
        nonlocal n_read
        yield pb.EncryptGradientsRequest(head=pb.EncryptGradientsHead(session="job", layout=LAYOUT))
        for _ in range(n_frames):
            n_read += 1
            ones = np.ones(n_rows).tobytes()
            yield pb.EncryptGradientsRequest(rows=pb.GradientRows(grad=ones, hess=ones))

    n_answers = 0
    async for answer in servicer.EncryptGradients(frames(), servers.context()):
        n_answers += 1
        assert n_read == n_answers
        assert len(answer.ciphertexts.data) == 96 * n_rows
    assert n_answers == n_frames


@pytest.mark.process
def test_operations_are_counted(servers: CryptoServers) -> None:
    metrics = Metrics()
    remote = servers.remote(vault(), metrics=metrics)
    public_key = remote.create_cipher_key("job", 64)
    values = remote.encrypt_integers("job", range(7))
    sums = remote.sum_selected(public_key, values, np.arange(7, dtype=np.uint32), np.arange(3))
    remote.decrypt_integers("job", sums)
    remote.blind_identifiers("psi", [b"a", b"b", b"c"])
    assert {
        op: metrics.registry.get_sample_value("hedgerow_ciphertexts_total", {"op": op})
        for op in ("encrypt", "sum", "decrypt", "blind")
    } == {"encrypt": 7, "sum": 2, "decrypt": 2, "blind": 3}


# --- failures -------------------------------------------------------------------------------


@pytest.mark.process
def test_what_fails_inside_is_told_without_its_message(
    servers: CryptoServers, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken(LocalVault):
        def encrypt_integers(self, session: str, values: Any) -> Any:
            raise RuntimeError(f"these were {list(values)}")

    remote = servers.remote(Broken(engine=Engine(workers=1)))
    with pytest.raises(FederationError, match="the crypto process failed: RuntimeError") as caught:
        remote.encrypt_integers("job", [424242])
    said = capfd.readouterr()
    assert "424242" not in str(caught.value) + said.out + said.err
    assert "RuntimeError" in said.out + said.err


@pytest.mark.process
def test_a_value_that_a_library_refuses_is_not_quoted(
    servers: CryptoServers, capfd: pytest.CaptureFixture[str]
) -> None:
    class Picky(LocalVault):
        def encrypt_integers(self, session: str, values: Any) -> Any:
            raise ValueError(f"cannot use {list(values)}")

    remote = servers.remote(Picky(engine=Engine(workers=1)))
    with pytest.raises(InputRefused, match="the request is unusable: ValueError") as caught:
        remote.encrypt_integers("job", [424242])
    said = capfd.readouterr()
    assert "424242" not in str(caught.value) + said.out + said.err


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_said(servers: CryptoServers, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file, no folder")
    folder = KeyFolder(tmp_path / "keys", SealingSecret("key file", bytes(64)))
    remote = servers.remote(vault(key_folder=folder))
    with pytest.raises(FederationError, match="the crypto process failed: Not a directory"):
        remote.create_cipher_key("job", 64)


def test_a_process_that_is_not_there_is_named(servers: CryptoServers) -> None:
    channel = servers.channel("127.0.0.1:1")
    with pytest.raises(FederationError, match=r"127\.0\.0\.1:1: no server listens there"):
        RemoteVault(lambda: channel, "127.0.0.1:1", patience_seconds=0).create_cipher_key("job")


@pytest.mark.process
def test_a_call_is_repeated_until_the_process_is_back(servers: CryptoServers) -> None:
    local = vault()
    address = servers.address_of(local)
    gone, back = servers.channel("127.0.0.1:1"), servers.channel(address)
    channels = [gone]
    remote = RemoteVault(lambda: channels[-1], address, 200, pause=lambda: channels.append(back))
    assert remote.create_cipher_key("job", 64) == local.create_cipher_key("job", 64)
    with pytest.raises(FederationError, match="no server listens there"):
        RemoteVault(lambda: gone, address, pause=lambda: channels.append(back)).blind_points(
            "run", bytes(32)
        )
    assert channels == [gone, back], "a new blinding secret would be another: no second call"


@pytest.mark.process
def test_refusals_keep_their_meaning_over_the_wire(servers: CryptoServers) -> None:
    stub = stub_of(servers, servers.address_of(vault()))
    with pytest.raises(grpc.RpcError) as caught:
        stub.EndorseSet(service.EndorseSetRequest(session="s", number=0, present=["a"]))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    found = refused(caught.value, "somewhere")
    assert isinstance(found, VaultRefused)
    assert "no key was made" in str(found)
