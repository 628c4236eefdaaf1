"""The crypto service: a silo's keys behind a process boundary; servicer, and the remote vault.

The ciphers' half is in :mod:`hedgerow.services.rpc.ciphers`; this is the keys and the secure sums.
A method of :class:`~hedgerow.crypto.vault.interface.Vault` and its RPC have one shape: fields of
the request are named as the arguments, or are those of the only argument; fields of the response
are those of the result, or the only one is the result. That they match is checked at import.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import field, is_dataclass, make_dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from hedgerow.api.crypto.v1 import crypto_service_pb2 as pb
from hedgerow.api.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.crypto.errors import InputRefused
from hedgerow.crypto.threads import usable_cores
from hedgerow.crypto.vault.interface import Vault
from hedgerow.services.identity.certificates import IdentityUnusable
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.ciphers import KINDS, CipherServicer, RemoteCipherVault
from hedgerow.services.rpc.crypto_calls import CallLimits
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire.records import record_of

SCHEMES = {kind: scheme for scheme, kind in KINDS.items()}
_SERVICE = pb.DESCRIPTOR.services_by_name["CryptoService"]


class _Values:
    """Values by name as a message: arguments of a method, or its result."""

    def __init__(self, values: list[Any], message: Descriptor) -> None:
        only: Any = values[0][1] if len(values) == 1 else None
        self.whole = is_dataclass(only) and values[0][0] not in message.fields_by_name
        self._kind = only if self.whole else make_dataclass(message.name, values)
        self._names = [value[0] for value in values]
        self._record = record_of(self._kind, message)
        self._message: Any = GetMessageClass(message)

    def write(self, *values: Any, **named: Any) -> Any:
        """Return the message of values."""
        content = values[0] if self.whole else self._kind(*values, **named)
        message = self._message()
        self._record.write(message, content)
        return message

    def read(self, message: Any) -> list[Any]:
        """Return the values of a message, in order."""
        content = self._record.read(message)
        return [content] if self.whole else [getattr(content, name) for name in self._names]


class _VaultCall:
    """A method of the vault and its RPC."""

    def __init__(self, method: str, rpc: str) -> None:
        function = getattr(Vault, method)
        hints = typing.get_type_hints(function)
        about = _SERVICE.methods_by_name[rpc]
        self._method, self._rpc, self._function = method, rpc, function
        arguments: list[Any] = []
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
            optional = parameter.default is not parameter.empty
            default = [field(default=parameter.default)] if optional else []
            arguments.append((name, hints[name], *default))
        self.request = _Values(arguments, about.input_type)
        result, names = hints["return"], [each.name for each in about.output_type.fields]
        values = [(names[0], result)] if names else []
        if is_dataclass(result):
            values = [("result", result)]
        self.response = _Values(values, about.output_type)

    def served(self, *, at_once: bool = False) -> Any:
        """Return the RPC's method of a servicer; ``at_once`` takes less time than a thread."""

        async def serve(servicer: CryptoServicer, request: Any, context: Any) -> Any:
            def work() -> Any:
                result = getattr(servicer.vault, self._method)(*self.request.read(request))
                return self.response.write(*([] if result is None else [result]))

            async with servicer.limits.small_call(context):
                return work() if at_once else await servicer.limits.run(work)

        return serve

    def asked(self) -> Any:
        """Return the method of the remote vault."""

        @functools.wraps(self._function)
        def ask(vault: RemoteVault, *arguments: Any, **named: Any) -> Any:
            request = self.request.write(*arguments, **named)
            found = self.response.read(vault.call(lambda stub: getattr(stub, self._rpc), request))
            return found[0] if found else None

        return ask


_JOIN = _VaultCall("join_group", "JoinGroup")
_SEAL = _VaultCall("seal_shares", "SealShares")
_OPEN = _VaultCall("open_shares", "OpenShares")
_MASKS = _VaultCall("derive_masks", "DeriveMasks")
_ENDORSE = _VaultCall("endorse", "EndorseSet")
_SEEDS = _VaultCall("reveal_pair_seeds", "RevealPairSeeds")
_SHARES = _VaultCall("reveal_shares", "RevealShares")
_GROUP_MASKS = _VaultCall("derive_group_masks", "DeriveGroupMasks")
_TOTALS_KEY = _VaultCall("derive_totals_key", "DeriveTotalsKey")
_NOISE = _VaultCall("derive_noise", "DeriveNoise")
_FORGET = _VaultCall("forget_session", "DeleteKeys")


