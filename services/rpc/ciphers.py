"""The ciphers' half of the crypto service: Paillier, EC-ElGamal, blinding; both sides.

Arrays travel as named blocks. A batch is a set of arrays; where the name of an array comes again,
the next batch begins. Rows to encrypt and identifiers to blind travel in batches, and each batch is
answered before the next is read, so that neither side holds more than a few.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import grpc
import numpy as np
from numpy.typing import NDArray

from hedgerow.api.crypto.v1 import crypto_service_pb2 as pb
from hedgerow.api.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.boosting.errors import OfferRejected, Unreachable
from hedgerow.crypto.cipher_roles import Buffer, Ciphertexts, Scheme
from hedgerow.crypto.packing import PairLayout
from hedgerow.crypto.vault import CipherVault
from hedgerow.services.rpc.crypto_calls import Desk, refused
from hedgerow.services.rpc.metering import MeteredChannel, Metrics
from hedgerow.services.wire.arrays import decode_arrays, encode_arrays, require

MAX_BATCH_BYTES = 1 << 31
"""Most bytes of a batch."""
ROWS_A_BATCH = 4096
IDS_A_BATCH = 16384

_P = ParamSpec("_P")
_R = TypeVar("_R")

Arrays = Mapping[str, NDArray[Any]]

_KINDS: dict[Scheme, Any] = {"paillier": pb.KEY_KIND_PAILLIER, "elgamal": pb.KEY_KIND_ELGAMAL}
SCHEMES: dict[Any, Scheme] = {kind: scheme for scheme, kind in _KINDS.items()}


def _layout(layout: PairLayout) -> pb.PairLayout:
    return pb.PairLayout(
        fraction_bits=layout.fraction_bits,
        largest_grad=layout.largest_grad,
        largest_hess=layout.largest_hess,
        n_rows=layout.n_rows,
        n_classes=layout.n_classes,
    )


def _read_layout(layout: pb.PairLayout) -> PairLayout:
    return PairLayout(
        layout.fraction_bits,
        layout.largest_grad,
        layout.largest_hess,
        layout.n_rows,
        layout.n_classes,
    )


def _numbered(parts: Sequence[NDArray[Any]]) -> Arrays:
    return {str(k): part for k, part in enumerate(parts)}


def _arrays(blocks: Iterable[Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a call: of a party's own processes, so many as its rows need."""
    return decode_arrays(blocks, most_bytes=math.inf)


def _parts(arrays: Arrays, ndim: int = 2) -> tuple[NDArray[Any], ...]:
    return tuple(require(arrays, str(k), "|u1", ndim) for k in range(len(arrays)))


def _flat(*parts: Buffer) -> Arrays:
    """Return parts of ciphertexts, end to end, under their numbers."""
    return _numbered(
        [p.reshape(-1) if isinstance(p, np.ndarray) else np.frombuffer(p, np.uint8) for p in parts]
    )


_WIDE_BYTES = 32


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers as they travel: int64, or 32 bytes each where they are Python's."""
    if values.dtype != object:
        return values.astype("<i8")
    data = b"".join(int(v).to_bytes(_WIDE_BYTES, "little", signed=True) for v in values.flat)
    return np.frombuffer(data, np.uint8).reshape(*values.shape, _WIDE_BYTES)


