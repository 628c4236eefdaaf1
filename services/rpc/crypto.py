"""The crypto service: a silo's keys behind a process boundary; servicer, and the remote vault.

The ciphers' half is in :mod:`hedgerow.services.rpc.ciphers`; this is the keys and the secure sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import grpc

from hedgerow.api.crypto.v1 import crypto_service_pb2 as pb
from hedgerow.api.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.crypto.errors import InputRefused
from hedgerow.crypto.noise_keys import NoiseSeed
from hedgerow.crypto.threads import usable_cores
from hedgerow.crypto.vault import (
    DealtBox,
    MaskGroup,
    Reveal,
    SumMasks,
    SumTicket,
    TreeRoots,
    Vault,
)
from hedgerow.services.rpc.ciphers import KINDS, CipherServicer, RemoteCipherVault
from hedgerow.services.rpc.crypto_calls import CallLimits
from hedgerow.services.rpc.metering import Metrics

SCHEMES = {kind: scheme for scheme, kind in KINDS.items()}


def _sorted(received: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a map in the order of its keys; on the wire it has none."""
    return {key: received[key] for key in sorted(received)}


def _read_ticket(ticket: pb.SumTicket) -> SumTicket:
    return SumTicket(
        ticket.session,
        ticket.number,
        ticket.view,
        tuple(ticket.participants),
        ticket.n_values,
        ticket.self_mask,
        ticket.group_mask,
    )


def _boxes(boxes: Mapping[str, DealtBox]) -> dict[str, pb.DealtBox]:
    return {silo: pb.DealtBox(**asdict(dealt)) for silo, dealt in boxes.items()}


