"""Lies in every field of every reply and offer of every strategy; ``tests.adversary.lies``.

``python -m tests.adversary.mutate --cases 1000000 --seed 1`` runs as many and prints what it found.
``--only N`` repeats one case of a seed. Cases are numbered over all groups (strategy, direction,
step, message and field) in turn, so that any run of at least one round of them covers each field.
Where ``--pairs`` of plays are asked for, further cases follow that can be played twice; so
many ``--minutes`` later no more of them begin, and what is left is said.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import multiprocessing as mp
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import structlog

from hedgerow.boosting.errors import OfferRejected, PlacePassed
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.metrics import metric_of
from hedgerow.coordinator.server.barrier import ArrivedOffer
from hedgerow.crypto.threads import usable_cores
from tests.adversary import oracle
from tests.adversary.arena import VARIANTS, UrgentLink, Variant, WaitsForever, variant
from tests.adversary.lies import Parts, Target, decoded, parts_of, targets, told
from tests.adversary.oracle import Honest
from tests.adversary.pairs import Change, Transcript, drawn_change, leaks
from tests.federation.memory import SiloKilled

STUCK_SECONDS = 90.0
"""After which a case that has not ended is taken to hang."""
START_SECONDS = 900.0
"""The same for a worker's start, in which a new clone's kernels are compiled."""
CHUNK = 200
PAIRS_CHUNK = 40
"""Of cases that are played twice: a few seconds, after which the time is looked at."""
LEAST = 0.9
"""Share of the messages' fields in which lies are told; the others are empty in tiny jobs."""
SMALL_TABLES = {"OMP_NUM_THREADS": "1"}
"""Threads of the workers' native code: on tables of 30 rows they would only wait for each other."""

IN_CLEAR = ("bagging", "simfl")
"""Strategies whose silos send models of their own: what one is given steers what it sends.

Of their secure sums the mean label is before any reply that steers, and the covers have the digest
of the model in their view.
"""

CHECKED = {"totals", "row_counts"}
"""Fields of integers that silos check by a key that the coordinator has not."""

Moment = tuple[str, str, ExchangeKey]
"""``"reply"`` or ``"offer"``, step and place; ``"loss"`` where a silo is said to be lost there.

``"restart"``: after so many rounds the job goes on in a new attempt, from so many.
"""
LOSS = Target(0, (), "a loss", ("lost", "back"))
SEQUENCE = "lies in a row"
RESTART = Target(0, (), "a new attempt", ("restarted",))


@dataclass(frozen=True)
class Case:
    """One lie."""

    number: int
    variant: str
    moment: Moment
    target: Target
    lie: str
    silos: frozenset[Silo]
    seed: str
    then: Case | None = None

    @property
    def lies(self) -> tuple[Case, ...]:
        """This lie and those that follow it."""
        return (self, *(() if self.then is None else self.then.lies))

    @property
    def liars(self) -> frozenset[Silo]:
        """Silos that lie."""
        return frozenset[Silo]().union(*(c.silos for c in self.lies if c.moment[0] == "offer"))

    @property
    def lost(self) -> frozenset[Silo]:
        """Silos that are said to be lost."""
        return frozenset[Silo]().union(*(c.silos for c in self.lies if c.moment[0] == "loss"))

    @property
    def victims(self) -> frozenset[Silo]:
        """Silos that are told a lie."""
        return frozenset[Silo]().union(*(c.silos for c in self.lies if c.moment[0] == "reply"))

    def __str__(self) -> str:
        direction, step, at = self.moment
        path = ".".join(f"{n}" if k is None else f"{n}[{k}]" for n, k in self.target.path)
        return (
            f"case {self.number}: {self.variant}, {direction} of {step} at "
            f"{at.round}/{at.level}/{at.passing}, {self.target.pair} at {path or 'frames'}: "
            f"{self.lie}; {', '.join(sorted(self.silos))}"
            + ("" if self.then is None else f"; then {self.then}")
        )

    @property
    def group(self) -> tuple[str, str, str, str]:
        if self.then is not None:
            return (self.variant, "sequence", self.moment[1], SEQUENCE)
        return (self.variant, self.moment[0], self.moment[1], self.target.pair)