def _unfixed(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == np.dtype("<i8"):
        return values.astype(np.int64)
    flat = values.reshape(-1, _WIDE_BYTES)
    found = np.empty(len(flat), object)
    found[:] = [int.from_bytes(v.tobytes(), "little", signed=True) for v in flat]
    return found.reshape(values.shape[:-1])


def _ids(arrays: Arrays) -> list[bytes]:
    data = require(arrays, "ids", "|u1", 1).tobytes()
    ends = require(arrays, "ends", "<i8", 1)
    edges = [0, *ends.tolist()]
    if sorted(edges) != edges or edges[-1] != len(data):
        raise OfferRejected(f"expected ends of identifiers that rise to {len(data)}")
    return [data[a:b] for a, b in itertools.pairwise(edges)]


class CipherServicer:
    """Server side: what needs a cipher vault.

    Parameters
    ----------
    vault : CipherVault
        Holds the keys.
    desk : Desk
        Admits calls and runs work.
    metrics : Metrics
        Gets ``hedgerow_ciphertexts_total`` by what was done.
    """

    def __init__(self, vault: CipherVault, desk: Desk, metrics: Metrics) -> None:
        self._ciphers = vault
        self._desk = desk
        self._metrics = metrics

    async def EncryptGradients(  # noqa: N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        def work(head: Any, arrays: Arrays) -> Arrays:
            parts = self._ciphers.encrypt_gradients(
                head.session,
                _read_layout(head.layout),
                require(arrays, "grad", "<f8", 2),
                require(arrays, "hess", "<f8", 2),
            )
            self._count("encrypt", parts)
            return _numbered(parts)

        async for block in self._answers(frames, context, work):
            yield pb.EncryptGradientsResponse(array=block)

    async def HoldRows(self, frames: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        def work(head: Any, arrays: Arrays) -> Arrays:
            bins = arrays.get("bins")
            if bins is None or bins.ndim != 2 or bins.dtype not in (np.uint8, np.uint16):
                raise OfferRejected("expected bins of 8 or 16 bits")
            rows = _parts({name: array for name, array in arrays.items() if name != "bins"}, 1)
            self._ciphers.hold_rows(
                head.session,
                head.public_key,
                _read_layout(head.layout),
                rows,
                bins,
                tuple(head.n_bins),
            )
            self._count("load", [bins] * len(rows))
            return {}

        async for _ in self._answers(frames, context, work, batches=False):
            pass
        yield pb.HoldRowsResponse()

    async def SumBins(self, frames: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        def work(head: Any, arrays: Arrays) -> Arrays:
            rows = require(arrays, "rows", "<u4", 1)
            starts = require(arrays, "starts", "<i8", 1)
            if len(starts) < 1 or starts[0] != 0 or starts[-1] != len(rows):
                raise OfferRejected("expected starts from 0 to the number of rows")
            if (np.diff(starts) < 0).any():
                raise OfferRejected("expected starts that rise")
            parts = self._ciphers.sum_bins(
                head.session,
                np.split(rows, starts[1:-1]) if len(starts) > 1 else (),
                cumulative=head.cumulative,
                missing=tuple(head.missing) or None,
                order=require(arrays, "order", "<i8", 1) if "order" in arrays else None,
            )
            self._count("sum", parts)
            return _numbered(parts)

        async for block in self._answers(frames, context, work, batches=False):
            yield pb.SumBinsResponse(array=block)

    async def DecryptHistograms(  # noqa: N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        def work(head: Any, arrays: Arrays) -> Arrays:
            grad, hess = self._ciphers.decrypt_histograms(
                head.session, _read_layout(head.layout), _parts(arrays, 1), head.n_bins
            )
            self._count("decrypt", (grad,))
            return {"grad": _fixed(grad), "hess": _fixed(hess)}

        async for block in self._answers(frames, context, work, batches=False):
            yield pb.DecryptHistogramsResponse(array=block)

    async def EncryptIntegers(  # noqa: N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        def work(head: Any, arrays: Arrays) -> Arrays:
            values = require(arrays, "values", "<i8", 1).tolist()
            found = self._ciphers.encrypt_integers(head.session, values)
            self._count("encrypt", (found,))
            return {"0": found}

        async for block in self._answers(frames, context, work, batches=False):
            yield pb.EncryptIntegersResponse(array=block)

    async def SumSelected(  # noqa: N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        def work(head: Any, arrays: Arrays) -> Arrays:
            found = self._ciphers.sum_selected(
                head.public_key,
                require(arrays, "0", "|u1", 1),
                require(arrays, "index", "<u4", 1),
                require(arrays, "starts", "<i8", 1),
            )
            self._count("sum", (found,))
            return {"0": found}

        async for block in self._answers(frames, context, work, batches=False):
            yield pb.SumSelectedResponse(array=block)

    async def DecryptIntegers(  # noqa: N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        def work(head: Any, arrays: Arrays) -> Arrays:
            values = require(arrays, "0", "|u1", 1)
            found = np.array(self._ciphers.decrypt_integers(head.session, values), object)
            self._count("decrypt", (found,))
            return {"values": _fixed(found)}

        async for block in self._answers(frames, context, work, batches=False):
            yield pb.DecryptIntegersResponse(array=block)

    async def BlindIdentifiers(  # noqa: N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        def work(head: Any, arrays: Arrays) -> Arrays:
            if "points" in arrays:
                points = require(arrays, "points", "|u1", 2).tobytes()
                blinded = self._ciphers.blind_points(head.session, points)
            else:
                blinded = self._ciphers.blind_identifiers(head.session, _ids(arrays))
            found = np.frombuffer(blinded, np.uint8).reshape(-1, 32)
            self._count("blind", (found,))
            return {"points": found}

        async for block in self._answers(frames, context, work):
            yield pb.BlindIdentifiersResponse(array=block)

    def _count(self, op: str, parts: Iterable[NDArray[Any]]) -> None:
        self._metrics.ciphertexts.labels(op).inc(sum(len(part) for part in parts))

    async def _answers(
        self,
        frames: Any,
        context: Any,
        work: Callable[[Any, Arrays], Arrays],
        *,
        batches: bool = True,
    ) -> AsyncIterator[Any]:
        """Yield the blocks of what ``work`` makes of the head and each batch."""
        async with self._desk.large_call(context):
            head: Any = None
            blocks: list[Any] = []
            names: set[str] = set()
            n_bytes = 0

            def one_batch() -> list[Any]:
                return list(encode_arrays(work(head, _arrays(blocks))))

            async for frame in frames:
                kind = frame.WhichOneof("frame")
                if kind == "head" and head is None:
                    head = frame.head
                    continue
                if kind != "array" or head is None:
                    raise OfferRejected("expected a head and then arrays")
                block = frame.array
                if batches and block.dtype and block.name in names:
                    for answer in await self._desk.run(one_batch):
                        yield answer
                    blocks, names, n_bytes = [], set(), 0
                n_bytes += len(block.data)
                if n_bytes > MAX_BATCH_BYTES:
                    raise OfferRejected(f"expected at most {MAX_BATCH_BYTES} bytes of arrays")
                names.add(block.name)
                blocks.append(block)
            if head is None:
                raise OfferRejected("expected a head, the stream was empty")
            for answer in await self._desk.run(one_batch):
                yield answer


def _patiently(
    ask: Callable[Concatenate[RemoteCipherVault, _P], _R],
) -> Callable[Concatenate[RemoteCipherVault, _P], _R]:
    """Have a call repeated while the crypto process is away.

    For calls that may be repeated after a restart: keys are on disk, and rows that a restarted
    vault does not hold any more are refused. Masks and blinding secrets are made anew by a restart,
    so their calls fail.
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


class RemoteCipherVault:
    """Client side; see :class:`hedgerow.crypto.vault.CipherVault`.

    Parameters
    ----------
    channel : callable
        Returns the current channel to the crypto process.
    address : str
        For error messages.
    timeout_seconds : float
        Deadline of each call.
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
        self._known: tuple[MeteredChannel, Any] | None = None

    def _stub(self) -> Any:
        """Return the stub of the current channel: a call costs less than making one."""
        channel, known = self._channel(), self._known
        if known is None or known[0] is not channel:
            stub = crypto_service_pb2_grpc.CryptoServiceStub(cast(grpc.Channel, channel))
            self._known = known = (channel, stub)
        return known[1]

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub(), method)(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise refused(error, self._address) from None

    def _stream(self, method: str, frames: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from getattr(self._stub(), method)(frames, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise refused(error, self._address) from None

    @_patiently
    def create_cipher_key(
        self, session: str, key_bits: int = 2048, scheme: Scheme = "paillier"
    ) -> bytes:
        """Return the session's public key, made on the first call and kept."""
        request = pb.CreateKeysRequest(session=session, kind=_KINDS[scheme], key_bits=key_bits)
        return bytes(self._call("CreateKeys", request).public_key)

    @_patiently
    def encrypt_gradients(
        self,
        session: str,
        layout: PairLayout,
        grad: NDArray[np.float64],
        hess: NDArray[np.float64],
    ) -> tuple[Ciphertexts, ...]:
        """Return one ciphertext a row, or several where its classes need them."""
        head = pb.EncryptGradientsHead(session=session, layout=_layout(layout))
        wide = [np.reshape(values, (len(values), -1)).astype("<f8") for values in (grad, hess)]

        def batches() -> Iterator[Arrays]:
            for at in range(0, max(len(grad), 1), ROWS_A_BATCH):
                g, h = (values[at : at + ROWS_A_BATCH] for values in wide)
                yield {"grad": g, "hess": h}

        found = self._batches("EncryptGradients", pb.EncryptGradientsRequest, head, batches())
        parts = [_parts(batch) for batch in found]
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    @_patiently
    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Buffer],
        bins: NDArray[np.uint8] | NDArray[np.uint16],
        n_bins: Sequence[int],
    ) -> None:
        """Take a tree's row ciphertexts and this party's bins of the same rows."""
        head = pb.HoldRowsHead(
            session=session,
            public_key=public_key,
            layout=_layout(layout),
            n_bins=[int(n) for n in n_bins],
        )
        frames = _framed(pb.HoldRowsRequest, head, [{"bins": bins, **_flat(*rows)}])
        for _ in self._stream("HoldRows", frames):
            pass

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
        """Return the packed, re-randomised bins of nodes, one array a part."""
        head = pb.SumBinsHead(session=session, cumulative=cumulative, missing=missing or ())
        arrays: dict[str, NDArray[Any]] = {
            "rows": np.concatenate([np.zeros(0, "<u4"), *nodes]).astype("<u4"),
            "starts": np.cumsum([0, *(len(rows) for rows in nodes)]).astype("<i8"),
        }
        if order is not None:
            arrays["order"] = order.astype("<i8")
        return _parts(self._exchange("SumBins", pb.SumBinsRequest, head, arrays))

    @_patiently
    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Buffer], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return grad and hess sums, exact, of shape (n_bins, n_classes)."""
        head = pb.DecryptHistogramsHead(session=session, layout=_layout(layout), n_bins=n_bins)
        found = self._exchange(
            "DecryptHistograms",
            pb.DecryptHistogramsRequest,
            head,
            _flat(*answer),
        )
        return _unfixed(found["grad"]), _unfixed(found["hess"])

    @_patiently
    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        """Return ciphertexts of signed 64-bit integers under the session's own key."""
        arrays = {"values": np.array(values, "<i8")}
        head = pb.EncryptIntegersHead(session=session)
        return self._exchange("EncryptIntegers", pb.EncryptIntegersRequest, head, arrays)["0"]

    @_patiently
    def sum_selected(
        self,
        public_key: bytes,
        values: Buffer,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        """Return re-randomised sums of ``values[index[k]]`` over start[s] ≤ k < start[s + 1]."""
        arrays = {**_flat(values), "index": index.astype("<u4"), "starts": start.astype("<i8")}
        head = pb.SumSelectedHead(public_key=public_key)
        return self._exchange("SumSelected", pb.SumSelectedRequest, head, arrays)["0"]

    @_patiently
    def decrypt_integers(self, session: str, values: Buffer) -> list[int]:
        """Return the signed integers of ciphertexts under the session's own key."""
        head = pb.DecryptIntegersHead(session=session)
        found = self._exchange("DecryptIntegers", pb.DecryptIntegersRequest, head, _flat(values))
        return [int(v) for v in _unfixed(found["values"])]

    def blind_identifiers(self, session: str, ids: Sequence[bytes]) -> bytes:
        """Hash ids to the curve and raise them to the session's secret."""

        def batches() -> Iterator[Arrays]:
            for at in range(0, max(len(ids), 1), IDS_A_BATCH):
                some = ids[at : at + IDS_A_BATCH]
                yield {
                    "ids": np.frombuffer(b"".join(some), np.uint8),
                    "ends": np.cumsum([len(one) for one in some]).astype("<i8"),
                }

        return self._blind(session, batches())

    def blind_points(self, session: str, points: bytes) -> bytes:
        """Raise points, 32 bytes each, to the session's secret."""
        rows = np.frombuffer(points, np.uint8)
        width = 32 if len(rows) % 32 == 0 else 1

        def batches() -> Iterator[Arrays]:
            for at in range(0, max(len(rows), 1), 32 * IDS_A_BATCH):
                yield {"points": rows[at : at + 32 * IDS_A_BATCH].reshape(-1, width)}

        return self._blind(session, batches())

    def _blind(self, session: str, batches: Iterator[Arrays]) -> bytes:
        head = pb.BlindIdentifiersHead(session=session)
        found = self._batches("BlindIdentifiers", pb.BlindIdentifiersRequest, head, batches)
        return b"".join(require(batch, "points", "|u1", 2).tobytes() for batch in found)

    def _exchange(
        self, method: str, request: Any, head: Any, arrays: Arrays
    ) -> dict[str, NDArray[Any]]:
        frames = self._stream(method, _framed(request, head, [arrays]))
        return _arrays(frame.array for frame in frames)

    def _batches(
        self, method: str, request: Any, head: Any, batches: Iterable[Arrays]
    ) -> Iterator[dict[str, NDArray[Any]]]:
        blocks: list[Any] = []
        names: set[str] = set()
        for frame in self._stream(method, _framed(request, head, batches)):
            if frame.array.dtype and frame.array.name in names:
                yield _arrays(blocks)
                blocks, names = [], set()
            names.add(frame.array.name)
            blocks.append(frame.array)
        yield _arrays(blocks)


def _framed(request: Any, head: Any, batches: Iterable[Arrays]) -> Iterator[Any]:
    yield request(head=head)
    for arrays in batches:
        for block in encode_arrays(arrays):
            yield request(array=block)
