"""The crypto service: a silo's keys behind a process boundary; servicer, and the remote vault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, cast

import grpc
import numpy as np
from hedgerow.crypto.v1 import crypto_service_pb2 as pb
from hedgerow.crypto.v1 import crypto_service_pb2_grpc
from numpy.typing import NDArray

from boosting.ports import FederationError, OfferRejected, Silo
from crypto.vault import MaskGroup, SumTicket, Vault, VaultRefused
from services.certificates import Role
from services.errors import Unauthorised, abort, from_rpc
from services.identity import peer_of
from services.metering import MeteredChannel, Metrics

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
        except (VaultRefused, ValueError) as error:
            await abort(context, OfferRejected(str(error)))

    async def CreateKeys(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        if request.kind != pb.KEY_KIND_X25519:
            await abort(context, OfferRejected("this kind of key is not known"))
        key = await self._do(context, lambda: self._vault.create_mask_key(request.session))
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

    async def DeleteKeys(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await self._do(context, lambda: self._vault.forget_session(request.session))
        return pb.DeleteKeysResponse()

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

    def forget_session(self, session: str) -> None:
        """Erase all secrets of a session."""
        self._call("DeleteKeys", pb.DeleteKeysRequest(session=session))


def _mapped(error: grpc.RpcError, address: str) -> Exception:
    mapped = from_rpc(error, address)
    if isinstance(mapped, OfferRejected):
        return VaultRefused(str(mapped))
    return mapped
