"""The barrier: silos' offers meet the coordinator half of a strategy, for one attempt of a job.

A transport hands each incoming exchange to :meth:`Barrier.offer` and awaits the reply; a
strategy uses the other methods. Everything runs on one event loop, so no state needs a lock.

Idempotency: an offer is identified by (step, place, silo). The first one wins; a resend waits for,
or gets, the same reply. A silo's next offer acknowledges its previous reply, which is forgotten
then. Nothing grows: of each silo at most one offer is kept that nobody has asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hedgerow.boosting.errors import OfferRejected, PlacePassed, QuorumLost
from hedgerow.boosting.exchange import Call, ExchangeKey, Offer, Reply, Silo, Step
from hedgerow.coordinator.server.arrived import ArrivedOffer
from hedgerow.coordinator.server.waiting import Waiting
from hedgerow.services.process.tracing import stepped


@dataclass(slots=True)
class _Entry:
    """One silo's offer at one place, and the reply it waits for."""

    parcel: ArrivedOffer[Any]
    reply: asyncio.Future[Any]


@dataclass(slots=True)
class _Barrier:
    """One place of one step."""

    entries: dict[Silo, _Entry] = field(default_factory=dict)
    new: dict[Silo, _Entry] = field(default_factory=dict)
    expected: frozenset[Silo] = frozenset()
    claimed: bool = False
    closed: bool = False
    since: float = 0.0


Key = tuple[str, ExchangeKey]


