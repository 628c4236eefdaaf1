"""Both halves of a strategy in one process, with the real barrier and no transport.

Silos run in threads and meet the coordinator half on an event loop. ``through_wire`` passes every
payload through its protobuf codec. ``faults`` kill silos at chosen exchanges.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hedgerow.boosting import warm_start
from hedgerow.boosting.allowances import EVERY_CLASS, QuotaChannel
from hedgerow.boosting.budget import Accountant, BudgetLedger
from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.errors import JobStopped, ModelRejected, SignatureInvalid
from hedgerow.boosting.exchange import Discloses, ExchangeKey, Silo, Step
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    JobParameters,
    Journal,
    ModelCheck,
    RoundResult,
    SiloStart,
)
from hedgerow.coordinator.server.barrier import ArrivedOffer, Barrier
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.wire import BoxCodec


class KeyedIdentity:
    """An identity whose signatures are keyed hashes: quick, and nobody forges them here."""

    def __init__(self, silo: str) -> None:
        self.silo = silo
        self.certificate = b"certificate of " + silo.encode()

    def sign(self, message: bytes) -> bytes:
        return _signed(self.silo, message)

    def verify(self, silo: Silo, certificate: bytes, message: bytes, signature: bytes) -> None:
        if certificate != b"certificate of " + silo.encode():
            raise SignatureInvalid(f"expected a certificate of {silo}")
        if signature != _signed(silo, message):
            raise SignatureInvalid(f"not signed by {silo}")


def _signed(silo: str, message: bytes) -> bytes:
    return hmac.digest(b"key of " + silo.encode(), message, "sha256")


class SiloKilled(BaseException):
    """The silo's process dies here."""


@dataclass(frozen=True)
class Fault:
    """Kill ``silo`` when it comes to a step; ``before`` or ``after`` its offer is in."""

    silo: str
    step: str
    round: int = 0
    level: int = 0
    when: str = "before"  # before | after (the reply never arrives)
    passing: int | None = None  # the first that comes where left out