@dataclass
class Verdict:
    """What a case came to, and what must not be."""

    result: str
    faults: list[str] = field(default_factory=list)
    played_twice: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Recording:
    """What a variant's parties exchange when nobody lies."""

    honest: Honest
    kinds: dict[Moment, type[Any]]
    payloads: dict[Moment, dict[Silo, Parts]]

    def other(self, moment: Moment, silo: Silo, rng: Random) -> Parts:
        """Return another payload of the same step: of another silo, or of another place."""
        direction, step, _ = moment
        choices = [
            parts
            for known, by_silo in self.payloads.items()
            if known[:2] == (direction, step)
            for who, parts in by_silo.items()
            if (known, who) != (moment, silo)
        ]
        return rng.choice(choices) if choices else self.payloads[moment][silo]


class WatchedLink(UrgentLink):
    """A silo's end that notes what leaves, and lies where a case says so."""

    case: Case | None = None
    record: Recording | None = None
    told: set[Case]
    noted: dict[Moment, dict[Silo, tuple[type[Any], Any]]]

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        witness = oracle._NOW[0]
        witness.offers.append((self.silo, step.name, at, step.discloses))
        offer = witness.transcript.offered(self.silo, step, at, offer, self.loop.time())
        self.noted.setdefault(("offer", step.name, at), {})[self.silo] = (step.offer, offer)
        if (loss := self._told(("loss", step.name, at))) is not None:
            self.hub.drop(self.silo, "said to be lost")
            if loss.lie == "lost":
                raise SiloKilled
            if loss not in self.told:
                self.told.add(loss)
                raise PlacePassed("said to be lost")
        reply = super().exchange(step, at, offer)
        self.noted.setdefault(("reply", step.name, at), {})[self.silo] = (step.reply, reply)
        case = self._told(("reply", step.name, at))
        return reply if case is None else self._lie(case, step.reply, parts_of(reply))

    def parcel(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> ArrivedOffer[Any]:
        case = self._told(("offer", step.name, at))
        if case is None:
            return super().parcel(step, at, offer)
        return ArrivedOffer(step.call, lambda kind: self._lie(case, kind, parts_of(offer)))

    def _told(self, moment: Moment) -> Case | None:
        for case in () if self.case is None else self.case.lies:
            if case.moment == moment and self.silo in case.silos:
                return case
        return None

    def _lie(self, case: Case, kind: type[Any], parts: Parts) -> Any:
        assert self.record is not None
        return decoded(kind, lie_of(case, self.record, parts, self.silo))


def lie_of(case: Case, record: Recording, parts: Parts, silo: Silo) -> Parts:
    """Return parts with the case's lie; the same to all silos that are to get the same."""
    rng = Random(case.seed)
    other = record.other(case.moment, silo, rng)
    try:
        return told(parts, case.target, case.lie, other, rng)
    except (IndexError, KeyError, AttributeError):
        return parts  # this run has another form here


def _run(
    of: Variant,
    case: Case | None,
    record: Recording | None,
    drawn: str,
    before: Transcript | None = None,
    change: Change | None = None,
) -> Any:
    """Play a job once; ``before`` is the transcript of the play that this one is compared with."""
    noted: dict[Moment, Any] = {}
    roster = tuple(sorted(map(Silo, of.tables)))
    strategy = of.job.parameters.name
    transcript = Transcript(roster, strategy, before=before, groups=of.groups)
    transcript.compares = any(metric_of(name).compares for name in of.job.metrics)
    if change is not None:
        transcript.mixes = change.share < 1.0
        of = replace(of, tables=change.of(of.tables), tests=change.of(of.tests))

    def make_link(*args: Any, **rest: Any) -> WatchedLink:
        link = WatchedLink(*args, **rest)
        link.case, link.record, link.noted, link.told = case, record, noted, set()
        return link

    with oracle.witnessed(transcript) as witness:
        again = (
            next((c.moment[2] for c in case.lies if c.moment[0] == "restart"), None)
            if case
            else None
        )
        outcome = of.run(make_link, drawn, again)
    transcript.ended(outcome, of.reports(outcome))
    return outcome, witness, noted


@cache
def recording(name: str) -> Recording:
    """Return what happens in a variant when nobody lies."""
    runs = [_run(variant(name), None, None, f"honest {k}") for k in range(2)]
    noted = runs[0][2]
    return Recording(
        Honest.of([run[:2] for run in runs], variant(name).job.parameters.n_results),
        {moment: next(iter(of.values()))[0] for moment, of in noted.items()},
        {
            moment: {silo: parts_of(payload) for silo, (_, payload) in sorted(of.items())}
            for moment, of in noted.items()
        },
    )


Group = tuple[str, str, str, str]


@cache
def groups(names: tuple[str, ...]) -> list[tuple[Group, list[tuple[Moment, Target, str]]]]:
    """Return all lies by strategy, direction, step, and message and field."""
    found: dict[Group, list[tuple[Moment, Target, str]]] = {}
    for name in names:
        payloads = recording(name).payloads
        for moment in sorted(payloads):
            silo = min(payloads[moment])
            for target in targets(payloads[moment][silo]):
                group = (name, moment[0], moment[1], target.pair)
                found.setdefault(group, []).extend((moment, target, lie) for lie in target.lies)
            if paired(name):
                _add_losses(found, name, moment, targets(payloads[moment][silo]))
    return sorted(found.items(), key=lambda item: item[0])


def _add_losses(
    found: dict[Group, list[tuple[Moment, Target, str]]],
    name: str,
    moment: Moment,
    known: list[Target],
) -> None:
    """Add that a silo is said to be lost at a moment, and that a lie at it is followed by one."""
    direction, step, at = moment
    if direction == "offer":
        lost = ("loss", step, at)
        found.setdefault((name, *lost[:2], LOSS.pair), []).extend(
            (lost, LOSS, lie) for lie in LOSS.lies
        )
    elif known:
        told = [(moment, target, lie) for target in known for lie in target.lies]
        found.setdefault((name, "sequence", step, SEQUENCE), []).extend(told)


def paired(name: str) -> bool:
    """Return whether lies in a job are played twice: its silos say sums, and rows can move."""
    job = variant(name).job
    return (
        not job.vertical
        and job.parameters.name not in ("simfl",)
        and (getattr(job.parameters, "secure", True))
    )


def _second(record: Recording, first: Case, rng: Random) -> Case | None:
    """Return what follows a lie: a loss, another lie, or a new attempt; or one of these and that.

    So a coordinator that has lied in a round asks for it again, over other silos, once it has
    said that one of them is lost.
    """
    second = _following(record, first, rng)
    if second is None or second.moment[0] == "restart" or rng.random() < 0.6:
        return second
    return replace(second, then=_restarted(first, rng))


def _restarted(first: Case, rng: Random) -> Case:
    """Return that a job goes on in a new attempt, from any round before the one that it was in."""
    rounds = variant(first.variant).job.parameters.n_results
    stop = rng.randint(1, max(1, rounds - 1))
    moment = ("restart", "", ExchangeKey(stop, rng.randint(0, stop)))
    return Case(first.number, first.variant, moment, RESTART, "restarted", first.silos, first.seed)


def _following(record: Recording, first: Case, rng: Random) -> Case | None:
    moments = list(record.payloads)
    later = moments[moments.index(first.moment) + 1 :]
    kind = rng.choice(("loss", "loss", "reply", "restart"))
    rest = (first.variant, first.seed)
    if kind == "restart":
        return _restarted(first, rng)
    wanted = [m for m in later if m[0] == ("offer" if kind == "loss" else "reply")]
    if not wanted:
        return None
    _, step, at = moment = rng.choice(wanted)
    silos = sorted(record.payloads[moment])
    if kind == "loss":
        silo = frozenset([rng.choice(silos)])
        moment = ("loss", step, at)
        return Case(first.number, rest[0], moment, LOSS, rng.choice(LOSS.lies), silo, rest[1])
    known = targets(record.payloads[moment][silos[0]])
    for _ in range(20 if known else 0):
        target = rng.choice(known)
        told = frozenset(silos if rng.random() < 0.5 else [rng.choice(silos)])
        case = Case(first.number, rest[0], moment, target, rng.choice(target.lies), told, rest[1])
        if _passes(record, case):
            return case
    return None


def _passes(record: Recording, case: Case) -> bool:
    """Return whether a lie is one, and no decoder refuses it."""
    silo = min(case.silos)
    parts = record.payloads[case.moment][silo]
    if not _changed(record, case, parts, silo):
        return False
    with suppress(Exception):
        decoded(record.kinds[case.moment], lie_of(case, record, parts, silo))
        return True
    return False


def case_of(names: tuple[str, ...], seed: int, number: int) -> Case:
    """Return a case by its number."""
    known = groups(names)
    group, lies = known[number % len(known)]
    turn, k = divmod(number // len(known), len(lies))
    order = Random(f"{seed}/{group}").sample(range(len(lies)), len(lies))
    record = recording(group[0])
    for skipped in range(len(lies)):  # what is a lie in one field says nothing new in another
        moment, target, lie = lies[order[(k + skipped) % len(lies)]]
        rng = Random(f"{seed}/{number}")
        if moment[0] == "loss":
            silo = rng.choice(sorted(record.payloads["offer", *moment[1:]]))
            return Case(
                number, group[0], moment, target, lie, frozenset([silo]), f"{seed}/{number}"
            )
        silos = sorted(record.payloads[moment])
        if group[1] == "sequence":
            case = Case(number, group[0], moment, target, lie, frozenset(silos), f"{seed}/{number}")
            if skipped < 20 and not _passes(record, case):
                continue
            return replace(case, then=_second(record, case, rng))
        if moment[0] == "offer" or len(silos) == 1:
            chosen = [rng.choice(silos)]
        else:
            n_silos = (1, len(silos) - 1, len(silos))[(k + turn) % 3]
            chosen = rng.sample(silos, n_silos)
        told_to = frozenset(chosen)
        case = Case(number, group[0], moment, target, lie, told_to, f"{seed}/{number}")
        if any(_changed(record, case, record.payloads[moment][silo], silo) for silo in chosen):
            break
    return case


def judge(case: Case) -> Verdict:
    """Run a case; a lie that no decoder lets through, or that is none, needs no federation."""
    record = recording(case.variant)
    if case.moment[0] != "loss":
        silo = min(case.silos)
        parts = record.payloads[case.moment][silo]
        if not any(
            _changed(record, case, record.payloads[case.moment][who], who) for who in case.silos
        ):
            return Verdict("no lie")
        try:
            decoded(record.kinds[case.moment], lie_of(case, record, parts, silo))
        except OfferRejected:
            return Verdict("refused by the decoder")
        except Exception as error:
            return Verdict("decoder", [f"the decoder raises {type(error).__name__}: {error}"])
    of = variant(case.variant)
    try:
        outcome, witness, _ = _run(of, case, record, case.seed)
    except (WaitsForever, Exception) as error:
        return Verdict("run", [f"the run raises {type(error).__name__}: {error}"])
    lying_silo = case.moment[0] == "offer"
    found = oracle.faults(
        outcome,
        witness,
        record.honest,
        case.liars | case.lost,
        case.victims,
        of.tables,
        judged=lying_silo,
        least=of.least_silos,
    )
    verdict = _verdict(case, record, outcome, witness, found)
    if paired(case.variant):
        again = _again(case, record, of, witness.transcript)
        if again is not None:
            verdict.faults += again
            verdict.played_twice = True
    return verdict


def _again(case: Case, record: Recording, of: Variant, first: Transcript) -> list[str] | None:
    """Play a case again on other silos' rows; return what tells them apart.

    None where the rows of no two silos may change places.
    """
    possible = of.changes(case.liars, case.seed)
    change = drawn_change(possible, case.seed)
    if change is None:
        return None
    try:
        _, witness, _ = _run(of, case, record, case.seed, first, change)
    except (WaitsForever, Exception) as error:
        return [f"the run on other rows raises {type(error).__name__}: {error}"]
    return leaks(first, witness.transcript)


def _verdict(
    case: Case, record: Recording, outcome: Any, witness: Any, found: list[str]
) -> Verdict:
    """Say what a run came to."""
    lying_silo, of = case.moment[0] == "offer", variant(case.variant)
    told = case.moment[0] == "reply" and not CHECKED.isdisjoint(dict(case.target.path))
    if told and case.then is None and getattr(of.job.parameters, "checks_totals", False):
        taken = case.silos - outcome.errors.keys() - {silo for silo, _ in outcome.lost}
        if taken:
            found.append(f"{', '.join(sorted(taken))} took totals that are not the silos'")
    if outcome.error is not None:
        return Verdict("ended by the coordinator", found)
    if outcome.errors:
        return Verdict("left by silos", found)
    files = record.honest.files
    if files is None or (outcome.artefact is not None and outcome.artefact.files == files):
        return Verdict("same model", found)
    # All alike may be given another model, a silo's rows are its own, and silos may be left out.
    some = not lying_silo and case.then is None and case.silos < set(of.tables)
    stayed = not outcome.lost and oracle.agreed(witness)
    if some and of.job.parameters.name not in IN_CLEAR and stayed:
        found.append("another model from equal views: a lie to some silos that no view has")
    return Verdict("another model", found)


def _changed(record: Recording, case: Case, parts: Parts, silo: Silo) -> bool:
    lied = lie_of(case, record, parts, silo)
    return [p.SerializeToString(deterministic=True) for p in lied] != [
        p.SerializeToString(deterministic=True) for p in parts
    ]


@dataclass
class Tally:
    """What cases came to."""

    results: Counter[str] = field(default_factory=Counter)
    pairs: set[str] = field(default_factory=set)
    faults: list[tuple[str, str]] = field(default_factory=list)
    models: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    n_twice: int = 0
    next_number: int | None = None

    def add(self, other: Tally) -> None:
        """Count another worker's cases too."""
        self.results += other.results
        self.models += other.models
        self.pairs |= other.pairs
        self.faults += other.faults
        self.cpu_seconds += other.cpu_seconds
        self.n_twice += other.n_twice
        left = [n for n in (self.next_number, other.next_number) if n is not None]
        self.next_number = min(left, default=None)

    @property
    def n_told(self) -> int:
        """Cases that were lies."""
        return sum(self.results.values()) - self.results["no lie"]


def _quiet() -> None:
    """Let only warnings be logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def _plays_twice(case: Case) -> bool:
    """Return whether a case is played twice, as far as can be said without a play."""
    return paired(case.variant) and (
        case.moment[0] == "loss" or _passes(recording(case.variant), case)
    )


def _work(connection: Any, at: Any, names: tuple[str, ...], seed: int) -> None:
    _quiet()
    with oracle.watching():
        groups(names)
        gc.freeze()  # what is known stays: an eighth of the plays' time went into going through it
        gc.set_threshold(50_000, 20)
        while (asked := connection.recv()) is not None:
            numbers, only_pairs = asked
            began = time.process_time()
            done = []
            for number in numbers:
                at.value = number
                case = case_of(names, seed, number)
                if only_pairs and not _plays_twice(case):
                    continue
                verdict = judge(case)
                done.append(
                    (str(case), case.group, verdict.result, verdict.faults, verdict.played_twice)
                )
            connection.send((done, time.process_time() - began))


def run(
    numbers: Sequence[int],
    seed: int,
    names: tuple[str, ...] = tuple(VARIANTS),
    *,
    show: bool = False,
    pairs: int = 0,
    following: Sequence[int] = (),
    minutes: float = math.inf,
) -> Tally:
    """Run cases in a process of their own; one that ends or hangs it is a fault of its case.

    Until so many ``pairs`` of plays are done, cases ``following`` the numbers are run that can be
    played twice; none of these begin so many ``minutes`` after the numbers' end.
    """
    tally = Tally()
    context = mp.get_context("spawn")
    os.environ |= SMALL_TABLES
    pending, rest, only_pairs = list(numbers), iter(following), False
    until = math.inf
    worker: Any = None
    while pending or tally.n_twice < pairs:
        if not pending:
            if not only_pairs:
                until = time.monotonic() + 60 * minutes
            elif time.monotonic() > until:
                tally.next_number = next(rest)
                break
            pending, only_pairs = list(islice(rest, PAIRS_CHUNK)), True
        if worker is None:
            ours, theirs = context.Pipe()
            at = context.Value("q", -1)
            worker = context.Process(target=_work, args=(theirs, at, names, seed), daemon=True)
            worker.start()
            theirs.close()
        chunk, pending = pending[:CHUNK], pending[CHUNK:]
        ours.send((chunk, only_pairs))
        ended = _await(worker, ours, at)
        if not ended:
            with suppress(EOFError, OSError):
                done, seconds = ours.recv()
                _count(tally, done, seconds, show)
                continue
            ended = f"the process ends with {worker.exitcode}"
        worker.kill()
        worker.join()
        case = case_of(names, seed, at.value) if at.value >= 0 else "no case"
        tally.faults.append((str(case), ended))
        if show:
            print(f"{case}\n    {ended}", flush=True)
        before = [number for number in chunk if number < at.value]
        pending = [*before, *(number for number in chunk if number > at.value), *pending]
        worker = None
    if worker is not None:
        ours.send(None)
        worker.join()
    return tally


def _await(worker: Any, connection: Any, at: Any) -> str:
    """Wait for a chunk's end; return why there is none, or nothing."""
    last, since = at.value, time.monotonic()
    while not connection.poll(0.5):
        if not worker.is_alive():
            worker.join()
            return f"the process ends with {worker.exitcode}"
        if at.value != last:
            last, since = at.value, time.monotonic()
        elif time.monotonic() - since > (STUCK_SECONDS if last >= 0 else START_SECONDS):
            return "hangs"
    return ""


def _count(tally: Tally, done: list[Any], seconds: float, show: bool) -> None:
    tally.cpu_seconds += seconds
    for case, group, result, found, twice in done:
        tally.results[result] += 1
        tally.n_twice += twice
        if result != "no lie":
            tally.pairs.add("/".join(group))
        if result == "another model":
            tally.models["/".join(group)] += 1
        tally.faults += [(case, fault) for fault in found]
        if show:
            for fault in found:
                print(f"{case}\n    {fault}", flush=True)
    if show:
        print(f"{sum(tally.results.values())} {tally.results}", file=sys.stderr, flush=True)


def share_told(tally: Tally, names: tuple[str, ...]) -> float:
    """Return the share of the fields of all messages of the variants in which lies were told."""
    told = {pair.split("/")[-1] for pair in tally.pairs}
    return len(told) / len({pair for (*_, pair), _ in groups(names)})


def main() -> int:
    """Print a report; return 1 where a case is at fault, or fields were left out."""
    _quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="2: each second case from the first")
    parser.add_argument("--only", type=int)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--variants", default=",".join(VARIANTS))
    options = parser.parse_args()
    names = tuple(options.variants.split(","))
    if options.only is not None:
        with oracle.watching():
            case = case_of(names, options.seed, options.only)
            verdict = judge(case)
        print(f"{case}\n    {verdict.result}", *verdict.faults, sep="\n    ")
        return bool(verdict.faults)
    numbers = range(options.first, options.first + options.cases * options.every, options.every)
    tally = Tally()
    n = options.workers

    def shared(k: int) -> Tally:
        following = range(numbers.stop + k, sys.maxsize, n)
        pairs = -(-options.pairs // n)
        own = numbers[k::n]
        given = {"pairs": pairs, "following": following, "minutes": options.minutes}
        return run(own, options.seed, names, show=True, **given)

    with ThreadPoolExecutor(n) as pool:
        for done in pool.map(shared, range(n)):
            tally.add(done)
    print(json.dumps(tally.results))
    print(f"another model: {json.dumps(tally.models, indent=1)}")
    share = share_told(tally, names)
    print(
        f"{tally.n_told} lies in {len(tally.pairs)} fields, {share:.1%} of the messages' fields, "
        f"{tally.n_twice} played twice, "
        f"{len(tally.faults)} faults of seed {options.seed}, {tally.cpu_seconds:.0f} s of CPU"
    )
    if tally.next_number is not None:
        rest = options.pairs - tally.n_twice
        print(
            f"{tally.n_twice} of {options.pairs} pairs were played in the minutes given "
            f"({options.minutes:g}); the rest: --cases 0 --pairs {rest} --seed {options.seed} "
            f"--first {tally.next_number}"
        )
    return bool(tally.faults) or (options.cases >= 3 * len(groups(names)) and share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