class Barrier:
    """The hub of one attempt.

    Parameters
    ----------
    timeout_seconds : float
        Deadline of a step that does not set its own.
    on_change : callable, optional
        Called as ``on_change(silo, present, detail)`` when a silo is lost or returns.
    """

    def __init__(
        self,
        roster: tuple[Silo, ...],
        present: tuple[Silo, ...],
        timeout_seconds: float,
        on_change: Callable[[Silo, bool, str], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._roster = frozenset(roster)
        self._present = set(present)
        self._left: Counter[Silo] = Counter()
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._on_change = on_change or (lambda silo, present, detail: None)
        self._barriers: dict[Key, _Barrier] = {}
        self._passed: dict[str, ExchangeKey] = {}
        self._served: dict[str, tuple[Step[Any, Any], Callable[[Silo, ExchangeKey, Any], Any]]] = {}
        self._last: dict[Silo, tuple[Key, _Entry]] = {}
        self._unclaimed: dict[Silo, tuple[Key, _Entry]] = {}
        self._serving: dict[Silo, tuple[Key, _Entry, asyncio.Task[None]]] = {}
        self._undelivered: set[tuple[Silo, str, ExchangeKey]] = set()
        self._sent, self._changed = asyncio.Event(), asyncio.Event()
        self._changes = self._moves = 0
        self._ended: Exception | None = None

    # --- the strategy's side (hedgerow.boosting.exchange.CoordinatorEndpoint) ---

    @property
    def silos(self) -> tuple[Silo, ...]:
        """Silos that take part now, sorted."""
        return tuple(sorted(self._present))

    @property
    def left(self) -> Counter[Silo]:
        """How often each silo has left the present set."""
        return self._left.copy()

    @property
    def away(self) -> frozenset[Silo]:
        """Silos of the roster that do not take part now."""
        return self._roster - self._present

    @property
    def unclaimed(self) -> frozenset[Silo]:
        """Silos whose offer waits for a step that the strategy's half has not come to."""
        return frozenset(self._unclaimed)

    @stepped
    async def collect(
        self,
        step: Step[Any, Reply],
        at: ExchangeKey,
        *,
        read: Callable[[Silo, Any], Any] | None = None,
        silos: tuple[Silo, ...] | None = None,
        since: Counter[Silo] | None = None,
        quorum: int | None = None,
        except_for: Collection[Silo] = (),
        timeout_seconds: float | None = None,
    ) -> dict[Silo, Any]:
        """Return the offers of a place; see ``CoordinatorEndpoint``."""
        expected = frozenset(self.silos if silos is None else silos)
        needed = len(expected) if quorum is None else quorum
        barrier = self._barriers.setdefault((step.name, at), _Barrier())
        barrier.claimed = True
        barrier.since = self._now()
        barrier.new = dict(barrier.entries)
        invited = None if silos is None else expected
        left = self.left if since is None else since
        deadline = asyncio.get_running_loop().time() + (timeout_seconds or self._timeout_seconds)
        opened: dict[Silo, Any] = {}
        refused: dict[Silo, str] = {}
        here: frozenset[Silo] = frozenset()
        awaited: set[Silo] = set()
        moves, timed_out = -1, False
        while True:
            changes = self._changes
            awaited -= await self._open_new(step, barrier, invited, read, opened, refused)
            if self._ended is not None:
                raise self._ended
            if moves != self._moves:  # offers come one by one: no look at all silos for each
                moves, here = self._moves, (expected & self._present).difference(except_for)
                if invited is not None:  # a reconnected silo re-enters under a new key
                    here = frozenset(silo for silo in here if self._left[silo] == left[silo])
                barrier.expected = here
                awaited = set(here - opened.keys() - refused.keys())
            if not awaited or timed_out:
                break
            if quorum is None and here < expected:
                break
            if changes != self._changes:
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                timed_out = True
        for silo in sorted(awaited):
            if timed_out:
                self.drop(silo, f"no offer for step {step.name!r} before its deadline")
        missing = sorted(expected - opened.keys())
        if len(opened) < needed or (quorum is None and missing):
            # Why the others are away is the attempt's to say, in one place for all barriers.
            lost = sorted((self.away if quorum is not None else frozenset()) | (expected - here))
            names = [f"{s} ({refused[s]})" if s in refused else str(s) for s in lost]
            raise QuorumLost(
                f"step {step.name!r} of round {at.round} needs {needed} silos, "
                f"{len(opened)} offered" + (f"; missing {', '.join(names)}" if names else "")
            )
        barrier.closed = True
        self._passed[step.name] = max(at, self._passed.get(step.name, at))
        for silo, entry in barrier.entries.items():
            if silo not in opened:
                self._refuse(entry, _passed(step.name, at, silo))
        return {silo: opened[silo] for silo in sorted(opened)}

    async def _open_new(
        self,
        step: Step[Any, Reply],
        barrier: _Barrier,
        invited: frozenset[Silo] | None,
        read: Callable[[Silo, Any], Any] | None,
        opened: dict[Silo, Any],
        refused: dict[Silo, str],
    ) -> set[Silo]:
        """Read the new offers of a barrier; return whose they were."""
        arrived: list[tuple[Silo, _Entry]] = []
        new, barrier.new = barrier.new, {}
        for silo, entry in new.items():
            if silo in opened or entry.reply.done() or barrier.entries.get(silo) is not entry:
                continue
            if invited is not None and silo not in invited:
                continue
            if self._unclaimed.get(silo, (None, None))[1] is entry:
                del self._unclaimed[silo]
            arrived.append((silo, entry))
        # A worker thread is woken once for all that have arrived: that costs more than most offers.
        large = [one for one in arrived if one[1].parcel.large]
        found = [_read(one, step, read) for one in arrived if not one[1].parcel.large]
        if large:
            found += await asyncio.to_thread(lambda: [_read(one, step, read) for one in large])
        for (silo, entry), offer in found:
            if isinstance(offer, OfferRejected):
                refused[silo] = str(offer)
                self._refuse(entry, offer)
                self.drop(silo, str(offer))
            else:
                opened[silo] = offer
        return {silo for silo, _ in arrived}

    def answer(
        self, step: Step[Offer, Reply], at: ExchangeKey, replies: Mapping[Silo, Reply]
    ) -> None:
        """Release silos with their replies; see ``CoordinatorEndpoint``."""
        barrier = self._barriers[step.name, at]
        for silo, reply in replies.items():
            assert isinstance(reply, step.reply), f"{step.name}: a {type(reply).__name__}"
            entry = barrier.entries.get(silo)
            if entry is not None and not entry.reply.done():
                entry.reply.set_result(reply)
                if entry.parcel.remote:
                    self._undelivered.add((silo, step.name, at))
        self._forget_if_done((step.name, at))

    def reject(self, step: Step[Offer, Reply], at: ExchangeKey, silo: Silo, reason: str) -> None:
        """Refuse a collected offer; see ``CoordinatorEndpoint``."""
        entry = self._barriers[step.name, at].entries.get(silo)
        if entry is not None:
            self._refuse(entry, OfferRejected(reason))
        self.drop(silo, reason)
        self._forget_if_done((step.name, at))

    def dismiss(self, step: Step[Offer, Reply], silo: Silo) -> None:
        """Let a waiting silo go; see ``CoordinatorEndpoint``."""
        for (name, at), barrier in list(self._barriers.items()):
            entry = barrier.entries.get(silo)
            if name == step.name and entry is not None and not entry.reply.done():
                self._refuse(entry, _passed(name, at, silo))
                self._forget_if_done((name, at))

    def serve(
        self, step: Step[Offer, Reply], handler: Callable[[Silo, ExchangeKey, Offer], Reply]
    ) -> None:
        """Answer offers of ``step`` one by one; see ``CoordinatorEndpoint``."""
        self._served[step.name] = (step, handler)
        for key in [key for key in self._barriers if key[0] == step.name]:
            for silo, entry in self._barriers.pop(key).entries.items():
                if entry.reply.done():
                    continue
                if self._unclaimed.get(silo, (None, None))[1] is entry:
                    del self._unclaimed[silo]
                self._serve_one(silo, key[1], entry, step, handler)

    def drop(self, silo: Silo, reason: str) -> None:
        """Take a silo out of the present set."""
        if silo in self._present:
            self._present.discard(silo)
            self._left[silo] += 1
            self._on_change(silo, False, reason)
            self._note_change(moved=True)

    # --- the transport's and the runner's side ---

    def join(self, silo: Silo) -> None:
        """Add a silo of the roster to the present set."""
        if silo in self._roster and silo not in self._present:
            self._present.add(silo)
            self._on_change(silo, True, "")
            self._note_change(moved=True)

    def n_offered(self, step: str, at: ExchangeKey) -> int:
        """Return how many silos have offered at a place that is kept in memory."""
        barrier = self._barriers.get((step, at))
        return 0 if barrier is None else len(barrier.entries)

    @property
    def waiting(self) -> Waiting | None:
        """The step that has waited longest, and the silos that have not offered."""
        found: list[Waiting] = []
        for (step, at), barrier in self._barriers.items():
            silos = tuple(sorted((barrier.expected & self._present) - barrier.entries.keys()))
            if barrier.claimed and not barrier.closed and silos:
                what = f"step {step!r} of round {at.round}"
                found.append(Waiting(what, barrier.since, silos))
        return min(found, key=lambda one: one.since, default=None)

    def admit(self, silo: Silo) -> None:
        """Check that a silo may offer at all; before anything of its offer is kept."""
        if silo not in self._roster:
            raise OfferRejected(f"{silo} is not on the roster of this job")

    def offer(
        self, silo: Silo, step: str, at: ExchangeKey, parcel: ArrivedOffer[Any]
    ) -> asyncio.Future[Any]:
        """Take an offer in; the future is its reply, or raises why there is none.

        A resend returns the future of the first offer and leaves its parcel unread.
        """
        if self._ended is not None:
            raise self._ended
        self.admit(silo)
        key = (step, at)
        previous = self._last.get(silo)
        if previous is not None and previous[0] == key and step not in self._served:
            return previous[1].reply
        serving = self._serving.get(silo)
        if serving is not None and not serving[1].reply.done():
            if serving[0] == key:
                return serving[1].reply
            raise OfferRejected(f"step {serving[0][0]!r} is still reading an offer of {silo}")
        self._acknowledge(silo)
        entry = _Entry(parcel, asyncio.get_running_loop().create_future())
        entry.reply.add_done_callback(_retrieve)
        if step in self._served:
            self._last[silo] = (key, entry)
            self._serve_one(silo, at, entry, *self._served[step])
            return entry.reply
        barrier = self._barriers.setdefault(key, _Barrier())
        known = barrier.entries.get(silo)
        if known is not None:
            return known.reply
        passed = self._passed.get(step)
        if barrier.closed or (passed is not None and at <= passed):
            if not barrier.entries:
                del self._barriers[key]
            raise _passed(step, at, silo)
        self._displace(silo)
        barrier.entries[silo] = barrier.new[silo] = entry
        self._unclaimed[silo] = (key, entry)
        self._last[silo] = (key, entry)
        self._note_change()
        return entry.reply

    def receive(
        self,
        silo: Silo,
        step: str,
        at: ExchangeKey,
        call: Call,
        decode: Callable[[type[Any]], Any],
        n_bytes: int = 0,
    ) -> asyncio.Future[Any]:
        """Take an offer in as a transport received it; see :meth:`offer`."""
        return self.offer(silo, step, at, ArrivedOffer(call, decode, remote=True, n_bytes=n_bytes))

    def delivered(self, silo: Silo, step: str, at: ExchangeKey) -> None:
        """Note that a transport has sent a reply, or that its silo has gone."""
        self._undelivered.discard((silo, step, at))
        if not self._undelivered:
            self._sent.set()

    async def all_delivered(self, timeout_seconds: float) -> None:
        """Wait until the transport has sent every reply; for at most ``timeout_seconds``."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._undelivered:
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            self._undelivered.clear()

    def end(self, error: Exception) -> None:
        """End the attempt: every open and every later exchange raises ``error``."""
        self._ended = error
        for barrier in self._barriers.values():
            for entry in barrier.entries.values():
                self._refuse(entry, error)
        for kept in (self._barriers, self._unclaimed, self._last):
            kept.clear()
        self._note_change()

    @property
    def open_places(self) -> int:
        """Number of places kept in memory; must not grow with rounds."""
        return len(self._barriers)

    def _serve_one(
        self,
        silo: Silo,
        at: ExchangeKey,
        entry: _Entry,
        step: Step[Any, Any],
        handler: Callable[[Silo, ExchangeKey, Any], Any],
    ) -> None:
        if entry.parcel.large:
            task = asyncio.create_task(self._serve_large(silo, at, entry, step, handler))
            self._serving[silo] = ((step.name, at), entry, task)
            task.add_done_callback(lambda done: self._served_large(silo, done))
            return
        try:
            reply = handler(silo, at, entry.parcel.open(step))
        except OfferRejected as error:
            self._refuse(entry, error)
            return
        entry.reply.set_result(reply)
        self.join(silo)

    async def _serve_large(
        self,
        silo: Silo,
        at: ExchangeKey,
        entry: _Entry,
        step: Step[Any, Any],
        handler: Callable[[Silo, ExchangeKey, Any], Any],
    ) -> None:
        """Decode off the loop first, then serve."""
        try:
            await asyncio.to_thread(entry.parcel.open, step)
        except OfferRejected as error:
            self._refuse(entry, error)
        except Exception as error:  # a defect of ours must not leave the silo waiting
            self._refuse(entry, OfferRejected(f"step {step.name!r}: {type(error).__name__}"))
            raise
        if self._ended is not None:
            self._refuse(entry, self._ended)
        if not entry.reply.done():
            entry.parcel.large = False
            self._serve_one(silo, at, entry, step, handler)

    def _served_large(self, silo: Silo, task: asyncio.Task[None]) -> None:
        if silo in self._serving and self._serving[silo][2] is task:
            del self._serving[silo]

    def _displace(self, silo: Silo) -> None:
        """Forget the offer of a silo that nobody has asked for: it has come to another place."""
        key, entry = self._unclaimed.pop(silo, (None, None))
        if key is None or entry is None or entry.reply.done():
            return
        barrier = self._barriers.get(key)
        if barrier is None or barrier.entries.get(silo) is not entry:
            return
        del barrier.entries[silo]
        barrier.new.pop(silo, None)
        self._refuse(entry, OfferRejected(f"{silo} offered at another place before it was asked"))
        if not barrier.entries and not barrier.claimed:
            del self._barriers[key]

    def _note_change(self, *, moved: bool = False) -> None:
        """Wake those that wait; who is busy sees by the counts that there was something."""
        self._changes += 1
        self._moves += moved
        self._changed.set()

    def _acknowledge(self, silo: Silo) -> None:
        previous = self._last.pop(silo, None)
        if previous is None:
            return
        barrier = self._barriers.get(previous[0])
        entry = previous[1]
        if not entry.reply.done():
            return
        if barrier is not None:
            barrier.entries.pop(silo, None)
            if barrier.closed and not barrier.entries:
                del self._barriers[previous[0]]

    def _forget_if_done(self, key: Key) -> None:
        """Forget places whose silos have all moved on or are lost permanently."""
        for other, barrier in list(self._barriers.items()):
            if other == key or not barrier.closed:
                continue
            if all(entry.reply.done() for entry in barrier.entries.values()) and not any(
                self._last.get(silo, (None,))[0] == other for silo in barrier.entries
            ):
                del self._barriers[other]

    @staticmethod
    def _refuse(entry: _Entry, error: Exception) -> None:
        if not entry.reply.done():
            entry.reply.set_exception(error)


def _passed(step: str, at: ExchangeKey, silo: Silo) -> PlacePassed:
    return PlacePassed(f"step {step!r} of round {at.round} was closed without {silo}")


def _retrieve(reply: asyncio.Future[Any]) -> None:
    """Mark an exception as seen: a refused silo may be gone and never ask for it."""
    if not reply.cancelled():
        reply.exception()


def _read(
    one: tuple[Silo, _Entry], step: Step[Any, Any], read: Callable[[Silo, Any], Any] | None
) -> tuple[tuple[Silo, _Entry], Any]:
    """Return what a strategy uses of an offer, or why it is refused."""
    silo, entry = one
    try:
        offer = entry.parcel.open(step)
        return one, offer if read is None else read(silo, offer)
    except OfferRejected as error:
        return one, error
