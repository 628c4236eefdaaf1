"""Who is away and who is late in a simulated federation, by silo and round."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.exchange import Silo

AwaySilos = Mapping[int, Collection[str]] | float
LateSilos = Mapping[int, Mapping[str, float]]

_ENTRY = re.compile(r"(?P<silo>.+)@(?P<first>\d{1,5})(-(?P<last>\d{1,5}))?")


@dataclass(frozen=True)
class Absences:
    """Dropouts and stragglers."""

    away: AwaySilos
    """Silos that are away, by round, which count from zero; or the share of silos that are away in
    a round, at random. Nobody is away in the first round, which opens the job."""
    late: LateSilos
    """By round, seconds by which silos are late with their first offer of the round."""
    patience_seconds: float
    """How long the others wait. A silo that is later misses the round."""
    seed: int
    """Of who is away at random."""

    def is_away(self, silo: Silo, round: int) -> bool:
        """Return whether a silo is away in a round; a late silo is not."""
        if isinstance(self.away, Mapping):
            return silo in self.away.get(round, ())
        rng = np.random.default_rng([self.seed, zlib.crc32(silo.encode()), round])
        return round > 0 and bool(rng.random() < self.away)

    def lateness(self, silo: Silo, round: int) -> float:
        """Return the seconds by which a silo is late with its first offer of a round."""
        return self.late.get(round, {}).get(silo, 0.0)

    def check(self, silos: Collection[str], rounds: Callable[[], int]) -> None:
        """Raise InvalidJob for a schedule that these silos, or a job of these rounds, cannot keep.

        Parameters
        ----------
        rounds : callable
            How many the job has at most.
        """
        away: object = self.away
        if not isinstance(away, Real) and not _by_round(away, Collection):
            raise InvalidJob(
                f"away: expected a share, or names of silos by round, received {away!r}"
            )
        if not _by_round(self.late, Mapping) or not all(
            isinstance(seconds, Real) for own in self.late.values() for seconds in own.values()
        ):
            raise InvalidJob(f"late: expected seconds by silo, by round, received {self.late!r}")
        if not isinstance(self.away, Mapping):
            if not 0.0 <= self.away < 1.0:
                raise InvalidJob(
                    f"away: expected a share from 0 to below 1, received {self.away:g}"
                )
            missing: Mapping[int, Collection[str]] = {}
        else:
            missing = self.away
        for what, named in (("away", missing), ("late", self.late)):
            unknown = sorted({silo for own in named.values() for silo in own} - set(silos))
            if unknown:
                raise InvalidJob(
                    f"{what}: there is no silo {unknown[0]!r}; the silos are {_listed(silos)}"
                )
            n_rounds = rounds() if named else 0
            wrong = [round for round in named if not 0 <= round < n_rounds]
            if wrong:
                raise InvalidJob(
                    f"{what}: the job has {n_rounds} rounds, received round {wrong[0] + 1}, "
                    "counted from 1"
                )
        for own in self.late.values():
            for silo, seconds in own.items():
                if not 0.0 < seconds < math.inf:
                    raise InvalidJob(
                        f"late: {silo}: expected seconds above 0, received {seconds:g}"
                    )
        if missing.get(0):
            raise InvalidJob("away: nobody can be away in the first round, which opens the job")
        if any(seconds > self.patience_seconds for seconds in self.late.get(0, {}).values()):
            raise InvalidJob(
                f"late: in the first round, which opens the job, nobody can be later than "
                f"step_timeout_seconds, {self.patience_seconds:g}"
            )


def parse_away(texts: Iterable[str]) -> AwaySilos:
    """Return who is away, of a share such as ``0.1`` or of entries such as ``silo-3@2-5``.

    Raises
    ------
    InvalidJob
        It is neither.
    """
    given = list(texts)
    if not given:
        return 0.0
    if len(given) == 1 and "@" not in given[0]:
        try:
            return float(given[0])
        except ValueError:
            pass
    found: dict[int, list[str]] = {}
    for text in given:
        silo, rounds = _entry(
            text, "away: expected one share such as 0.1, or SILO@ROUNDS such as silo-3@2-5", text
        )
        for round in rounds:
            found.setdefault(round, []).append(silo)
    return found


def parse_late(texts: Iterable[str]) -> LateSilos:
    """Return who is late, of entries such as ``silo-3@2-5:30``, in seconds.

    Raises
    ------
    InvalidJob
        An entry is malformed.
    """
    found: dict[int, dict[str, float]] = {}
    expected = "late: expected SILO@ROUNDS:SECONDS such as silo-3@2-5:30"
    for text in texts:
        entry, _, number = text.rpartition(":")
        silo, rounds = _entry(entry, expected, text)
        try:
            seconds = float(number)
        except ValueError:
            raise InvalidJob(f"{expected}, received {text!r}") from None
        for round in rounds:
            found.setdefault(round, {})[silo] = seconds
    return found


def _entry(text: str, expected: str, whole: str) -> tuple[str, range]:
    """Return the silo of an entry and its rounds, counted from zero."""
    match = _ENTRY.fullmatch(text)
    if match is not None:
        first = int(match["first"])
        last = int(match["last"] or first)
        if 1 <= first <= last:
            return match["silo"], range(first - 1, last)
    raise InvalidJob(f"{expected} (rounds count from 1), received {whole!r}")


def _by_round(given: object, kind: type) -> bool:
    """Return whether it is a mapping of whole numbers to values of ``kind`` other than text."""
    return isinstance(given, Mapping) and all(
        isinstance(round, Integral) and isinstance(own, kind) and not isinstance(own, str)
        for round, own in given.items()
    )


def _listed(silos: Collection[str]) -> str:
    names = sorted(silos)
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} … {names[-1]}"
