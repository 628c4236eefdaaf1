"""What must hold whatever a party lies in; TRUST in docs/threat-model.md has it in words.

:class:`Witness` sees what silos put into sums, what is opened, and what leaves each silo.
:func:`faults` says what of it must not be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations, cycle
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import streams
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.engine.quantising import Quantiser
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Discloses, ExchangeKey, Silo
from hedgerow.boosting.strategies.bagging.silo import _BaggingSilo
from hedgerow.boosting.strategies.dp_tree import parameters as dp_tree
from hedgerow.boosting.strategies.fedxgbllr import agreement
from hedgerow.boosting.strategies.fedxgbllr.silo import _StackingSilo
from hedgerow.boosting.strategies.histogram import parameters as histogram
from hedgerow.boosting.strategies.histogram import rings, rows
from hedgerow.boosting.strategies.histogram.rows import DividedRows
from hedgerow.boosting.sums import answers
from hedgerow.boosting.sums.coordinator import CoordinatorSums, SumOutcome
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.sums.view import sum_view
from hedgerow.boosting.trees.local import MarginRows
from hedgerow.crypto.ciphers import elgamal
from hedgerow.crypto.ciphers import paillier_keys as paillier
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.masking import key_agreement
from hedgerow.crypto.masking.fixed_point import residue_dtype
from hedgerow.crypto.masking.masks import Ring, summed, word_bits
from tests.adversary.pairs import Transcript, draws, second_total
from tests.federation.memory import Outcome

SumKey = tuple[str, ExchangeKey]
Residues = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """What a silo adds to a sum, and from what it says that it computed it."""

    view: bytes
    vector: Residues
    ring: Ring


@dataclass
class Witness:
    """One run, seen from inside every party."""

    parts: dict[tuple[Silo, SumKey], Part] = field(default_factory=dict)
    totals: dict[SumKey, SumOutcome] = field(default_factory=dict)
    opened: list[tuple[Silo, SumKey, tuple[Silo, ...], Residues]] = field(default_factory=list)
    offers: list[tuple[Silo, str, ExchangeKey, Discloses]] = field(default_factory=list)
    last: dict[Silo, SumKey] = field(default_factory=dict)
    transcript: Transcript = field(default_factory=Transcript)
    bare: list[str] = field(default_factory=list)
    secure: bool = False
    blind: bool = False


_NOW: list[Witness] = [Witness()]


@contextmanager
def witnessed(transcript: Transcript | None = None) -> Iterator[Witness]:
    """Watch what happens until the end of the block."""
    _NOW[0] = witness = Witness(transcript=transcript or Transcript())
    yield witness


def _few_keys(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a maker that makes four keys of a kind and gives them in turn, for they take long."""
    made = cache(lambda turn, *args, **rest: make(*args, **rest))
    turns = cycle(range(4))
    return lambda *args, **rest: made(next(turns), *args, **rest)


