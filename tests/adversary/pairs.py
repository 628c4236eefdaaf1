"""Non-interference: what a coordinator reads of a job does not tell whose rows they are.

A lie is played twice, on the tables as they are and on tables of which two silos of one group have
exchanged rows, with what is drawn for them: rows at the same places, for all but the first silo
draw alike here. All that leaves the silos is compared, in order, with masks taken off: of a masked
vector only the total is left, at the moment when its set can be opened. What differs must be on
:mod:`tests.adversary.clear`'s lists of what a silo says itself, and of the sums to which it adds
what follows from all of its rows together.

In the second play a silo says and adds what it did in the first wherever a list allows that it
differs, so that everything else is compared given the same answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np

from hedgerow.boosting import streams
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.queries import query_starts
from hedgerow.boosting.streams import Purpose
from hedgerow.boosting.sums.maximum import N_PLACES
from hedgerow.boosting.sums.steps import SUM
from hedgerow.crypto.masking.masks import summed
from tests.adversary.clear import UNMENDED, UNMENDED_REFUSALS, in_clear, together
from tests.federation.memory import Outcome

HIDDEN = {
    "KeyOffer": ("public_key", "certificate", "signature", "kem_key", "kem_signature"),
    "DealtBox": ("box", "commitments", "ciphertext"),
    "MaskedVector": ("values", "commitment", "signature", "tag"),
    "SetSignature": ("signature",),
    "PairSeeds": ("seeds",),
    "Unmasking": ("shares",),
}
"""Fields that are random to whoever lacks a key: only their lengths are compared."""

Event = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """Two silos of a group that exchange a share of their rows, or all of them."""

    first: Silo
    second: Silo
    seed: str = ""
    share: float = 1.0

    def of(self, tables: Mapping[str, Dataset]) -> dict[str, Dataset]:
        """Return tables with rows of the two silos exchanged; each keeps its number of rows."""
        changed = dict(tables)
        if self.first not in changed or self.second not in changed:
            return changed
        one, other = (changed[silo] for silo in (self.first, self.second))
        moved = np.random.default_rng([*self.seed.encode()]).random(one.n_samples) < self.share
        if one.schema.task is Task.RANKING:  # gradients are of whole queries
            starts = query_starts(one.labels[:, 1])
            moved = moved[np.repeat(starts[:-1], np.diff(starts))]
        changed[self.first] = _with_rows(one, other, moved)
        changed[self.second] = _with_rows(other, one, moved)
        return changed


def _with_rows(own: Dataset, other: Dataset, moved: np.ndarray[Any, Any]) -> Dataset:
    """Return a table that has the other one's rows where they are moved."""
    assert own.y is not None
    assert other.y is not None
    weight = None
    if own.weight is not None and other.weight is not None:
        weight = np.where(moved, other.weight, own.weight)
    return dataclasses.replace(
        own,
        features=np.where(moved[:, None], other.X, own.X),
        y=np.where(moved if own.y.ndim == 1 else moved[:, None], other.y, own.y),
        weight=weight,
    )