def _read_boxes(boxes: Mapping[str, pb.DealtBox]) -> dict[str, DealtBox]:
    return {silo: DealtBox(boxes[silo].box, boxes[silo].commitments) for silo in sorted(boxes)}


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
        admission = CallLimits(
            silo, metrics, workers if workers is not None else max(2, usable_cores())
        )
        super().__init__(vault, admission, metrics)
        self._vault = vault

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        crypto_service_pb2_grpc.add_CryptoServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["CryptoService"].full_name

    async def _do(self, context: Any, work: Callable[[], Any]) -> Any:
        async with self._limits.small_call(context):
            return await self._limits.run(work)

    async def _at_once(self, context: Any, work: Callable[[], Any]) -> Any:
        """Do what takes less time than to hand it to a thread: a few hashes a silo."""
        async with self._limits.small_call(context):
            return work()

    async def CreateKeys(self, request: Any, context: Any) -> Any:
        def make() -> bytes:
            if request.kind == pb.KEY_KIND_X25519:
                return self._vault.create_mask_key(request.session)
            if request.kind not in SCHEMES:
                raise InputRefused(f"key kind {request.kind} is not known")
            scheme = SCHEMES[request.kind]
            return self._vault.create_cipher_key(request.session, request.key_bits, scheme)

        return pb.CreateKeysResponse(public_key=await self._do(context, make))

    async def JoinGroup(self, request: Any, context: Any) -> Any:
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

    async def SealShares(self, request: Any, context: Any) -> Any:
        dealt = await self._do(
            context,
            lambda: self._vault.seal_shares(
                request.session,
                request.first,
                request.count,
                tuple(request.participants),
                request.group_key,
            ),
        )
        return pb.SealSharesResponse(boxes=_boxes(dealt))

    async def OpenShares(self, request: Any, context: Any) -> Any:
        await self._do(
            context,
            lambda: self._vault.open_shares(
                request.session, request.first, request.count, _read_boxes(request.boxes)
            ),
        )
        return pb.OpenSharesResponse()

    async def DeriveMasks(self, request: Any, context: Any) -> Any:
        ticket = _read_ticket(request.ticket)
        endorse = request.endorse
        masks = await self._at_once(context, lambda: self._vault.derive_masks(ticket, endorse))
        self._metrics.masked_values.inc(ticket.n_values)
        return pb.DeriveMasksResponse(
            add=masks.add,
            subtract=masks.subtract,
            commitment=masks.commitment,
            tag=masks.tag,
            statement=masks.statement,
        )

    async def EndorseSet(self, request: Any, context: Any) -> Any:
        statement = await self._at_once(
            context,
            lambda: self._vault.endorse(request.session, request.number, tuple(request.present)),
        )
        return pb.EndorseSetResponse(statement=statement)

    async def RevealPairSeeds(self, request: Any, context: Any) -> Any:
        seeds = await self._at_once(
            context,
            lambda: self._vault.reveal_pair_seeds(
                request.session, request.number, tuple(request.present)
            ),
        )
        return pb.RevealPairSeedsResponse(seeds=seeds)

    async def RevealShares(self, request: Any, context: Any) -> Any:
        reveal = await self._at_once(
            context,
            lambda: self._vault.reveal_shares(
                request.session, request.number, tuple(request.present), request.opens_tree
            ),
        )
        tree = None if reveal.tree is None else pb.TreeRoots(**asdict(reveal.tree))
        return pb.RevealSharesResponse(shares=reveal.shares, tree=tree)

    async def DeriveGroupMasks(self, request: Any, context: Any) -> Any:
        seeds = await self._at_once(
            context,
            lambda: self._vault.derive_group_masks(
                request.session, request.number, tuple(request.present)
            ),
        )
        return pb.DeriveGroupMasksResponse(seeds=seeds)

    async def DeriveNoise(self, request: Any, context: Any) -> Any:
        found = await self._do(context, lambda: self._vault.derive_noise(request.context))
        return pb.DeriveNoiseResponse(key_id=found.key_id, seed=found.seed)

    async def DeleteKeys(self, request: Any, context: Any) -> Any:
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
        request = pb.CreateKeysRequest(session=session, kind=pb.KEY_KIND_X25519)
        return bytes(self._call(lambda stub: stub.CreateKeys, request).public_key)

    def join_group(self, group: MaskGroup) -> None:
        self._call(
            lambda stub: stub.JoinGroup,
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
    ) -> dict[str, DealtBox]:
        response = self._call(
            lambda stub: stub.SealShares,
            pb.SealSharesRequest(
                session=session,
                first=first,
                count=count,
                participants=participants,
                group_key=group_key,
            ),
        )
        return _read_boxes(response.boxes)

    def open_shares(
        self, session: str, first: int, count: int, boxes: Mapping[str, DealtBox]
    ) -> None:
        request = pb.OpenSharesRequest(
            session=session, first=first, count=count, boxes=_boxes(boxes)
        )
        self._call(lambda stub: stub.OpenShares, request)

    def derive_masks(self, ticket: SumTicket, endorse: bool = False) -> SumMasks:
        request = pb.DeriveMasksRequest(ticket=pb.SumTicket(**asdict(ticket)), endorse=endorse)
        found = self._call(lambda stub: stub.DeriveMasks, request)
        return SumMasks(
            tuple(found.add), tuple(found.subtract), found.commitment, found.tag, found.statement
        )

    def endorse(self, session: str, number: int, present: tuple[str, ...]) -> bytes:
        request = pb.EndorseSetRequest(session=session, number=number, present=present)
        return bytes(self._call(lambda stub: stub.EndorseSet, request).statement)

    def reveal_pair_seeds(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> dict[str, bytes]:
        request = pb.RevealPairSeedsRequest(session=session, number=number, present=present)
        return _sorted(self._call(lambda stub: stub.RevealPairSeeds, request).seeds)

    def reveal_shares(
        self, session: str, number: int, present: tuple[str, ...], opens_tree: bool = False
    ) -> Reveal:
        request = pb.RevealSharesRequest(
            session=session, number=number, present=present, opens_tree=opens_tree
        )
        found = self._call(lambda stub: stub.RevealShares, request)
        tree = None
        if found.HasField("tree"):
            roots = found.tree
            tree = TreeRoots(_sorted(roots.pairs), _sorted(roots.group), roots.tag_key)
        return Reveal(_sorted(found.shares), tree)

    def derive_group_masks(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> tuple[bytes, ...]:
        request = pb.DeriveGroupMasksRequest(session=session, number=number, present=present)
        return tuple(self._call(lambda stub: stub.DeriveGroupMasks, request).seeds)

    def forget_session(self, session: str) -> None:
        self._call(lambda stub: stub.DeleteKeys, pb.DeleteKeysRequest(session=session))

    def derive_noise(self, context: bytes) -> NoiseSeed:
        request = pb.DeriveNoiseRequest(context=context)
        found = self._call(lambda stub: stub.DeriveNoise, request)
        return NoiseSeed(found.key_id, found.seed)