def _as_ones() -> AbstractContextManager[Any]:
    """Let silos mark the places of a largest number with ones in place of random residues."""
    name = "hedgerow.boosting.sums.maximum"
    if find_spec(name) is None:
        return nullcontext()
    urandom = SimpleNamespace(urandom=lambda n: (1).to_bytes(8, "little") * (n // 8))
    return patch.object(import_module(name), "os", urandom)


def _once(grow: Callable[..., Any]) -> Callable[..., Any]:
    """Return what grows a silo's trees, but the same only once: they take most of a play."""
    grown: dict[Any, Any] = {}

    def trees(self: MarginRows, *given: Any, **rest: Any) -> Any:
        key = tuple(map(_content, (self.dataset, self.margins, *given)))
        if key not in grown:
            grown[key] = grow(self, *given, **rest)
        return grown[key]

    return trees


def _content(value: Any) -> Any:
    if isinstance(value, Dataset):
        return tuple(map(_content, (value.X, value.y, value.weight)))
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value)


@contextmanager
def watching(*, believing: bool = True) -> Iterator[None]:
    """Let :func:`witnessed` see sums; where ``believing``, the coordinator compares no views."""
    sum_in, sum_of, opened = SiloSums.sum, CoordinatorSums.sum, SiloSums.opened
    remember = SiloSums._remember

    def silo_sum(
        self: SiloSums, steps: Any, at: ExchangeKey, residues: Residues, **rest: Any
    ) -> Any:
        own, residues = residues, _NOW[0].transcript.added(self._silo, steps.name, residues)
        if residues is not own and rest.get("totals") is not None:  # the word is of these, too
            rest["totals"] = residues[-len(rest["totals"]) :].view(np.int64)
        ring = rest.get("ring", 64)
        vector = np.array(residues, residue_dtype(word_bits(ring)), copy=True)
        bare, raised = flags.pop(vector.tobytes(), (vector, None))
        view = sum_view(self._job_digest, steps.name, at, len(vector), ring, rest["state"])
        witness, key = _NOW[0], (steps.name, at)
        witness.secure |= self._parameters.secure
        witness.blind |= self._parameters.blind_coordinator
        if key not in witness.totals:  # nothing that comes after its opening is in a total
            witness.parts[self._silo, key] = Part(view, vector, ring)
        witness.last[self._silo] = key
        where = (f"{steps.name}/{at.level}/{at.passing}", at, view.hex())
        witness.transcript.vectors.setdefault(where, {})[self._silo] = bare, ring, raised
        return sum_in(self, steps, at, residues, **rest)

    async def coordinator_sum(
        self: CoordinatorSums, steps: Any, at: ExchangeKey, *values: Any, **rest: Any
    ) -> SumOutcome:
        outcome = await sum_of(self, steps, at, *values, **rest)
        witness = _NOW[0]
        witness.totals[steps.name, at] = outcome
        if not self._parameters.secure:
            return outcome
        where = (f"{steps.name}/{at.level}/{at.passing}", at)
        return second_total(witness.transcript, where, outcome)

    def silo_remember(self: SiloSums, place: Any, present: tuple[Silo, ...]) -> None:
        recovered = self._parameters.dropout_recovery and not place.whole
        group = self._group
        least = group.threshold if recovered and group is not None else len(present)
        where = (place.key, place.at, place.view)
        _NOW[0].transcript.willing(self._silo, where, present, least)
        remember(self, place, present)

    def silo_opened(self: SiloSums, total: Any) -> Any:
        result = opened(self, total)
        witness = _NOW[0]
        key = witness.last[self._silo]
        witness.opened.append((self._silo, key, result.present, np.array(result.values)))
        return result

    pack, overflow, packed = rings.PackedRings.pack, rings.BitWidths.overflow, DividedRows.packed
    divided = DividedRows.__init__
    flags: dict[bytes, Any] = {}
    packing: list[Silo] = [Silo("")]

    def level_pack(self: Any, *given: Any) -> Any:
        """Return the vector, and note it without its flags, which are random residues."""
        raised: list[int] = []
        with patch.object(rings, "_residue", lambda bits: raised.append(bits) or 1):
            whole = pack(self, *given)
        if raised:
            with patch.object(rings, "_residue", lambda bits: 0):
                bare = pack(self, *given)
            flags[whole.tobytes()] = bare, bare ^ whole
        return whole

    def rows_divided(self: Any, plan: Any, own: Any, *given: Any) -> None:
        divided(self, plan, own, *given)
        self.number = own.number

    def rows_packed(self: Any, *given: Any) -> Any:
        packing[0] = _NOW[0].transcript.roster[self.number]
        return packed(self, *given)

    def level_overflow(self: Any, *given: Any) -> bool:
        return _NOW[0].transcript.too_wide(packing[0], overflow(self, *given))

    coarse = Quantiser.coarse

    def coarsely(self: Any, g: Any, h: Any, sample: Any, rng: Any) -> Any:
        def random(shape: Any, dtype: Any) -> Any:  # of all rows: draws move with their rows
            return rng.random((len(g), shape[1]), dtype=dtype)[sample.rows]

        return coarse(self, g, h, sample, SimpleNamespace(random=random))

    answer = answers.NoisyRelease.answer

    def noisy_answer(self: Any, query: bytes, parts: Any, *, silos: Any, honest: int) -> Any:
        if honest >= len(silos) > 1:
            _NOW[0].bare.append(f"noise of {honest} of {len(silos)} silos: each can take its off")
        return answer(self, query, parts, silos=silos, honest=honest)

    trained, grown = _BaggingSilo.train, _StackingSilo._trees
    stacks: dict[Any, Any] = {}  # as _once

    def bagged(self: _BaggingSilo, standing: Any) -> Any:
        offer = trained(self, standing)
        offer = _NOW[0].transcript.local(self.start.silo, "trees", offer)
        self.model.offered = offer
        return offer

    def stacked(self: _StackingSilo) -> Any:
        terms, job = self.terms, self.terms.job
        own = (self.train, terms.targets(self.train), terms.n_steps, job.booster, self.start.draws)
        key = (self.number, *map(_content, (*own, *(terms.cuts or ()))))
        if key not in stacks:
            stacks[key] = grown(self)
        made = stacks[key]
        return _NOW[0].transcript.local(self.start.silo, "trees", made, "PackedEnsemble.trees")

    def few(**given: Any) -> SumParameters:
        return SumParameters(**{**given, "batch": 6})  # shares of 32 sums would take most time

    with (
        ExitStack() as patches,
        patch.object(MarginRows, "train", _once(MarginRows.train)),
        patch.object(_BaggingSilo, "train", bagged),
        patch.object(_StackingSilo, "_trees", stacked),
        patch.object(rows, "release_freed_memory", lambda: None),  # page faults of its own
        patch.object(elgamal, "generate_private_key", _few_keys(elgamal.generate_private_key)),
        patch.object(paillier, "generate_private_key", _few_keys(paillier.generate_private_key)),
        # In both plays the same masks: a silo that changes a masked bit changes the same sum.
        patch.object(key_agreement, "encapsulate", lru_cache(4096)(key_agreement.encapsulate)),
        patch.object(SiloSums, "sum", silo_sum),
        patch.object(SiloSums, "opened", silo_opened),
        patch.object(SiloSums, "_remember", silo_remember),
        patch.object(streams, "sequence", draws()),
        patch.object(answers.NoisyRelease, "answer", noisy_answer),
        patch.object(answers, "_content", lambda values: ()),  # noise is as it was, on other rows
        _as_ones(),
        patch.object(CoordinatorSums, "sum", coordinator_sum),
        patch.object(
            CoordinatorSums,
            "_alike",
            (lambda self, step, ask, uploads: uploads) if believing else CoordinatorSums._alike,
        ),
    ):
        for owner, name, seen in (
            (Quantiser, "coarse", coarsely),
            (rings.PackedRings, "pack", level_pack),
            (rings.BitWidths, "overflow", level_overflow),
            (DividedRows, "__init__", rows_divided),
            (DividedRows, "packed", rows_packed),
        ):
            patches.enter_context(patch.object(owner, name, seen))
        for module in (histogram, agreement, dp_tree):
            patches.enter_context(patch.object(module, "SumParameters", few))
        yield


@dataclass(frozen=True)
class Honest:
    """What two runs without a lie have in common."""

    vectors: Mapping[tuple[Silo, SumKey], bytes]
    files: Mapping[str, bytes] | None
    classes: Mapping[Silo, frozenset[Discloses]]
    last_round: int

    @classmethod
    def of(cls, runs: list[tuple[Outcome, Witness]], n_rounds: int) -> Honest:
        """Return what runs have in common: noise and fresh keys differ."""
        (outcome, first), (again, second) = runs
        assert outcome.error is None, outcome.error
        assert not outcome.errors, outcome.errors
        assert not outcome.rejected, outcome.rejected
        vectors = {
            key: part.vector.tobytes()
            for key, part in first.parts.items()
            if np.array_equal(part.vector, second.parts[key].vector)
        }
        same = (
            outcome.artefact is not None
            and again.artefact is not None
            and outcome.artefact.files == again.artefact.files
        )
        silos = {silo for silo, *_ in first.offers}
        return cls(
            vectors,
            outcome.artefact.files if same and outcome.artefact is not None else None,
            {
                silo: frozenset(what for who, _, _, what in first.offers if who == silo)
                for silo in silos
            },
            max([n_rounds, *(at.round for _, _, at, _ in first.offers)]),
        )


def faults(
    outcome: Outcome,
    witness: Witness,
    honest: Honest,
    liars: frozenset[Silo],
    victims: frozenset[Silo],
    tables: Mapping[str, Dataset],
    *,
    judged: bool,
    least: int = 0,
) -> list[str]:
    """Return what must not be of a run with a lie.

    Parameters
    ----------
    liars : set of Silo
        Silos that lie; empty where the coordinator does.
    victims : set of Silo
        Silos that the coordinator lies to.
    judged : bool
        Whether the coordinator half is honest, so that its own error counts.
    least : int
        Silos that a policy asks for in each sum.
    """
    found: list[str] = []
    errors: dict[str, BaseException] = {
        str(silo): error
        for silo, error in (outcome.errors | outcome.rejected).items()
        if silo not in liars
    }
    if judged and outcome.error is not None:
        errors["coordinator"] = outcome.error
    for who, error in errors.items():
        found += _error_faults(who, error, tables)
    told_none = outcome.rejected.keys() - liars - victims
    found += [f"{silo}, told no lie, rejects the result" for silo in sorted(told_none)]
    found += sorted(set(witness.bare))
    if witness.secure:
        found += _sum_faults(witness, honest, liars, victims)
        found += [
            f"{step} at {at}: a sum over {len(outcome.present)} silos, a policy asks for {least}"
            for (step, at), outcome in witness.totals.items()
            if outcome.total is not None and len(outcome.present) < least
        ]
    for silo, step, at, what in witness.offers:
        if silo in liars:
            continue
        if what not in honest.classes.get(silo, frozenset()) | {Discloses.KEYS, Discloses.NOTHING}:
            found.append(f"{silo} discloses {what.value} at {step}, honestly it does not")
        if at.round > honest.last_round and what not in (Discloses.NOTHING, Discloses.KEYS):
            found.append(f"{silo} offers {step} of round {at.round}, beyond the job's rounds")
    return found


def agreed(witness: Witness) -> bool:
    """Return whether all silos were in every sum, each from the same view."""
    everyone = {silo for silo, *_ in witness.offers}
    return witness.secure and all(
        set(outcome.present) == everyone
        and len({witness.parts[silo, key].view for silo in outcome.present}) == 1
        for key, outcome in witness.totals.items()
    )


def _error_faults(who: str, error: BaseException, tables: Mapping[str, Dataset]) -> list[str]:
    text = str(error)
    if not isinstance(error, FederationError | Refusal):
        return [f"{who} raises {type(error).__name__}: {text[:200]}"]
    if not text:
        return [f"{who} raises {type(error).__name__} without a text"]
    if re.search(r"[0-9a-f]{32}|\\x[0-9a-f]{2}", text):
        return [f"the error of {who} shows bytes: {text[:200]}"]
    numbers = {number.lstrip("-") for number in re.findall(r"-?\d+\.\d{4,}", text)}
    if numbers and numbers & _values(tables):
        return [f"the error of {who} shows a value of a table: {text[:200]}"]
    return []


def _values(tables: Mapping[str, Dataset]) -> set[str]:
    shown = set()
    for data in tables.values():
        for column in (*data.X.T, *(() if data.y is None else np.atleast_2d(data.y.T))):
            shown |= {str(abs(value)) for value in column.tolist()}
            shown |= {str(np.abs(value)) for value in column}
    return shown


def _sum_faults(
    witness: Witness, honest: Honest, liars: frozenset[Silo], victims: frozenset[Silo]
) -> list[str]:
    seen = [
        (f"the coordinator opens {key[0]} at {key[1]}", key, outcome.present, outcome.total)
        for key, outcome in witness.totals.items()
        if outcome.total is not None
    ]
    seen += [
        (f"{silo} opens {key[0]} at {key[1]}", key, present, values)
        for silo, key, present, values in witness.opened
    ]
    found = []
    for what, key, present, total in seen:
        parts = {s: witness.parts[s, key] for s in present if (s, key) in witness.parts}
        if not parts or liars & parts.keys():
            continue
        hidden = witness.blind and what.startswith("the coordinator")
        found += [f"{what}: {fault}" for fault in _total_faults(parts, total, hidden)]
        # A place of a largest number stays where it is for most questions: the sum after it tells.
        told = victims and not key[0].endswith("-bound")
        if told and not hidden and _exact(tuple(parts.values()), total):
            mixed = _mixed(parts, key, honest, victims)
            if mixed:
                found.append(f"{what}: computed from different questions, and opened: {mixed}")
    return found


def _mixed(
    parts: Mapping[Silo, Part], key: SumKey, honest: Honest, victims: frozenset[Silo]
) -> str:
    """Return which silos put in another vector than honestly while the others put in theirs."""
    changed = set()
    for silo, part in parts.items():
        expected = honest.vectors.get((silo, key))
        if expected is None:
            return ""
        if part.vector.tobytes() != expected:
            changed.add(silo)
    if changed and changed <= victims and set(parts) - victims:
        return ", ".join(sorted(changed))
    return ""


def _total_faults(parts: Mapping[Silo, Part], total: Residues, hidden: bool) -> list[str]:
    alike = len({part.view for part in parts.values()}) == 1
    vectors = tuple(parts.values())
    if alike and not hidden:
        return []  # an honest coordinator's total is theirs; a liar's relayed one is its own
    for size in range(1, len(vectors) + 1):
        for some in combinations(sorted(parts), size):
            if _exact(tuple(parts[silo] for silo in some), total):
                return [f"the sum of {', '.join(some)} in clear, from different views"]
    return []


def _exact(parts: tuple[Part, ...], total: Residues) -> bool:
    """Return whether a total is the sum of parts in more places than by chance."""
    ring = parts[0].ring
    if any(part.vector.shape != parts[0].vector.shape for part in parts):
        return False
    expected = summed([part.vector for part in parts], len(parts[0].vector), ring)
    if total.shape != expected.shape or not total.size:
        return False
    equal = int(np.count_nonzero(expected == total.astype(expected.dtype)))
    return equal > total.size // 8