@dataclass
class Transcript:
    """What leaves the silos of one play, in order.

    Parameters
    ----------
    events : list
    said : dict
        Offers by silo, step and place, and how often it was there.
    vectors : dict
        What silos put into sums, with its ring, by sum and view.
    totals : dict
        What the coordinator half added up, by step, place, and how often it was there.
    opened : set
        Steps, places and sets of which the total can be opened.
    before : Transcript or None
        Of the first play, in the second.
    groups : tuple
        Of the roster; a sum may be over a union of them.
    strategy : str
    mixes : bool
        Whether tables have rows of two silos of the first play.
    compares : bool
        Whether a metric of the job compares rows of a silo.
    together : set of str
        Sums to which a silo added something else in the first play.
    """

    roster: tuple[Silo, ...] = ()
    strategy: str = ""
    mixes: bool = False
    compares: bool = False
    events: list[Event] = field(default_factory=list)
    said: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    fitted: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    vectors: dict[Any, dict[Silo, Any]] = field(default_factory=dict)
    totals: dict[Any, Any] = field(default_factory=dict)
    opened: set[Any] = field(default_factory=set)
    clear: set[tuple[str, str]] = field(default_factory=set)
    before: Transcript | None = None
    together: set[str] = field(default_factory=set)
    groups: tuple[tuple[Silo, ...], ...] = ()
    _willing: dict[Any, set[Silo]] = field(default_factory=dict)

    def offered(
        self, silo: Silo, step: Step[Any, Any], at: ExchangeKey, offer: Any, now: float
    ) -> Any:
        """Note an offer; return what is offered in its place."""
        key = (silo, step.name, at)
        turn = 0
        while (*key, turn) in self.said:
            turn += 1
        if self.before is not None:
            earlier = self.before.said.get((*key, turn))
            if earlier is not None:
                differing = set(differences(earlier, offer))
                allowed = in_clear(self.strategy, step.name)
                if differing and differing <= allowed:
                    self.clear |= {(step.name, path) for path in differing}
                    offer = earlier
        self.said[*key, turn] = offer
        self.events.append(("offers", silo, step.name, at, now, offer))
        return offer

    def local(self, silo: Silo, step: str, what: Any, path: str = "") -> Any:
        """Return what a silo fitted to its rows alone and says in clear: in both plays the same.

        A silo checks later what it said, so that it has to have it from where it was made.
        ``path``: the field in which it is said, where it is not said as it is.
        """
        earlier = self._earlier(silo, step, what)
        self.clear |= {(step, path or found) for found in differences(earlier, what)}
        return earlier

    def added(self, silo: Silo, step: str, vector: Any) -> Any:
        """Return what a silo adds to a sum: as in the first play where it may be another."""
        name = step.removesuffix("-sum").removesuffix("-bound")
        earlier = self._earlier(silo, step, vector.copy())  # its word is put into it later
        if not self.mixes or name not in together(self.strategy, compares=self.compares):
            return vector
        if earlier.shape != vector.shape:
            return vector
        if not np.array_equal(earlier, vector):
            self.together.add(name)
        return earlier.copy()

    def too_wide(self, silo: Silo, found: bool) -> bool:
        """Return whether a silo's own sums exceed widths: as in the first play."""
        earlier: bool = self._earlier(silo, "widths", found)
        if not self.mixes or earlier == found:
            return found
        self.together.add("widths")
        return earlier

    def _earlier(self, silo: Silo, step: str, what: Any) -> Any:
        turn = sum(key[:2] == (silo, step) for key in self.fitted)
        self.fitted[silo, step, turn] = what
        return what if self.before is None else self.before.fitted.get((silo, step, turn), what)

    def willing(self, silo: Silo, where: Any, present: tuple[Silo, ...], least: int) -> None:
        """Note that a silo lets a sum be opened over a set; and the total, once it can be."""
        self.events.append(("lets open", silo, *where, present))
        agreed = self._willing.setdefault((where, present), set())
        agreed.add(silo)
        vectors = self.vectors.get(where, {})
        if len(agreed) < least or (where, present) in self.opened or vectors.keys() < set(present):
            return
        self.opened.add((where, present))
        parts = [vectors[one] for one in present]
        total = summed([vector for vector, _, _ in parts], len(parts[0][0]), parts[0][1])
        read = [_read(where[0].split("/")[0], total), *_marked(flags for _, _, flags in parts)]
        whole = {silo for group in self.groups if set(group) <= set(present) for silo in group}
        kind = "total" if whole == set(present) else "total of parts of groups"
        self.events.append((kind, *where, present, b"".join(part.tobytes() for part in read)))

    def refused(self, silo: Silo, error: BaseException) -> None:
        """Note that a silo ends with an error."""
        self.events.append(("refuses", silo, type(error).__name__, str(error)))

    def ended(self, outcome: Outcome, reports: Mapping[str, Mapping[str, float]]) -> None:
        """Note how a play ended, and the scores that silos report of its result."""
        for silo, error in outcome.rejected.items():
            self.refused(silo, error)
        self.events += [("lost", silo, why) for silo, why in outcome.lost]
        for result in outcome.rounds:
            scores = {name: dict(by) for name, by in result.metrics.items()}
            self.events.append(("round", result.round, repr(scores), result.silos, result.final))
        self.events += [("reports", silo, repr(dict(own))) for silo, own in reports.items()]
        files = None if outcome.artefact is None else dict(outcome.artefact.files)
        self.events.append(("result", files, str(outcome.error)))


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the fields, ``Class.field``, in which two payloads differ, hidden ones by length."""
    if one is other:
        return
    if type(one) is not type(other):
        yield path
    elif dataclasses.is_dataclass(one):
        name = type(one).__name__
        hidden = HIDDEN.get(name, ())
        for its in _fields(type(one)):
            a, b, where = getattr(one, its), getattr(other, its), f"{name}.{its}"
            if its not in hidden:
                yield from differences(a, b, where)
            elif _length(a) != _length(b):
                yield where
    elif isinstance(one, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype or one.tobytes() != other.tobytes():
            yield path
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            yield path
        else:
            for key in one:
                yield from differences(one[key], other[key], path)
    elif isinstance(one, tuple | list):
        if len(one) != len(other):
            yield path
        else:
            for a, b in zip(one, other, strict=True):
                yield from differences(a, b, path)
    elif one != other and not (one != one and other != other):
        yield path


@cache
def _fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(kind))


def _length(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape
    if isinstance(value, Mapping):
        return [(key, len(one)) for key, one in value.items()]
    return len(value)


def _read(step: str, total: Any) -> Any:
    """Return what a total tells: of places of the largest number, which ones are marked."""
    n_places = len(total) // N_PLACES * N_PLACES
    if not n_places or not (step == SUM.name or step.endswith("-bound")):
        return total
    at = len(total) - n_places
    return np.concatenate([total[:at], total[at:] != 0])


def _marked(flags: Iterable[Any]) -> list[Any]:
    """Return which flags some silo has raised."""
    raised = [own for own in flags if own is not None]
    return [np.bitwise_or.reduce(raised)] if raised else []


def leaks(first: Transcript, second: Transcript) -> list[str]:
    """Return the first difference of two plays that a coordinator can read, if there is one."""
    for one, other in zip(first.events, second.events, strict=False):
        if one[0] == "total of parts of groups":
            return [f"opens a sum of parts of groups: {_words(one)}"]
        if found := _difference(one, other):
            if any(of[0] == "refuses" and of[3] in UNMENDED_REFUSALS for of in (one, other)):
                return []
            same = one[0] == "offers" and one[:5] == other[:5]
            if same and set(differences(one[5], other[5])) <= UNMENDED:
                return []
            return [f"tells silos apart: {found}"]
    if len(first.events) != len(second.events):
        longer = max(first.events, second.events, key=len)
        following = longer[min(len(first.events), len(second.events))]
        return [f"tells silos apart: {_words(following)}, in one play only"]
    return []


def _difference(one: Event, other: Event) -> str:
    if one[:1] != other[:1] or (one[0] == "offers" and one[:5] != other[:5]):
        return f"{_words(one)}; then {_words(other)}"
    if one[0] == "offers":
        paths = sorted(set(differences(one[5], other[5])))
        return f"{_words(one)}: {', '.join(paths)}" if paths else ""
    if one == other:
        return ""
    if one[0] == "total":
        if one[:-1] != other[:-1]:
            return f"{_words(one)}; then {_words(other)}"
        return f"{_words(one)} is another"
    return f"{_words(one)}; then {_words(other)}"


def _words(event: Event) -> str:
    kept = (
        event[:4] if event[0] == "offers" else event[:-1] if event[0].startswith("total") else event
    )
    if event[0] == "result":
        kept = ("result", event[2])
    return " ".join(
        f"{part.round}/{part.level}/{part.passing}" if isinstance(part, ExchangeKey) else str(part)
        for part in kept
    )[:300]


def changes(
    groups: Collection[tuple[Silo, ...]],
    tables: Mapping[str, Any],
    liars: Collection[Silo],
    seed: str = "",
    *,
    whole: bool = False,
) -> list[Change]:
    """Return exchanges of rows within groups that leave each silo its number of rows.

    The first silo of the roster stays: what all draw alike is drawn as for it.

    Parameters
    ----------
    whole : bool
        Whether silos exchange their tables only: what they keep of their rows follows from all.
    """
    stays = min(tables)
    found = []
    for group in groups:
        free = sorted(silo for silo in group if silo not in liars and silo != stays)
        for n, a in enumerate(free):
            for b in free[n + 1 :]:
                if tables[a].n_samples == tables[b].n_samples:
                    shares = (1.0,) if whole else (0.3, 1.0)
                    found += [Change(a, b, f"{seed}/{a}/{b}", share) for share in shares]
    return found


def draws() -> Any:
    """Return what stands in place of :func:`streams.sequence`: draws move with their rows.

    All silos but the first draw alike, so that rows at the same place have the same draws.
    """
    own = streams.sequence

    def sequence(seed: int, silo: int, round: int, purpose: Purpose) -> np.random.SeedSequence:
        others = 1 + (purpose in (Purpose.FOLDS, Purpose.FITTING_ROWS))
        return own(seed, min(silo, others), round, purpose)

    return sequence


def drawn_change(found: list[Change], seed: str) -> Change | None:
    """Return one of the changes."""
    return Random(f"{seed}/change").choice(found) if found else None


def second_total(transcript: Transcript, key: Any, outcome: Any) -> Any:
    """Return a sum's outcome; where masks are left in it, with those of the first play.

    Masks that do not cancel are as random in one play as in the other.
    """
    turn = sum(known[:2] == key for known in transcript.totals)  # of attempts
    transcript.totals[*key, turn] = outcome.total
    before = transcript.before
    if outcome.total is None or before is None:
        return outcome
    if any(own[:2] == key and present == outcome.present for own, present in transcript.opened):
        return outcome
    noise = before.totals.get((*key, turn))
    if noise is None or noise.shape != outcome.total.shape:
        return outcome
    return replace(outcome, total=noise)
