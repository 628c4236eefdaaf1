"""The crypto service over mTLS: whom it serves, how it holds back, what it says of failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hedgerow.api.crypto.v1 import crypto_service_pb2 as pb
from hedgerow.api.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.engine import Engine
from hedgerow.crypto.errors import InputRefused, VaultRefused
from hedgerow.crypto.key_files import KeyFolder, SealingSecret
from hedgerow.crypto.local_vault import LocalVault
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.crypto_calls import refused
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire.arrays import encode_arrays
from tests.services.rpc.crypto_servers import CryptoServers, crypto_servers

METHODS = {m.name: m for m in pb.DESCRIPTOR.services_by_name["CryptoService"].methods}


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
    return crypto_service_pb2_grpc.CryptoServiceStub(servers.channel(address, who))  # type: ignore[arg-type]


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


@pytest.mark.parametrize("who", ["silo/birch", "coordinator", "operator", "crypto/ash"])
def test_no_method_serves_anybody_but_the_silos_own_agent(servers: CryptoServers, who: str) -> None:
    address = servers.address_of(vault())
    stub = stub_of(servers, address, who)
    for name, method in METHODS.items():
        request = getattr(pb, method.input_type.name)()
        code, said = refusal(lambda n=name, r=request: call(stub, n, [r]))
        assert code is grpc.StatusCode.PERMISSION_DENIED, name
        assert "serves ash, not birch" in said or "is for the role silo" in said, name


def test_a_caller_without_a_certificate_gets_no_connection(servers: CryptoServers) -> None:
    address = servers.address_of(vault())
    roots = servers.paths["silo/ash"].roots.read_bytes()
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(roots)) as channel:
        stub = crypto_service_pb2_grpc.CryptoServiceStub(channel)
        code, _ = refusal(lambda: stub.DeleteKeys(pb.DeleteKeysRequest(session="s"), timeout=60))
    assert code is grpc.StatusCode.UNAVAILABLE


# --- frames that do not fit -----------------------------------------------------------------


def block(
    name: str = "values",
    dtype: str = "<i8",
    shape: tuple[int, ...] = (1,),
    n: int = 8,
    fill: bytes = b"\0",
) -> Any:
    return tensor_pb2.TensorBlock(name=name, dtype=dtype, shape=shape, data=fill * n)


def arrays(**named: Any) -> list[Any]:
    return list(encode_arrays(named))


INTEGERS = pb.EncryptIntegersHead(session="job")
ROWS, NONE = np.zeros(3, "<u4"), np.zeros(0, "<u4")
BAD_FRAMES = {
    "no frame": ("EncryptIntegers", None, [], "expected a head, the stream was empty"),
    "no head": ("EncryptIntegers", None, [block()], "expected a head and then arrays"),
    "two heads": ("EncryptIntegers", INTEGERS, [INTEGERS], "expected a head and then arrays"),
    "truncated": ("EncryptIntegers", INTEGERS, [block(n=7)], "expected 8 bytes, 7 came"),
    "too long": ("EncryptIntegers", INTEGERS, [block(n=9)], "expected 8 bytes, 9 came"),
    "huge": ("EncryptIntegers", INTEGERS, [block(shape=(1 << 62,))], "are too many"),
    "odd type": ("EncryptIntegers", INTEGERS, [block(dtype="|O")], "element type not known"),
    "other type": ("EncryptIntegers", INTEGERS, [block(dtype="<f8")], "1-dimensional <i8"),
    "other name": ("EncryptIntegers", INTEGERS, [block("x")], "expected an array 'values'"),
    "twice": ("EncryptIntegers", INTEGERS, [block(), block()], "came twice"),
    "no bins": ("HoldRows", pb.HoldRowsHead(), arrays(**{"0": ROWS}), "expected bins of 8 or 16"),
    "no layout": (
        "EncryptGradients",
        pb.EncryptGradientsHead(session="job"),
        arrays(grad=np.zeros((1, 1)), hess=np.zeros((1, 1))),
        "expected 1 to",
    ),
    "starts": (
        "SumBins",
        pb.SumBinsHead(session="job"),
        arrays(rows=ROWS, starts=np.array([0, 2])),
        "from 0 to the number of rows",
    ),
    "falling starts": (
        "SumBins",
        pb.SumBinsHead(session="job"),
        arrays(rows=ROWS, starts=np.array([0, 5, 2, 3])),
        "starts that rise",
    ),
    "ends": (
        "BlindIdentifiers",
        pb.BlindIdentifiersHead(session="job"),
        arrays(ids=np.zeros(4, np.uint8), ends=np.array([3, 2, 4])),
        "rise to 4",
    ),
    "narrow points": (
        "BlindIdentifiers",
        pb.BlindIdentifiersHead(session="job"),
        arrays(points=np.zeros((4, 31), np.uint8)),
        "32 bytes a point expected, received 124",
    ),
    "second batch": (
        "BlindIdentifiers",
        pb.BlindIdentifiersHead(session="job"),
        [*arrays(points=np.full((1, 32), 9, np.uint8)), block("points", "|u1", (2, 32), 33)],
        "expected 64 bytes, 33 came",
    ),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_frames_that_do_not_fit_are_refused_with_what_was_expected(
    servers: CryptoServers, case: str
) -> None:
    name, head, rest, expected = BAD_FRAMES[case]
    local = vault()
    local.create_cipher_key("job", 64)
    stub = stub_of(servers, servers.address_of(local))
    request = getattr(pb, METHODS[name].input_type.name)
    frames = [request(head=head)] if head is not None else []
    frames += [request(head=f) if f is INTEGERS else request(array=f) for f in rest]
    code, said = refusal(lambda: call(stub, name, frames))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert expected in said
    key = stub.CreateKeys(pb.CreateKeysRequest(session="job", kind=pb.KEY_KIND_PAILLIER))
    assert key.public_key == local.create_cipher_key("job"), "the process serves on"


def test_an_unknown_kind_of_key_is_refused(servers: CryptoServers) -> None:
    stub = stub_of(servers, servers.address_of(vault()))
    code, said = refusal(lambda: stub.CreateKeys(pb.CreateKeysRequest(session="s", kind=9)))
    assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, "this kind of key is not known")


# --- back-pressure --------------------------------------------------------------------------


class Frames:
    """A long stream of points, which counts how far it was read."""

    def __init__(self, n_batches: int, rows: int = 16384) -> None:
        self.n_sent = 0
        self._n_batches = n_batches
        self._points = np.full((rows, 32), 9, np.uint8)

    def __iter__(self) -> Iterator[Any]:
        yield pb.BlindIdentifiersRequest(head=pb.BlindIdentifiersHead(session="s"))
        for _ in range(self._n_batches):
            self.n_sent += 1
            (one,) = encode_arrays({"points": self._points})
            yield pb.BlindIdentifiersRequest(array=one)

    def settled(self) -> int:
        """Wait until no more is read; return how many batches were."""
        before = -1
        while before != self.n_sent:
            before = self.n_sent
            time.sleep(0.3)
        return before


def states(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["state"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "hedgerow_crypto_calls"
    }


def test_a_call_without_a_place_waits_unread(servers: CryptoServers) -> None:
    metrics = Metrics()
    stub = stub_of(servers, servers.address_of(vault(), metrics, 1))
    release = threading.Event()

    def holding() -> Iterator[Any]:
        yield pb.BlindIdentifiersRequest(head=pb.BlindIdentifiersHead(session="first"))
        release.wait(100)
        yield pb.BlindIdentifiersRequest(array=block("points", "|u1", (1, 32), 32, b"\x09"))

    first = stub.BlindIdentifiers(holding(), timeout=200)
    while states(metrics).get("open") != 1:
        time.sleep(0.01)
    frames = Frames(200)
    second = stub.BlindIdentifiers(iter(frames), timeout=200)
    n_read = frames.settled()
    assert n_read < 60, "flow control holds the sender, far before its 200 batches"
    assert states(metrics) == {"waiting": 1, "open": 1}
    assert stub.CreateKeys(
        pb.CreateKeysRequest(session="s", kind=pb.KEY_KIND_X25519), timeout=100
    ).public_key, "small calls are not held back"
    second.cancel()
    release.set()
    assert len(list(first)) == 1
    while states(metrics) != {"waiting": 0, "open": 0}:
        time.sleep(0.01)


def test_a_caller_that_does_not_read_its_answers_is_not_worked_for(servers: CryptoServers) -> None:
    metrics, n_batches, n_rows = Metrics(), 80, 4096
    local = vault()
    local.create_cipher_key("job", scheme="elgamal")
    stub = stub_of(servers, servers.address_of(local, metrics))
    layout = pb.PairLayout(
        fraction_bits=0, largest_grad=1, largest_hess=1, n_rows=n_rows, n_classes=1
    )

    def frames() -> Iterator[Any]:
        head = pb.EncryptGradientsHead(session="job", layout=layout)
        yield pb.EncryptGradientsRequest(head=head)
        for _ in range(n_batches):
            for name in ("grad", "hess"):
                (one,) = encode_arrays({name: np.ones((n_rows, 1))})
                yield pb.EncryptGradientsRequest(array=one)

    def n_done() -> float:
        labels = {"op": "encrypt"}
        return metrics.registry.get_sample_value("hedgerow_ciphertexts_total", labels) or 0

    answers = stub.EncryptGradients(frames(), timeout=200)
    while not n_done():
        time.sleep(0.01)
    before = -1.0
    while before != n_done():
        before = n_done()
        time.sleep(0.3)
    assert before < n_batches * n_rows / 2
    assert sum(len(a.array.data) // 96 for a in answers) == n_batches * n_rows == n_done()


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


def test_refusals_keep_their_meaning_over_the_wire(servers: CryptoServers) -> None:
    stub = stub_of(servers, servers.address_of(vault()))
    with pytest.raises(grpc.RpcError) as caught:
        stub.EndorseSet(pb.EndorseSetRequest(session="s", number=0, present=["a"]))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    found = refused(caught.value, "somewhere")
    assert isinstance(found, VaultRefused)
    assert "no key was made" in str(found)
