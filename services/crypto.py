"""The crypto service: a silo's keys behind a process boundary; servicer, and the remote vault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import grpc
import numpy as np
from hedgerow.crypto.v1 import crypto_service_pb2 as pb
from hedgerow.crypto.v1 import crypto_service_pb2_grpc
from numpy.typing import NDArray

from boosting.ports import FederationError, OfferRejected, Silo
from crypto.cipher_vault import Ciphertexts, NothingHeld
from crypto.packing import PairLayout
from crypto.vault import MaskGroup, SumTicket, Vault, VaultRefused
from services.certificates import Role
from services.errors import Unauthorised, abort, from_rpc
from services.identity import peer_of
from services.metering import MeteredChannel, Metrics
from services.wire.arrays import decode_arrays, encode_arrays, require

Residues = NDArray[np.uint64]
PIECE_BYTES = 1 << 20
"""Size of the pieces in which vectors travel."""
MAX_VECTOR_BYTES = 1 << 31
"""Longest vector that is taken in."""


def _pieces(values: Residues) -> Iterator[bytes]:
    data = np.ascontiguousarray(values, dtype="<u8").view(np.uint8).data
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])


def _vector(pieces: list[bytes]) -> Residues:
    data = b"".join(pieces)
    if len(data) % 8:
        raise OfferRejected(f"a vector of 64-bit residues cannot have {len(data)} bytes")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def _ticket(ticket: SumTicket) -> pb.SumTicket:
    return pb.SumTicket(
        session=ticket.session,
        number=ticket.number,
        layout=ticket.layout,
        participants=ticket.participants,
        ring_bits=ticket.ring_bits,
        self_mask=ticket.self_mask,
        group_mask=ticket.group_mask,
    )


def _read_ticket(ticket: pb.SumTicket) -> SumTicket:
    return SumTicket(
        ticket.session,
        ticket.number,
        ticket.layout,
        tuple(ticket.participants),
        ticket.ring_bits,
        ticket.self_mask,
        ticket.group_mask,
    )


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


def _framed(request: Any, head: Any, arrays: Mapping[str, NDArray[Any]]) -> Iterator[Any]:
    yield request(head=head)
    for block in encode_arrays(arrays):
        yield request(array=block)


def _numbered(parts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {str(k): part for k, part in enumerate(parts)}


def _parts(arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    return tuple(require(arrays, str(k), "|u1", 2) for k in range(len(arrays)))


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


class CryptoServicer(crypto_service_pb2_grpc.CryptoServiceServicer):
    """Server side of CryptoService.

    Parameters
    ----------
    vault : Vault
        Holds the keys.
    silo : str
        The only silo that is served.
    metrics : Metrics
    """

    def __init__(self, vault: Vault, silo: str, metrics: Metrics) -> None:
        self._vault = vault
        self._silo = Silo(silo)
        self._metrics = metrics

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        crypto_service_pb2_grpc.add_CryptoServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["CryptoService"].full_name

    async def _do(self, context: Any, work: Callable[[], Any]) -> Any:
        """Run ``work`` in a thread for the silo's own agent; map what goes wrong."""
        try:
            caller = peer_of(context).require(Role.SILO)
            if caller != self._silo:
                raise Unauthorised(f"this crypto process serves {self._silo}, not {caller}")
            return await asyncio.to_thread(work)
        except FederationError as error:
            await abort(context, error)
        except (VaultRefused, NothingHeld, ValueError) as error:
            await abort(context, OfferRejected(str(error)))

    async def CreateKeys(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        make: Callable[[], bytes]
        if request.kind == pb.KEY_KIND_PAILLIER:
            make = lambda: self._vault.create_cipher_key(request.session, request.key_bits)  # noqa: E731
        elif request.kind == pb.KEY_KIND_X25519:
            make = lambda: self._vault.create_mask_key(request.session)  # noqa: E731
        else:
            await abort(context, OfferRejected("this kind of key is not known"))
        key = await self._do(context, make)
        return pb.CreateKeysResponse(public_key=key)

    async def JoinGroup(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        group = MaskGroup(
            request.session,
            request.silo,
            tuple(request.members),
            tuple(request.public_keys),
            request.digest,
            request.threshold,
        )
        await self._do(context, lambda: self._vault.join_group(group))
        return pb.JoinGroupResponse()

    async def SealShares(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        boxes = await self._do(
            context,
            lambda: self._vault.seal_shares(
                request.session,
                request.first,
                request.count,
                tuple(request.participants),
                request.group_key,
            ),
        )
        return pb.SealSharesResponse(boxes=boxes)

    async def OpenShares(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await self._do(
            context,
            lambda: self._vault.open_shares(
                request.session, request.first, request.count, dict(request.boxes)
            ),
        )
        return pb.OpenSharesResponse()

    async def MaskVector(self, frames: Any, context: Any) -> AsyncIterator[Any]:  # noqa: D102, N802
        head, pieces = await self._gather(frames, "ticket", context)
        masked, commitment = await self._do(
            context, lambda: self._vault.mask_vector(_read_ticket(head), _vector(pieces))
        )
        self._metrics.masked_values.inc(len(masked))
        yield pb.MaskVectorResponse(commitment=commitment)
        for piece in _pieces(masked):
            yield pb.MaskVectorResponse(values=piece)

    async def EndorseSet(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        statement = await self._do(
            context,
            lambda: self._vault.endorse(request.session, request.number, tuple(request.present)),
        )
        return pb.EndorseSetResponse(statement=statement)

    async def RevealPairSeeds(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        seeds = await self._do(
            context,
            lambda: self._vault.reveal_pair_seeds(
                request.session, request.number, tuple(request.present)
            ),
        )
        return pb.RevealPairSeedsResponse(seeds=seeds)

    async def RevealShares(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        shares = await self._do(
            context,
            lambda: self._vault.reveal_shares(
                request.session, request.number, tuple(request.present)
            ),
        )
        return pb.RevealSharesResponse(shares=shares)

    async def RemoveGroupMask(  # noqa: D102, N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        head, pieces = await self._gather(frames, "sum", context)
        opened = await self._do(
            context,
            lambda: self._vault.remove_group_mask(
                head.session, head.number, tuple(head.present), _vector(pieces)
            ),
        )
        for piece in _pieces(opened):
            yield pb.RemoveGroupMaskResponse(values=piece)

    async def PrepareEncryption(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await self._do(
            context, lambda: self._vault.prepare_encryption(request.session, request.count)
        )
        return pb.PrepareEncryptionResponse()

    async def EncryptGradients(  # noqa: D102, N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        head, arrays = await self._arrays(frames, context)
        parts = await self._do(
            context,
            lambda: self._vault.encrypt_gradients(
                head.session,
                _read_layout(head.layout),
                require(arrays, "grad", "<f8", 2),
                require(arrays, "hess", "<f8", 2),
            ),
        )
        self._metrics.ciphertexts.labels("encrypt").inc(sum(len(part) for part in parts))
        for block in encode_arrays(_numbered(parts)):
            yield pb.EncryptGradientsResponse(array=block)

    async def HoldRows(self, frames: Any, context: Any) -> Any:  # noqa: D102, N802
        head, arrays = await self._arrays(frames, context)

        def hold() -> None:
            bins = arrays.pop("bins", np.zeros((0, 0), np.uint8))
            if bins.dtype not in (np.uint8, np.uint16):
                raise OfferRejected("expected bins of 8 or 16 bits")
            self._vault.hold_rows(
                head.session,
                head.public_key,
                _read_layout(head.layout),
                _parts(arrays),
                bins,
                tuple(head.n_bins),
            )

        await self._do(context, hold)
        return pb.HoldRowsResponse()

    async def SumBins(self, frames: Any, context: Any) -> AsyncIterator[Any]:  # noqa: D102, N802
        head, arrays = await self._arrays(frames, context)

        def sum_bins() -> tuple[Ciphertexts, ...]:
            rows = require(arrays, "rows", "<u4", 1)
            starts = require(arrays, "starts", "<i8", 1)
            if len(starts) < 1 or starts[0] != 0 or starts[-1] != len(rows):
                raise OfferRejected("expected starts from 0 to the number of rows")
            return self._vault.sum_bins(
                head.session,
                np.split(rows, starts[1:-1]) if len(starts) > 1 else (),
                cumulative=head.cumulative,
                missing=tuple(head.missing) or None,
                order=require(arrays, "order", "<i8", 1) if "order" in arrays else None,
            )

        parts = await self._do(context, sum_bins)
        self._metrics.ciphertexts.labels("sum").inc(sum(len(part) for part in parts))
        for block in encode_arrays(_numbered(parts)):
            yield pb.SumBinsResponse(array=block)

    async def DecryptHistograms(  # noqa: D102, N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        head, arrays = await self._arrays(frames, context)
        grad, hess = await self._do(
            context,
            lambda: self._vault.decrypt_histograms(
                head.session, _read_layout(head.layout), _parts(arrays), head.n_bins
            ),
        )
        self._metrics.ciphertexts.labels("decrypt").inc(sum(len(a) for a in arrays.values()))
        for block in encode_arrays({"grad": _fixed(grad), "hess": _fixed(hess)}):
            yield pb.DecryptHistogramsResponse(array=block)

    async def EncryptIntegers(  # noqa: D102, N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        head, arrays = await self._arrays(frames, context)
        found = await self._do(
            context,
            lambda: self._vault.encrypt_integers(
                head.session, require(arrays, "values", "<i8", 1).tolist()
            ),
        )
        self._metrics.ciphertexts.labels("encrypt").inc(len(found))
        for block in encode_arrays({"0": found}):
            yield pb.EncryptIntegersResponse(array=block)

    async def SumSelected(  # noqa: D102, N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        head, arrays = await self._arrays(frames, context)
        found = await self._do(
            context,
            lambda: self._vault.sum_selected(
                head.public_key,
                require(arrays, "0", "|u1", 2),
                require(arrays, "index", "<u4", 1),
                require(arrays, "starts", "<i8", 1),
            ),
        )
        self._metrics.ciphertexts.labels("sum").inc(len(found))
        for block in encode_arrays({"0": found}):
            yield pb.SumSelectedResponse(array=block)

    async def DecryptIntegers(  # noqa: D102, N802
        self, frames: Any, context: Any
    ) -> AsyncIterator[Any]:
        head, arrays = await self._arrays(frames, context)
        found = await self._do(
            context,
            lambda: self._vault.decrypt_integers(head.session, require(arrays, "0", "|u1", 2)),
        )
        self._metrics.ciphertexts.labels("decrypt").inc(len(found))
        for block in encode_arrays({"values": _fixed(np.array(found, object))}):
            yield pb.DecryptIntegersResponse(array=block)

    async def DeleteKeys(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await self._do(context, lambda: self._vault.forget_session(request.session))
        return pb.DeleteKeysResponse()

    async def _arrays(self, frames: Any, context: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Return the head of a stream and the arrays that follow it."""
        head: Any = None
        blocks: list[Any] = []
        received = 0
        async for frame in frames:
            name = frame.WhichOneof("frame")
            if name == "head" and head is None:
                head = frame.head
            elif name == "array" and head is not None:
                received += len(frame.array.data)
                if received > MAX_VECTOR_BYTES:
                    await abort(context, OfferRejected("the arrays are too long"))
                blocks.append(frame.array)
            else:
                await abort(context, OfferRejected("expected a head and then arrays"))
        if head is None:
            await abort(context, OfferRejected("expected a head, the stream was empty"))
        return head, await self._do(context, lambda: decode_arrays(iter(blocks)))

    async def _gather(self, frames: Any, first: str, context: Any) -> tuple[Any, list[bytes]]:
        head: Any = None
        pieces: list[bytes] = []
        received = 0
        async for frame in frames:
            name = frame.WhichOneof("frame")
            if name == first and head is None:
                head = getattr(frame, first)
            elif name == "values" and head is not None:
                received += len(frame.values)
                if received > MAX_VECTOR_BYTES:
                    await abort(context, OfferRejected("the vector is too long"))
                pieces.append(frame.values)
            else:
                await abort(context, OfferRejected(f"expected {first} and then values"))
        if head is None:
            await abort(context, OfferRejected(f"expected {first}, the stream was empty"))
        return head, pieces


class RemoteVault:
    """The vault of a silo's crypto process; see :class:`crypto.vault.Vault`.

    Parameters
    ----------
    channel : callable
        Returns the current channel to the crypto process.
    address : str
        For error messages.
    timeout_seconds : float
        Deadline of each call.
    """

    def __init__(
        self,
        channel: Callable[[], MeteredChannel],
        address: str,
        timeout_seconds: float = 600.0,
    ) -> None:
        self._channel = channel
        self._address = address
        self._timeout_seconds = timeout_seconds

    def _stub(self) -> Any:
        return crypto_service_pb2_grpc.CryptoServiceStub(cast(grpc.Channel, self._channel()))

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub(), method)(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise _mapped(error, self._address) from None

    def _stream(self, method: str, frames: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from getattr(self._stub(), method)(frames, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise _mapped(error, self._address) from None

    def create_mask_key(self, session: str) -> bytes:
        """Make a fresh X25519 key; returns its public key."""
        request = pb.CreateKeysRequest(session=session, kind=pb.KEY_KIND_X25519)
        return bytes(self._call("CreateKeys", request).public_key)

    def join_group(self, group: MaskGroup) -> None:
        """Derive the roots shared with each member."""
        self._call(
            "JoinGroup",
            pb.JoinGroupRequest(
                session=group.session,
                silo=group.silo,
                members=group.members,
                public_keys=group.public_keys,
                digest=group.digest,
                threshold=group.threshold,
            ),
        )

    def seal_shares(
        self,
        session: str,
        first: int,
        count: int,
        participants: tuple[str, ...],
        group_key: bool = False,
    ) -> dict[str, bytes]:
        """Draw self masks and return a sealed box per peer."""
        response = self._call(
            "SealShares",
            pb.SealSharesRequest(
                session=session,
                first=first,
                count=count,
                participants=participants,
                group_key=group_key,
            ),
        )
        return dict(response.boxes)

    def open_shares(self, session: str, first: int, count: int, boxes: Mapping[str, bytes]) -> None:
        """Keep the shares that peers sealed for this silo."""
        self._call(
            "OpenShares",
            pb.OpenSharesRequest(session=session, first=first, count=count, boxes=boxes),
        )

    def mask_vector(self, ticket: SumTicket, values: Residues) -> tuple[Residues, bytes]:
        """Return the masked vector and the commitment to the self mask."""

        def frames() -> Iterator[pb.MaskVectorRequest]:
            yield pb.MaskVectorRequest(ticket=_ticket(ticket))
            for piece in _pieces(values):
                yield pb.MaskVectorRequest(values=piece)

        commitment, pieces = b"", []
        for frame in self._stream("MaskVector", frames()):
            if frame.WhichOneof("frame") == "commitment":
                commitment = frame.commitment
            else:
                pieces.append(frame.values)
        return _vector(pieces), commitment

    def endorse(self, session: str, number: int, present: tuple[str, ...]) -> bytes:
        """Agree that the sum is unmasked over ``present``; returns what is to be signed."""
        request = pb.EndorseSetRequest(session=session, number=number, present=present)
        return bytes(self._call("EndorseSet", request).statement)

    def reveal_pair_seeds(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> dict[str, bytes]:
        """Return pair seeds with the silos that the endorsed set leaves out."""
        request = pb.RevealPairSeedsRequest(session=session, number=number, present=present)
        return dict(self._call("RevealPairSeeds", request).seeds)

    def reveal_shares(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> dict[str, bytes]:
        """Return the shares of the self masks of the endorsed set; ends the sum."""
        request = pb.RevealSharesRequest(session=session, number=number, present=present)
        return dict(self._call("RevealShares", request).shares)

    def remove_group_mask(
        self, session: str, number: int, present: tuple[str, ...], values: Residues
    ) -> Residues:
        """Return a sum over ``present`` without its group masks."""

        def frames() -> Iterator[pb.RemoveGroupMaskRequest]:
            head = pb.EndorseSetRequest(session=session, number=number, present=present)
            yield pb.RemoveGroupMaskRequest(sum=head)
            for piece in _pieces(values):
                yield pb.RemoveGroupMaskRequest(values=piece)

        return _vector([f.values for f in self._stream("RemoveGroupMask", frames())])

    def create_cipher_key(self, session: str, key_bits: int = 2048) -> bytes:
        """Return the session's public key, made on the first call and kept."""
        request = pb.CreateKeysRequest(
            session=session, kind=pb.KEY_KIND_PAILLIER, key_bits=key_bits
        )
        return bytes(self._call("CreateKeys", request).public_key)

    def prepare_encryption(self, session: str, n: int) -> None:
        """Make obfuscators for ``n`` ciphertexts ahead."""
        self._call("PrepareEncryption", pb.PrepareEncryptionRequest(session=session, count=n))

    def encrypt_gradients(
        self,
        session: str,
        layout: PairLayout,
        grad: NDArray[np.float64],
        hess: NDArray[np.float64],
    ) -> tuple[Ciphertexts, ...]:
        """Return one ciphertext a row, or several where its classes need them."""
        head = pb.EncryptGradientsHead(session=session, layout=_layout(layout))
        shape = (len(grad), layout.n_classes)
        arrays = {"grad": np.reshape(grad, shape), "hess": np.reshape(hess, shape)}
        return _parts(self._exchange("EncryptGradients", pb.EncryptGradientsRequest, head, arrays))

    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Ciphertexts],
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
        frames = _framed(pb.HoldRowsRequest, head, {"bins": bins, **_numbered(rows)})
        self._call("HoldRows", frames)

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

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Ciphertexts], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return grad and hess sums, exact, of shape (n_bins, n_classes)."""
        head = pb.DecryptHistogramsHead(session=session, layout=_layout(layout), n_bins=n_bins)
        found = self._exchange(
            "DecryptHistograms", pb.DecryptHistogramsRequest, head, _numbered(answer)
        )
        return _unfixed(found["grad"]), _unfixed(found["hess"])

    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        """Return ciphertexts of signed 64-bit integers under the session's own key."""
        arrays = {"values": np.array(values, "<i8")}
        head = pb.EncryptIntegersHead(session=session)
        return self._exchange("EncryptIntegers", pb.EncryptIntegersRequest, head, arrays)["0"]

    def sum_selected(
        self,
        public_key: bytes,
        values: Ciphertexts,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        """Return re-randomised sums of ``values[index[k]]`` over start[s] ≤ k < start[s + 1]."""
        arrays = {"0": values, "index": index.astype("<u4"), "starts": start.astype("<i8")}
        head = pb.SumSelectedHead(public_key=public_key)
        return self._exchange("SumSelected", pb.SumSelectedRequest, head, arrays)["0"]

    def decrypt_integers(self, session: str, values: Ciphertexts) -> list[int]:
        """Return the signed integers of ciphertexts under the session's own key."""
        head = pb.DecryptIntegersHead(session=session)
        found = self._exchange("DecryptIntegers", pb.DecryptIntegersRequest, head, {"0": values})
        return [int(v) for v in _unfixed(found["values"])]

    def _exchange(
        self, method: str, request: Any, head: Any, arrays: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        frames = self._stream(method, _framed(request, head, arrays))
        return decode_arrays(frame.array for frame in frames)

    def forget_session(self, session: str) -> None:
        """Erase all secrets of a session."""
        self._call("DeleteKeys", pb.DeleteKeysRequest(session=session))


def _mapped(error: grpc.RpcError, address: str) -> Exception:
    mapped = from_rpc(error, address)
    if isinstance(mapped, OfferRejected):
        return VaultRefused(str(mapped))
    return mapped