class CryptoServicer(CipherServicer, crypto_service_pb2_grpc.CryptoServiceServicer):
    """Server side of CryptoService.

    Parameters
    ----------
    silo : str
        The only silo that is served.
    workers : int, optional
        Calls that are worked on at a time; as many as cores when left out, at least two.
    revoked : RevokedCertificates, optional
        Gets the lists that the agent brings.
    """

    def __init__(
        self,
        vault: Vault,
        silo: str,
        metrics: Metrics,
        workers: int | None = None,
        revoked: RevokedCertificates | None = None,
    ) -> None:
        admission = CallLimits(
            silo, metrics, workers if workers is not None else max(2, usable_cores())
        )
        super().__init__(vault, admission, metrics)
        self.vault = vault
        self._revoked = revoked

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        crypto_service_pb2_grpc.add_CryptoServiceServicer_to_server(self, server)
        return _SERVICE.full_name

    async def CreateKeys(self, request: Any, context: Any) -> Any:
        def make() -> bytes:
            if request.kind in (pb.KEY_KIND_X25519, pb.KEY_KIND_X25519_MLKEM768):
                hybrid = request.kind == pb.KEY_KIND_X25519_MLKEM768
                return self.vault.create_mask_key(request.session, hybrid)
            if request.kind not in SCHEMES:
                raise InputRefused(f"key kind {request.kind} is not known")
            scheme = SCHEMES[request.kind]
            return self.vault.create_cipher_key(request.session, request.key_bits, scheme)

        async with self.limits.small_call(context):
            return pb.CreateKeysResponse(public_key=await self.limits.run(make))

    async def UpdateRevocations(self, request: Any, context: Any) -> Any:
        def take() -> None:
            try:
                if self._revoked is not None:
                    self._revoked.take(request.revoked)
            except IdentityUnusable as error:
                raise InputRefused(str(error)) from error

        async with self.limits.small_call(context):
            await self.limits.run(take)
        return pb.UpdateRevocationsResponse()

    async def DeriveMasks(self, request: Any, context: Any) -> Any:
        response = await self._derive_masks(request, context)
        self._metrics.masked_values.inc(request.ticket.n_values)
        return response

    _derive_masks: Callable[..., Any] = _MASKS.served(at_once=True)
    JoinGroup = _JOIN.served()
    SealShares = _SEAL.served()
    OpenShares = _OPEN.served()
    EndorseSet = _ENDORSE.served(at_once=True)
    RevealPairSeeds = _SEEDS.served(at_once=True)
    RevealShares = _SHARES.served(at_once=True)
    DeriveGroupMasks = _GROUP_MASKS.served(at_once=True)
    DeriveTotalsKey = _TOTALS_KEY.served(at_once=True)
    DeriveNoise = _NOISE.served()
    DeleteKeys = _FORGET.served()


class RemoteVault(RemoteCipherVault):
    """The vault of a silo's crypto process; see :class:`hedgerow.crypto.vault.interface.Vault`.

    Parameters
    ----------
    channel, address, timeout_seconds
        As :class:`~hedgerow.services.rpc.ciphers.RemoteCipherVault`.
    """

    def create_mask_key(self, session: str, hybrid: bool = False) -> bytes:
        kind = pb.KEY_KIND_X25519_MLKEM768 if hybrid else pb.KEY_KIND_X25519
        request = pb.CreateKeysRequest(session=session, kind=kind)
        try:
            return bytes(self.call(lambda stub: stub.CreateKeys, request).public_key)
        except InputRefused:
            if not hybrid:
                raise
            return self.create_mask_key(session)  # a process of an older release

    def update_revocations(self, lists: bytes) -> None:
        """Bring the process what the CA has revoked, PEM; it checks who signed that."""
        self.call(lambda stub: stub.UpdateRevocations, pb.UpdateRevocationsRequest(revoked=lists))

    join_group = _JOIN.asked()
    seal_shares = _SEAL.asked()
    open_shares = _OPEN.asked()
    derive_masks = _MASKS.asked()
    endorse = _ENDORSE.asked()
    reveal_pair_seeds = _SEEDS.asked()
    reveal_shares = _SHARES.asked()
    derive_group_masks = _GROUP_MASKS.asked()
    derive_totals_key = _TOTALS_KEY.asked()
    derive_noise = _NOISE.asked()
    forget_session = _FORGET.asked()
