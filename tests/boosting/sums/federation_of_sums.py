"""A federation that only sums: both halves with the real barrier, threads for silos."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from hedgerow.boosting.errors import JobStopped, SignatureInvalid
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.groups import Groups, OpenedSets
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.crypto.masking.key_agreement import encode_fields
from hedgerow.crypto.vault.interface import Vault
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation.memory import Fault, MemoryLink

ECDSA = ec.ECDSA(hashes.SHA256())


class Authority:
    """Certifies names: the least that an identity needs of a CA."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())


class TestIdentity:
    """P-256 identity of one silo; its certificate is its name and key under the authority."""

    __test__ = False

    def __init__(self, authority: Authority, silo: str) -> None:
        self.authority = authority
        self.key = ec.generate_private_key(ec.SECP256R1())
        public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        proof = authority.key.sign(encode_fields(silo, public), ECDSA)
        self.certificate = len(public).to_bytes(2, "big") + public + proof

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message, ECDSA)

    def verify(self, silo: Silo, certificate: bytes, message: bytes, signature: bytes) -> None:
        size = int.from_bytes(certificate[:2], "big")
        public, proof = certificate[2 : 2 + size], certificate[2 + size :]
        try:
            self.authority.key.public_key().verify(proof, encode_fields(silo, public), ECDSA)
            key = load_der_public_key(public)
            assert isinstance(key, ec.EllipticCurvePublicKey)
            key.verify(signature, message, ECDSA)
        except InvalidSignature as error:
            raise SignatureInvalid(f"not signed by {silo}") from error


class WatchedLink(MemoryLink):
    """A silo's end that notes the name of every exchange."""

    seen: list[tuple[Silo, str]]

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        self.seen.append((self.silo, step.name))
        return super().exchange(step, at, offer)


@dataclass
class Federation:
    """Silos that sum, over one or several attempts.

    ``memories`` outlive an attempt, vaults do not unless they are kept. ``groups`` are none where
    a test is of what masks, shares and signatures hold by themselves, whatever the set.
    """

    silos: tuple[Silo, ...]
    parameters: SumParameters = field(default_factory=SumParameters)
    through_wire: bool = False
    timeout_seconds: float = 60.0
    linger_seconds: float = 60.0  # for silos to finish after the coordinator half
    groups: Groups = ()
    make_vault: Callable[[], Vault] = LocalVault
    authority: Authority = field(default_factory=Authority)
    memories: dict[Silo, dict[str, bytes]] = field(default_factory=dict)
    identities: dict[Silo, TestIdentity] = field(default_factory=dict)
    companions: dict[Silo, list[Silo]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for silo in self.silos:
            self.memories.setdefault(silo, {})
            self.companions.setdefault(silo, [])
            self.identities.setdefault(silo, TestIdentity(self.authority, silo))

    def run(
        self,
        coordinate: Callable[[CoordinatorSums, Barrier], Awaitable[Any]],
        participate: Callable[[SiloSums, MemoryLink], Any],
        *,
        attempt: int = 1,
        faults: tuple[Fault, ...] = (),
        present: tuple[Silo, ...] | None = None,
    ) -> SumsEnded:
        """Run both halves to their ends; what they raised is in the result."""
        present = self.silos if present is None else present
        return asyncio.run(self._run(coordinate, participate, attempt, faults, present))

    async def _run(
        self,
        coordinate: Callable[[CoordinatorSums, Barrier], Awaitable[Any]],
        participate: Callable[[SiloSums, MemoryLink], Any],
        attempt: int,
        faults: tuple[Fault, ...],
        present: tuple[Silo, ...],
    ) -> SumsEnded:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(len(self.silos) + 4))
        hub = Barrier(self.silos, present, self.timeout_seconds)
        ended = SumsEnded()

        def silo_main(silo: Silo) -> None:
            link = WatchedLink(silo, hub, loop, self.through_wire, faults, self.memories[silo])
            link.seen = ended.traffic
            try:
                sums = SiloSums(
                    link,
                    self.make_vault(),
                    self.identities[silo],
                    silo=silo,
                    roster=self.silos,
                    job_id="job",
                    job_digest=b"job",
                    attempt=attempt,
                    parameters=self.parameters,
                    opened=OpenedSets(self.groups, companions=self.companions[silo]),
                )
                ended.silos[silo] = participate(sums, link)
            except BaseException as error:
                ended.errors[silo] = error
                loop.call_soon_threadsafe(hub.drop, silo, type(error).__name__)

        threads = [asyncio.create_task(asyncio.to_thread(silo_main, silo)) for silo in present]
        sums = CoordinatorSums(
            hub,
            job_id="job",
            attempt=attempt,
            parameters=self.parameters,
            opened=OpenedSets(self.groups),
        )
        try:
            ended.result = await coordinate(sums, hub)
            await asyncio.wait(threads, timeout=self.linger_seconds)
        except Exception as error:
            ended.error = error
        hub.end(JobStopped("the job has ended"))
        await asyncio.gather(*threads)
        return ended


@dataclass
class SumsEnded:
    """What both halves returned or raised."""

    result: Any = None
    error: Exception | None = None
    silos: dict[Silo, Any] = field(default_factory=dict)
    errors: dict[Silo, BaseException] = field(default_factory=dict)
    traffic: list[tuple[Silo, str]] = field(default_factory=list)

    def exchanges(self, silo: Silo) -> list[str]:
        """Names of the exchanges that a silo began, in order."""
        return [step for who, step in self.traffic if who == silo]


def names(count: int) -> tuple[Silo, ...]:
    return tuple(Silo(f"silo-{k:03}") for k in range(count))
