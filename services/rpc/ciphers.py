"""The ciphers' half of the crypto service: Paillier, EC-ElGamal, blinding; both sides.

Numbers travel as bytes, in frames of about 1 MiB. Rows to encrypt and identifiers to blind are
answered frame by frame, so that neither side holds more than a few; other calls are read whole.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from hedgerow.api.crypto.v1 import cipher_pb2 as pb
from hedgerow.api.crypto.v1 import crypto_service_pb2 as service
from hedgerow.api.crypto.v1.crypto_service_pb2_grpc import CryptoServiceStub
from hedgerow.boosting.errors import Unreachable
from hedgerow.crypto.ciphers.ciphertext_histogram import check_bins
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import Bins, Buffer, Ciphertexts, PairSums, Scheme
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.errors import InputRefused
from hedgerow.crypto.vault.blinding import POINT_BYTES
from hedgerow.crypto.vault.interface import CipherVault
from hedgerow.services.process import tracing
from hedgerow.services.rpc.crypto_calls import CallLimits, refused
from hedgerow.services.rpc.metering import MeteredChannel, Metrics
from hedgerow.services.wire import ciphers as wire
from hedgerow.services.wire.ciphers import Received

OPERATIONS = ("encrypt", "load", "sum", "decrypt", "blind")
"""What is counted of ciphertexts."""
MAX_REQUEST_BYTES = 1 << 31
"""Most bytes of the frames of a call that is read whole."""
LEAST_FRAME_BYTES = 64
"""What an empty frame counts."""
ROWS_A_FRAME = 4096
IDS_A_FRAME = 16384

KINDS: dict[Scheme, service.KeyKind.ValueType] = {
    "paillier": service.KEY_KIND_PAILLIER,
    "elgamal": service.KEY_KIND_ELGAMAL,
}

log = structlog.get_logger()

_P = ParamSpec("_P")
_R = TypeVar("_R")


# --- the server's side ---


async def _head(frames: AsyncIterator[Any]) -> Any:
    """Return the head of a stream."""
    async for frame in frames:
        if frame.WhichOneof("frame") != "head":
            break
        return frame.head
    raise InputRefused("expected a head as the first frame")


def _content(frame: Any) -> tuple[str, Any]:
    """Return the field of a frame after the head, and its value."""
    kind = frame.WhichOneof("frame")
    if kind in (None, "head"):
        raise InputRefused("expected one head, and values in every frame after it")
    return kind, getattr(frame, kind)


async def _rest(frames: AsyncIterator[Any]) -> Received:
    """Return the contents of all frames after the head."""
    received: Received = defaultdict(list)
    n_bytes = 0
    async for frame in frames:
        n_bytes += max(frame.ByteSize(), LEAST_FRAME_BYTES)
        if n_bytes > MAX_REQUEST_BYTES:
            raise InputRefused(f"expected at most {MAX_REQUEST_BYTES} bytes in a request")
        kind, value = _content(frame)
        received[kind].append(value)
    return received


def _whole(work: Callable[..., list[Any]]) -> Any:
    """Return the RPC that answers with what ``work`` makes of the head and all other frames."""

    @functools.wraps(work)
    async def serve(self: CipherServicer, frames: Any, context: Any) -> AsyncIterator[Any]:
        async with self.limits.large_call(context):
            head = await _head(frames)
            received = await _rest(frames)
            for answer in await self.limits.run(functools.partial(work, self, head, received)):
                yield answer

    return serve


def _by_frame(work: Callable[..., list[Any]]) -> Any:
    """Return the RPC that answers with what ``work`` makes of the head and each other frame."""

    @functools.wraps(work)
    async def serve(self: CipherServicer, frames: Any, context: Any) -> AsyncIterator[Any]:
        async with self.limits.large_call(context):
            head = await _head(frames)
            async for frame in frames:
                content = _content(frame)
                for answer in await self.limits.run(functools.partial(work, self, head, *content)):
                    yield answer

    return serve


class CipherServicer:
    """Server side: what needs a cipher vault.

    Parameters
    ----------
    metrics : Metrics
        Gets ``hedgerow_ciphertexts_total`` by operation.
    """

    def __init__(self, vault: CipherVault, admission: CallLimits, metrics: Metrics) -> None:
        self._ciphers = vault
        self.limits = admission
        self._metrics = metrics
        for op in OPERATIONS:
            metrics.ciphertexts.labels(op)

    @_by_frame
    def EncryptGradients(
        self, head: pb.EncryptGradientsHead, kind: str, rows: pb.GradientRows
    ) -> list[Any]:
        layout = wire.read_layout(head.layout)
        grad, hess = wire.gradients(rows, layout.n_classes)
        parts = self._ciphers.encrypt_gradients(head.session, layout, grad, hess)
        return self._counted("encrypt", pb.EncryptGradientsResponse, *parts)

    async def HoldRows(self, frames: Any, context: Any) -> Any:
        (answer,) = [answer async for answer in self._hold_rows(frames, context)]
        return answer

    @_whole
    def _hold_rows(self, head: pb.HoldRowsHead, received: Received) -> list[Any]:
        rows = wire.parts(received["ciphertexts"])
        bins = wire.bins(head, received)
        layout, n_bins = wire.read_layout(head.layout), tuple(head.n_bins)
        self._ciphers.hold_rows(
            head.session, head.public_key, layout, rows, bins, n_bins, max(head.least_rows, 1)
        )
        self._count("load", len(bins) * len(rows))
        return [pb.HoldRowsResponse()]

    @_whole
    def SumBins(self, head: pb.SumBinsHead, received: Received) -> list[Any]:
        order = wire.numbers(received, "order", "<u4") if head.HasField("n_sums") else None
        if order is not None and len(order) != head.n_sums:
            raise InputRefused(f"expected {head.n_sums} sums in order, received {len(order)}")
        parts = self._ciphers.sum_bins(
            head.session,
            wire.nodes(received["rows"], head.n_nodes),
            cumulative=head.cumulative,
            missing=tuple(head.missing) or None,
            order=order,
        )
        return self._counted("sum", pb.SumBinsResponse, *parts)

    @_whole
    def DecryptHistograms(self, head: pb.DecryptHistogramsHead, received: Received) -> list[Any]:
        layout, parts = wire.read_layout(head.layout), wire.parts(received["ciphertexts"])
        sums = self._ciphers.decrypt_histograms(head.session, layout, parts, head.n_bins)
        self._count("decrypt", len(sums[0]))
        (sum_bytes, grad), (_, hess) = map(wire.signed_bytes, sums)
        row_bytes = sum_bytes * layout.n_classes
        pieces = zip(wire.pieces(grad, row_bytes), wire.pieces(hess, row_bytes), strict=True)
        answer = functools.partial(pb.DecryptHistogramsResponse, sum_bytes=sum_bytes)
        return [answer(grad=g, hess=h) for g, h in pieces]

    @_whole
    def EncryptIntegers(self, head: pb.EncryptIntegersHead, received: Received) -> list[Any]:
        values = wire.numbers(received, "values", "<i8").tolist()
        found = self._ciphers.encrypt_integers(head.session, values)
        return self._counted("encrypt", pb.EncryptIntegersResponse, found)

    @_whole
    def SumSelected(self, head: pb.SumSelectedHead, received: Received) -> list[Any]:
        found = self._ciphers.sum_selected(
            head.public_key,
            wire.one_part(received),
            wire.numbers(received, "index", "<u4"),
            wire.numbers(received, "starts", "<i8"),
        )
        return self._counted("sum", pb.SumSelectedResponse, found)

    @_whole
    def DecryptIntegers(self, head: pb.DecryptIntegersHead, received: Received) -> list[Any]:
        values = self._ciphers.decrypt_integers(head.session, wire.one_part(received))
        self._count("decrypt", len(values))
        data = wire.signed_bytes(np.array(values, object))[1]
        pieces = wire.pieces(data, wire.WIDE_BYTES)
        return [pb.DecryptIntegersResponse(values=piece) for piece in pieces]

    @_by_frame
    def BlindIdentifiers(self, head: pb.BlindIdentifiersHead, kind: str, value: Any) -> list[Any]:
        if kind == "points":
            points = self._ciphers.blind_points(head.session, value)
        else:
            points = self._ciphers.blind_identifiers(head.session, list(value.ids))
        self._count("blind", len(points) // POINT_BYTES)
        return [pb.BlindIdentifiersResponse(points=points)]

    def _count(self, op: str, n: int) -> None:
        self._metrics.ciphertexts.labels(op).inc(n)

    def _counted(self, op: str, response: Any, *parts: Ciphertexts) -> list[Any]:
        """Count ciphertexts, and return the responses that have them."""
        self._count(op, sum(map(len, parts)))
        return [response(ciphertexts=block) for block in wire.blocks(parts)]


# --- the agent's side ---


def _patiently(
    ask: Callable[Concatenate[RemoteCipherVault, _P], _R],
) -> Callable[Concatenate[RemoteCipherVault, _P], _R]:
    """Have a call repeated while the crypto process is away.

    For calls that may be repeated after a restart: keys are on disk, and the process refuses to use
    rows that it has lost. A restart makes other masks and blinding secrets, so their calls fail.
    """

    @functools.wraps(ask)
    def asked(vault: RemoteCipherVault, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        deadline = time.monotonic() + vault.patience_seconds
        while True:
            try:
                return ask(vault, *args, **kwargs)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
            vault.pause()

    return asked


def _frames(request: Callable[..., _R], head: object, **more: Iterable[Any]) -> Iterator[_R]:
    """Yield the frames of a request: its head, then each field's pieces."""
    yield request(head=head)
    for field, pieces in more.items():
        for piece in pieces:
            yield request(**{field: piece})


