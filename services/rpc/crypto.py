"""The crypto service: a silo's keys behind a process boundary; servicer, and the remote vault.

The ciphers' half is in :mod:`hedgerow.services.rpc.ciphers`; this is the keys and the secure sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from hedgerow.api.crypto.v1 import crypto_service_pb2 as pb
from hedgerow.api.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.boosting.errors import OfferRejected
from hedgerow.crypto.threads import usable_cores
from hedgerow.crypto.vault import MaskGroup, SumMasks, SumTicket, Vault
from hedgerow.services.rpc.ciphers import SCHEMES, CipherServicer, RemoteCipherVault
from hedgerow.services.rpc.crypto_calls import Desk
from hedgerow.services.rpc.metering import Metrics


def _sorted(received: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a map in the order of its keys; on the wire it has none."""
    return {key: received[key] for key in sorted(received)}


def _ticket(ticket: SumTicket) -> pb.SumTicket:
    return pb.SumTicket(
        session=ticket.session,
        number=ticket.number,
        layout=ticket.layout,
        participants=ticket.participants,
        n_values=ticket.n_values,
        self_mask=ticket.self_mask,
        group_mask=ticket.group_mask,
    )


def _read_ticket(ticket: pb.SumTicket) -> SumTicket:
    return SumTicket(
        ticket.session,
        ticket.number,
        ticket.layout,
        tuple(ticket.participants),
        ticket.n_values,
        ticket.self_mask,
        ticket.group_mask,
    )


class CryptoServicer(CipherServicer, crypto_service_pb2_grpc.CryptoServiceServicer):
    """Server side of CryptoService.

    Parameters
    ----------
    vault : Vault
        Holds the keys.
    silo : str
        The only silo that is served.
    metrics : Metrics
    workers : int, optional
        Calls that are worked on at a time; as many as cores when left out, at least two.
    """

    def __init__(
        self, vault: Vault, silo: str, metrics: Metrics, workers: int | None = None
    ) -> None:
        desk = Desk(silo, metrics, workers if workers is not None else max(2, usable_cores()))
        super().__init__(vault, desk, metrics)
        self._vault = vault

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        crypto_service_pb2_grpc.add_CryptoServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["CryptoService"].full_name

    async def _do(self, context: Any, work: Callable[[], Any]) -> Any:
        async with self._desk.small_call(context):
            return await self._desk.run(work)

    async def _at_once(self, context: Any, work: Callable[[], Any]) -> Any:
        """Do what takes less time than to hand it to a thread: a few hashes a silo."""
        async with self._desk.small_call(context):
            return work()

    async def CreateKeys(self, request: Any, context: Any) -> Any:  # noqa: N802
        def make() -> bytes:
            if request.kind == pb.KEY_KIND_X25519:
                return self._vault.create_mask_key(request.session)
            if request.kind not in SCHEMES:
                raise OfferRejected("this kind of key is not known")
            scheme = SCHEMES[request.kind]
            return self._vault.create_cipher_key(request.session, request.key_bits, scheme)

        return pb.CreateKeysResponse(public_key=await self._do(context, make))

    async def JoinGroup(self, request: Any, context: Any) -> Any:  # noqa: N802
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

    async def SealShares(self, request: Any, context: Any) -> Any:  # noqa: N802
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

    async def OpenShares(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._do(
            context,
            lambda: self._vault.open_shares(
                request.session, request.first, request.count, dict(request.boxes)
            ),
        )
        return pb.OpenSharesResponse()

    async def DeriveMasks(self, request: Any, context: Any) -> Any:  # noqa: N802
        ticket = _read_ticket(request.ticket)
        endorse = request.endorse
        masks = await self._at_once(context, lambda: self._vault.derive_masks(ticket, endorse))
        self._metrics.masked_values.inc(ticket.n_values)
        return pb.DeriveMasksResponse(
            add=masks.add,
            subtract=masks.subtract,
            commitment=masks.commitment,
            statement=masks.statement,
        )

    async def EndorseSet(self, request: Any, context: Any) -> Any:  # noqa: N802
        statement = await self._at_once(
            context,
            lambda: self._vault.endorse(request.session, request.number, tuple(request.present)),
        )
        return pb.EndorseSetResponse(statement=statement)

    async def RevealPairSeeds(self, request: Any, context: Any) -> Any:  # noqa: N802
        seeds = await self._at_once(
            context,
            lambda: self._vault.reveal_pair_seeds(
                request.session, request.number, tuple(request.present)
            ),
        )
        return pb.RevealPairSeedsResponse(seeds=seeds)

    async def RevealShares(self, request: Any, context: Any) -> Any:  # noqa: N802
        shares = await self._at_once(
            context,
            lambda: self._vault.reveal_shares(
                request.session, request.number, tuple(request.present)
            ),
        )
        return pb.RevealSharesResponse(shares=shares)

    async def DeriveGroupMasks(self, request: Any, context: Any) -> Any:  # noqa: N802
        seeds = await self._at_once(
            context,
            lambda: self._vault.derive_group_masks(
                request.session, request.number, tuple(request.present)
            ),
        )
        return pb.DeriveGroupMasksResponse(seeds=seeds)

    async def DeleteKeys(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._do(context, lambda: self._vault.forget_session(request.session))
        return pb.DeleteKeysResponse()


class RemoteVault(RemoteCipherVault):
    """The vault of a silo's crypto process; see :class:`hedgerow.crypto.vault.Vault`.

    Parameters
    ----------
    channel, address, timeout_seconds
        As :class:`~hedgerow.services.rpc.ciphers.RemoteCipherVault`.
    """

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
        return _sorted(response.boxes)

    def open_shares(self, session: str, first: int, count: int, boxes: Mapping[str, bytes]) -> None:
        """Keep the shares that peers sealed for this silo."""
        self._call(
            "OpenShares",
            pb.OpenSharesRequest(session=session, first=first, count=count, boxes=boxes),
        )

    def derive_masks(self, ticket: SumTicket, endorse: bool = False) -> SumMasks:
        """Return the masks of this silo's vector in a sum; once for each sum."""
        request = pb.DeriveMasksRequest(ticket=_ticket(ticket), endorse=endorse)
        found = self._call("DeriveMasks", request)
        return SumMasks(tuple(found.add), tuple(found.subtract), found.commitment, found.statement)

    def endorse(self, session: str, number: int, present: tuple[str, ...]) -> bytes:
        """Agree that the sum is unmasked over ``present``; returns what is to be signed."""
        request = pb.EndorseSetRequest(session=session, number=number, present=present)
        return bytes(self._call("EndorseSet", request).statement)

    def reveal_pair_seeds(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> dict[str, bytes]:
        """Return pair seeds with the silos that the endorsed set leaves out."""
        request = pb.RevealPairSeedsRequest(session=session, number=number, present=present)
        return _sorted(self._call("RevealPairSeeds", request).seeds)

    def reveal_shares(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> dict[str, bytes]:
        """Return the shares of the self masks of the endorsed set; ends the sum."""
        request = pb.RevealSharesRequest(session=session, number=number, present=present)
        return _sorted(self._call("RevealShares", request).shares)

    def derive_group_masks(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> tuple[bytes, ...]:
        """Return the seeds of the group masks in a sum over ``present``."""
        request = pb.DeriveGroupMasksRequest(session=session, number=number, present=present)
        return tuple(self._call("DeriveGroupMasks", request).seeds)

    def forget_session(self, session: str) -> None:
        """Erase all secrets of a session."""
        self._call("DeleteKeys", pb.DeleteKeysRequest(session=session))