@dataclass
class MemoryLink:
    """A silo's end without a network."""

    silo: Silo
    hub: Barrier
    loop: asyncio.AbstractEventLoop
    through_wire: bool = False
    faults: tuple[Fault, ...] = ()
    memory: dict[str, bytes] = field(default_factory=dict)
    traffic: list[tuple[str, ExchangeKey, int]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        assert isinstance(offer, step.offer), f"{step.name}: {type(offer).__name__}"
        fault = next(
            (
                f
                for f in self.faults
                if f.silo == self.silo
                and (f.step, f.round, f.level) == (step.name, at.round, at.level)
                and f.passing in (None, at.passing)
            ),
            None,
        )
        if fault is not None and fault.when == "before":
            raise SiloKilled
        if self.through_wire:
            offer = through_wire(offer)
        parcel = self.parcel(step, at, offer)
        if fault is not None:  # once the offer is in: the loop takes turns in order
            asyncio.run_coroutine_threadsafe(self._offered(step, at, parcel), self.loop)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result()
            raise SiloKilled
        reply = self.meet(step, at, parcel)
        self.answered.set()
        assert isinstance(reply, step.reply), f"{step.name}: {type(reply).__name__}"
        return through_wire(reply) if self.through_wire else reply

    def parcel(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> ArrivedOffer[Any]:
        """Return the offer as it arrives at the coordinator."""
        return ArrivedOffer(step.call, lambda _: offer)

    def meet(self, step: Step[Any, Any], at: ExchangeKey, parcel: ArrivedOffer[Any]) -> Any:
        """Give an offer to the hub and wait for its reply."""
        offered = self._offered(step, at, parcel)
        return asyncio.run_coroutine_threadsafe(offered, self.loop).result(timeout=600)

    async def _offered(
        self, step: Step[Any, Any], at: ExchangeKey, parcel: ArrivedOffer[Any]
    ) -> Any:
        return await asyncio.shield(self.hub.offer(self.silo, step.name, at, parcel))

    def check(self) -> None:
        if self.stopped.is_set():
            raise JobStopped("stopped by the test")

    def remember(self, key: str, value: bytes) -> None:
        self.memory[key] = value

    def recall(self, key: str) -> bytes | None:
        return self.memory.get(key)


@dataclass
class MemoryJournal:
    """A coordinator's journal, as its store would keep it."""

    records: dict[str, bytes] = field(default_factory=dict)

    def remember(self, key: str, value: bytes) -> None:
        self.records[key] = value

    def recall(self, key: str) -> bytes | None:
        return self.records.get(key)


def through_wire(payload: Any) -> Any:
    """Encode a payload to serialised frames and decode it again."""
    from hedgerow.services.wire import codec_of

    codec = codec_of(type(payload))
    parts = list(codec.encode(payload))
    for part in parts:
        assert part.ByteSize() < 4 << 20, "a frame is over gRPC's message limit"
    return codec.decode(again(part) for part in parts)


def again(part: Any) -> Any:
    """Return a part as it comes out of its frame."""
    from hedgerow.services.wire.bulk import LongBytes, Serialised, frame, opened

    if isinstance(part, LongBytes):
        return opened(frame(9, part), 9, part.kind, part.number)
    if isinstance(part, Serialised):
        return part.message()
    return type(part).FromString(part.SerializeToString())


@dataclass
class Outcome:
    """How an in-memory job ended."""

    rounds: list[RoundResult]
    artefact: Artefact | None
    kept: dict[Silo, Artefact | None]
    errors: dict[Silo, BaseException]
    lost: list[tuple[Silo, str]]
    open_places: int
    error: BaseException | None = None
    checks: dict[Silo, ModelCheck] = field(default_factory=dict)
    rejected: dict[Silo, ModelRejected] = field(default_factory=dict)


def run_in_memory(
    job: JobParameters,
    datasets: Mapping[str, Dataset],
    *,
    schema: Schema | None = None,
    test: Dataset | None = None,
    tests: Mapping[str, Dataset] | None = None,
    validation: Mapping[str, Dataset] | None = None,
    checkpoint: bytes | None = None,
    first_round: int = 0,
    attempt: int = 1,
    through_wire: bool = False,
    faults: tuple[Fault, ...] = (),
    vaults: Callable[[str], Any] | None = None,
    identities: Callable[[str], Any] | None = None,
    memories: Mapping[str, dict[str, bytes]] | None = None,
    stop_after_rounds: int | None = None,
    timeout_seconds: float = 300.0,
    late: Mapping[str, float] | None = None,
    joins_after: Mapping[str, int] | None = None,
    journal: Journal | None = None,
    make_link: Callable[..., MemoryLink] = MemoryLink,
    participate_as: Callable[..., Any] | None = None,
    accountants: Mapping[str, Accountant] | None = None,
    may_send: frozenset[Discloses] = EVERY_CLASS,
    make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    lied: bool = False,
    starting_model: bytes = b"",
    least_silos: int = 0,
    told_least: int | None = None,
) -> Outcome:
    """Run a whole job; a killed silo is reported lost at once, as an expired lease would.

    ``joins_after`` maps a silo to the round after which it joins: the next round begins once the
    silo's first exchange has been answered. Every silo must know the result as its own; where some
    are ``lied`` to, the outcome names those that reject it instead. Silos of a horizontal job sign
    by :class:`KeyedIdentity` unless other ``identities`` are given. ``least_silos`` is that of all
    policies, of which the coordinator is told unless ``told_least`` is another number.
    """
    if not (job.vertical or job.columns.weighs) and any(
        data.weight is not None for data in datasets.values()
    ):
        job = replace(job, columns=replace(job.columns, weight="w"))
    silos = tuple(Silo(name) for name in sorted(datasets))
    schema = schema or next(iter(datasets.values())).schema
    kept_within = job.parameters.safeguards(job)
    epsilon = kept_within.epsilon or math.inf

    waiting = dict(joins_after or {})
    if identities is None and not job.vertical:
        identities = KeyedIdentity

    async def main() -> Outcome:
        loop = asyncio.get_running_loop()
        lost: list[tuple[Silo, str]] = []
        hub = Barrier(
            silos,
            tuple(s for s in silos if s not in (late or {}) and s not in waiting),
            timeout_seconds,
            lambda silo, present, detail: None if present else lost.append((silo, detail)),
        )
        joined = {silo: threading.Event() for silo in silos}
        kept: dict[Silo, Artefact | None] = {}
        checks: dict[Silo, ModelCheck] = {}
        rejected: dict[Silo, ModelRejected] = {}
        errors: dict[Silo, BaseException] = {}

        def silo_main(silo: Silo) -> None:
            link = make_link(
                silo,
                hub,
                loop,
                through_wire,
                faults,
                memories[silo] if memories is not None else {},
                answered=joined[silo],
            )
            start = SiloStart(
                job=job,
                job_id="job",
                attempt=attempt,
                silo=silo,
                silos=silos,
                schema=schema,
                dataset=datasets[silo],
                first_round=first_round,
                test=(tests or {}).get(silo),
                validation=(validation or {}).get(silo),
                identity=identities(silo) if identities else None,
                codec=BoxCodec(),
                accountant=accountants[silo]
                if accountants
                else BudgetLedger(epsilon, delta=kept_within.delta),
                least_silos=least_silos,
                draws=job.seed,
            )
            try:
                # Counted as an agent counts: what an honest job needs is always allowed.
                guarded = QuotaChannel(
                    link,
                    warm_start.allowances(job, schema, len(silos)),
                    may_send,
                )
                vault = vaults(silo) if vaults else LocalVault()
                own = (
                    participate_as(job.parameters, guarded, vault, start)
                    if participate_as
                    else warm_start.participate(guarded, vault, start)
                )
                kept[silo] = own if isinstance(own, Artefact) else None
                if own is not None and kept[silo] is None:
                    checks[silo] = own
            except BaseException as error:
                errors[silo] = error
                loop.call_soon_threadsafe(hub.drop, silo, f"killed: {type(error).__name__}")

        async def participate(silo: Silo) -> None:
            if late and silo in late:
                await asyncio.sleep(late[silo])
                hub.join(silo)
            await asyncio.to_thread(silo_main, silo)

        from concurrent.futures import ThreadPoolExecutor

        loop.set_default_executor(ThreadPoolExecutor(len(silos) + 8))
        tasks = [asyncio.create_task(participate(silo)) for silo in silos if silo not in waiting]
        rounds: list[RoundResult] = []
        error: BaseException | None = None
        start = CoordinatorStart(
            job=job,
            job_id="job",
            attempt=attempt,
            silos=silos,
            schema=schema,
            n_samples={silo: datasets[silo].n_samples for silo in silos},
            checkpoint=checkpoint,
            test=test,
            journal=journal,
            starting_model=starting_model,
            least_silos=least_silos if told_least is None else told_least,
        )
        halves = warm_start.coordinate(hub, start)
        try:
            async for result in halves:
                rounds.append(result)
                for silo in [s for s in silos if waiting.get(s) == result.round]:
                    hub.join(silo)
                    tasks.append(asyncio.create_task(participate(silo)))
                    await asyncio.to_thread(joined[silo].wait, timeout_seconds)
                if stop_after_rounds is not None and len(rounds) >= stop_after_rounds:
                    break
        except Exception as failure:
            error = failure
        finally:
            await halves.aclose()  # type: ignore[attr-defined]
        open_places = hub.open_places
        if error is None and stop_after_rounds is None:
            deadline = loop.time() + timeout_seconds
            while loop.time() < deadline:
                done, _ = await asyncio.wait(tasks, timeout=0.05)
                if len(done) + len(hub.unclaimed) >= len(tasks):  # as the coordinator's farewell
                    break
        hub.end(JobStopped("the job has ended"))
        await asyncio.gather(*tasks)
        artefact = None
        if error is None and rounds:
            artefact = warm_start.artefact(job, schema, rounds[-1].checkpoint, starting_model)
            if rounds[-1].final:
                for silo, check in checks.items():
                    try:
                        check(artefact.files)
                    except ModelRejected as rejection:
                        if not lied:
                            raise
                        rejected[silo] = rejection
        return Outcome(rounds, artefact, kept, errors, lost, open_places, error, checks, rejected)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main())