class _Names:
    """Instead of a stub, whose methods do not tell their names."""

    def __getattr__(self, name: str) -> str:
        return name


_NAMES: Any = _Names()


class RemoteCipherVault:
    """Client side; see :class:`hedgerow.crypto.vault.interface.CipherVault`.

    Parameters
    ----------
    patience_seconds : float
        How long a call is repeated while the crypto process is away.
    pause : callable
        Waits a moment before a call is repeated; may raise to give up.
    """

    def __init__(
        self,
        channel: Callable[[], MeteredChannel],
        address: str,
        timeout_seconds: float = 3600.0,
        patience_seconds: float = 30.0,
        pause: Callable[[], None] = lambda: time.sleep(0.2),
    ) -> None:
        self._channel = channel
        self._address = address
        self._timeout_seconds = timeout_seconds
        self.patience_seconds, self.pause = patience_seconds, pause
        self._known: tuple[MeteredChannel, CryptoServiceStub] | None = None
        self._takes_tables_only = False

    def _stub(self) -> CryptoServiceStub:
        """Return the stub of the current channel: a call costs less than making one."""
        channel, known = self._channel(), self._known
        if known is None or known[0] is not channel:
            stub = CryptoServiceStub(cast("grpc.Channel", channel))
            self._known = known = (channel, stub)
        return known[1]

    def call(self, method: Callable[[CryptoServiceStub], Callable[..., _R]], request: object) -> _R:
        began = time.monotonic()
        try:
            return method(self._stub())(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise refused(error, self._address) from None
        finally:
            tracing.record(f"crypto {method(_NAMES)}", time.monotonic() - began)

    def _stream(
        self,
        method: Callable[[CryptoServiceStub], Callable[..., Iterator[_R]]],
        requests: Iterator[object],
    ) -> Iterator[_R]:
        began = time.monotonic()
        try:
            yield from method(self._stub())(requests, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise refused(error, self._address) from None
        finally:
            tracing.record(f"crypto {method(_NAMES)}", time.monotonic() - began)

    @_patiently
    def create_cipher_key(
        self, session: str, key_bits: int = 2048, scheme: Scheme = "paillier"
    ) -> bytes:
        request = service.CreateKeysRequest(session=session, kind=KINDS[scheme], key_bits=key_bits)
        return self.call(lambda stub: stub.CreateKeys, request).public_key

    @_patiently
    def encrypt_gradients(
        self, session: str, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Ciphertexts, ...]:
        n = max(len(grad), 1)
        g, h = (np.ascontiguousarray(v.reshape(len(v), -1), "<f8") for v in (grad, hess))
        step = max(1, min(ROWS_A_FRAME, wire.FRAME_BYTES // max(16 * g.shape[1], 1)))
        rows = (
            pb.GradientRows(grad=g[at : at + step].tobytes(), hess=h[at : at + step].tobytes())
            for at in range(0, n, step)
        )
        head = pb.EncryptGradientsHead(session=session, layout=wire.layout(layout))
        frames = _frames(pb.EncryptGradientsRequest, head, rows=rows)
        return self._ciphertexts(lambda stub: stub.EncryptGradients, frames)

    @_patiently
    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Buffer],
        bins: Bins,
        n_bins: Sequence[int],
        least_rows: int = 1,
    ) -> None:
        check_bins(bins, n_bins)
        own = pb.HoldRowsHead(session=session, public_key=public_key, layout=wire.layout(layout))
        own.least_rows = least_rows

        def hold(bins: Bins) -> None:
            head, frames = wire.hold_rows(bins, n_bins)
            head.MergeFrom(own)
            requests = _frames(pb.HoldRowsRequest, head, **frames, ciphertexts=wire.blocks(rows))
            self.call(lambda stub: stub.HoldRows, requests)

        if isinstance(bins, SparseBins) and not self._takes_tables_only:
            try:
                return hold(bins)
            except InputRefused as error:
                if type(error) is not InputRefused:
                    raise  # only that is what a process before 0.4 says of frames unknown to it
                hold(bins.table())
                self._takes_tables_only = True
                log.warning("the crypto process is of an earlier version: sparse tables are dense")
                return
        hold(bins.table() if isinstance(bins, SparseBins) else bins)

    @_patiently
    def sum_bins(
        self,
        session: str,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool = False,
        missing: Sequence[bool] | None = None,
        order: NDArray[np.integer] | None = None,
    ) -> tuple[Ciphertexts, ...]:
        head = pb.SumBinsHead(
            session=session,
            n_nodes=len(nodes),
            cumulative=cumulative,
            missing=missing or (),
            n_sums=None if order is None else len(order),
        )
        more: dict[str, Iterable[Any]] = {
            "rows": (
                pb.NodeRows(node=node, rows=piece)
                for node, rows in enumerate(nodes)
                for piece in wire.pieces(rows.astype("<u4"))
            )
        }
        if order is not None:
            more["order"] = wire.pieces(order.astype("<u4"))
        return self._ciphertexts(
            lambda stub: stub.SumBins, _frames(pb.SumBinsRequest, head, **more)
        )

    @_patiently
    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Buffer], n_bins: int
    ) -> PairSums:
        head = pb.DecryptHistogramsHead(session=session, layout=wire.layout(layout), n_bins=n_bins)
        frames = _frames(pb.DecryptHistogramsRequest, head, ciphertexts=wire.blocks(answer))
        found = list(self._stream(lambda stub: stub.DecryptHistograms, frames))
        width = max((piece.sum_bytes for piece in found), default=8)
        grad = wire.signed(b"".join(piece.grad for piece in found), width)
        hess = wire.signed(b"".join(piece.hess for piece in found), width)
        return grad.reshape(-1, layout.n_classes), hess.reshape(-1, layout.n_classes)

    @_patiently
    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        head, pieces = pb.EncryptIntegersHead(session=session), wire.pieces(np.array(values, "<i8"))
        frames = _frames(pb.EncryptIntegersRequest, head, values=pieces)
        return self._ciphertexts(lambda stub: stub.EncryptIntegers, frames)[0]

    @_patiently
    def sum_selected(
        self, public_key: bytes, values: Buffer, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Ciphertexts:
        frames = _frames(
            pb.SumSelectedRequest,
            pb.SumSelectedHead(public_key=public_key),
            ciphertexts=wire.blocks([values]),
            index=wire.pieces(index.astype("<u4")),
            starts=wire.pieces(start.astype("<i8")),
        )
        return self._ciphertexts(lambda stub: stub.SumSelected, frames)[0]

    @_patiently
    def decrypt_integers(self, session: str, values: Buffer) -> list[int]:
        head = pb.DecryptIntegersHead(session=session)
        frames = _frames(pb.DecryptIntegersRequest, head, ciphertexts=wire.blocks([values]))
        found = self._stream(lambda stub: stub.DecryptIntegers, frames)
        data = b"".join(answer.values for answer in found)
        return [int(value) for value in wire.signed(data, wire.WIDE_BYTES)]

    def blind_identifiers(self, session: str, ids: Sequence[bytes]) -> bytes:
        def batches() -> Iterator[pb.Identifiers]:
            batch: list[bytes] = []
            n_bytes = 0
            for one in ids:
                if len(batch) == IDS_A_FRAME or (batch and n_bytes + len(one) > wire.FRAME_BYTES):
                    yield pb.Identifiers(ids=batch)
                    batch, n_bytes = [], 0
                batch.append(one)
                n_bytes += len(one)
            yield pb.Identifiers(ids=batch)

        return self._blind(session, identifiers=batches())

    def blind_points(self, session: str, points: bytes) -> bytes:
        step = IDS_A_FRAME * POINT_BYTES
        cut = (points[at : at + step] for at in range(0, len(points), step))
        return self._blind(session, points=cut)

    def _blind(self, session: str, **more: Iterable[Any]) -> bytes:
        frames = _frames(
            pb.BlindIdentifiersRequest, pb.BlindIdentifiersHead(session=session), **more
        )
        found = self._stream(lambda stub: stub.BlindIdentifiers, frames)
        return b"".join(answer.points for answer in found)

    def _ciphertexts(
        self, method: Callable[[CryptoServiceStub], Callable[..., Iterator[Any]]], frames: Any
    ) -> tuple[Ciphertexts, ...]:
        return wire.arrays(answer.ciphertexts for answer in self._stream(method, frames))
