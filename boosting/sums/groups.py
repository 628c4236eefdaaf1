"""Which silos sums may be over: unions of fixed groups, so that no two sums differ by a few silos.

The difference of two sums over sets that differ by one silo is that silo's share, whenever its
share of both is the same; and who chooses models and sets can make it so. At a job's start its
silos are dealt into groups of three to five (``group_size`` and more), once, for all
attempts. A sum opens over a union of whole groups, so that by adding and subtracting, over
all rounds, nothing finer than a group comes out. A silo that is lost takes its group out until it
is back. Fewer than six silos are one group.

Over several jobs of a table, whose groups may differ, :func:`parts` says what sums over several
sets can tell apart; a silo refuses a set by which fewer than three silos would be told apart. It
does not know of the sets that it was not in. So each silo has companions (:func:`companions_of`)
from its first sum on, at least three with itself, without which no sum over it opens: all sets of
all jobs, in any order, are unions of companions, which nothing tells apart.

References
----------
So et al., Securing secure aggregation: mitigating multi-round privacy leakage in federated
learning, AAAI 2023 (batch partitioning). docs/threat-model.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from hedgerow.boosting.checkpoints import readable
from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import InvalidJob, SumRefused
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.steps import MOST_JOBS
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.vault.interface import LEAST_SILOS

LEAST_ROWS = 10
"""A silo with fewer hides no other's in a sum."""
if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

Set = tuple[Silo, ...]
Groups = tuple[Set, ...]


@lru_cache(maxsize=64)
def groups_of(silos: tuple[str, ...], seed: int, size: int = LEAST_SILOS) -> Groups:
    """Deal silos into groups of at least ``size``, as even as can be; fewer than two are one.

    Parameters
    ----------
    silos : tuple of str
        All that take part in the job; their order does not matter.
    seed : int
        Of the signed job: nobody chooses who is in a group with whom.
    """
    dealt = sorted(
        map(Silo, silos), key=lambda silo: state_digest("hedgerow cohort groups v1", seed, silo)
    )
    n_groups = max(1, len(dealt) // max(size, LEAST_SILOS))
    return tuple(tuple(sorted(dealt[g::n_groups])) for g in range(n_groups) if dealt)


def whole(groups: Groups, present: Collection[str]) -> Set:
    """Return the silos of the groups of which all are present, sorted."""
    there = set(present)
    return tuple(sorted(silo for group in groups if there.issuperset(group) for silo in group))


def is_whole(groups: Groups, silos: Sequence[str]) -> bool:
    """Return whether a set is a union of whole groups."""
    return whole(groups, silos) == tuple(silos)


def waited_for(groups: Groups, present: Collection[str]) -> dict[Silo, Set]:
    """Return the silos that others wait for: who is away, and of its group who is there."""
    there = set(present)
    return {
        silo: tuple(one for one in group if one in there)
        for group in groups
        if there.intersection(group)
        for silo in group
        if silo not in there
    }


def told_groups(groups: Groups) -> str:
    """Return in words over which silos sums may be, and what the loss of one does."""
    first = "; each tells with whom its table was first summed, and sums over it are over all these"
    if len(groups) == 1:
        return (
            f"secure sums are over all {len(groups[0])} silos, which are one group: a job waits "
            "for one that is lost, unless it and all policies allow close sets "
            f"(max_close_sums){first}"
        )
    names = "; ".join(", ".join(group) for group in groups[:8])
    names += "; ..." if len(groups) > 8 else ""
    return (
        f"secure sums are over unions of {len(groups)} groups of silos ({names}): one that is lost "
        f"takes its group out until it is back{first}"
    )


def parts(sets: Iterable[Collection[str]]) -> list[Set]:
    """Return the finest sets of silos whose sums follow from sums over ``sets``.

    Silos that are in the same ones of the sets cannot be told apart: every combination of the sums
    gives them the same factor.
    """
    inside: defaultdict[Silo, list[int]] = defaultdict(list)
    for number, one in enumerate(sets):
        for silo in one:
            inside[Silo(silo)].append(number)
    found: defaultdict[tuple[int, ...], list[Silo]] = defaultdict(list)
    for silo in sorted(inside):
        found[tuple(inside[silo])].append(silo)
    return [tuple(part) for part in found.values()]


def told_apart(sets: Sequence[Collection[str]], new: Collection[str]) -> Set | None:
    """Return fewer than three silos that a sum over another set would tell apart; None if none."""
    before = {part for part in parts(sets) if len(part) < LEAST_SILOS}
    after = (part for part in parts([*sets, new]) if len(part) < LEAST_SILOS)
    return next((part for part in after if part not in before), None)


def companions_of(groups: Groups, said: Mapping[Silo, Set]) -> dict[Silo, Set]:
    """Return the companions of each silo that takes part, itself among them.

    Parameters
    ----------
    groups : tuple of tuples of Silo
        Of the job.
    said : mapping of Silo to tuple of Silo
        What each says and signs; empty from one that was in no sum of its table, or whose record
        is lost.

    Notes
    -----
    Who says none has the companions of all who name it. The others are dealt as the groups are,
    fewer than three to those of another group. Lies must not part silos that are new in one
    group: so one that is named goes with the others as well, unless all of the group name all.
    """
    found = {silo: set(own) for silo, own in said.items()}
    for own in said.values():
        for silo in own:
            if silo in said and not said[silo]:
                found[silo] |= set(own)
    named = {silo for silo, own in found.items() if own}
    here = [{silo for silo in group if silo in said} for group in groups]
    parted = [group for group in here if not all(group <= found[silo] for silo in group)]
    new = [{silo for silo in group if not said[silo]} for group in parted]
    unnamed = [group - named for group in new]
    dealt = [group for group in unnamed if len(group) >= LEAST_SILOS]
    rest = {silo for group in unnamed if len(group) < LEAST_SILOS for silo in group}
    if dealt and len(rest) < LEAST_SILOS:
        dealt[-1] = dealt[-1] | rest
    else:
        dealt.append(rest)
    for group, fresh in zip(new, unnamed, strict=True):
        with_whom = next((one for one in dealt if one & fresh), dealt[-1])
        with_whom |= group
    for together in dealt:
        for silo in together:
            found[silo] |= together
    return {silo: tuple(sorted(own)) for silo, own in found.items()}


def told_apart_by(said: Mapping[Silo, Set], companions: Mapping[Silo, Set]) -> Set:
    """Return the silos that are new and fewer than three, or of which others say different things.

    Those that are named hide nobody who is not: they may have been in sums before.
    """
    unnamed = set(said) - {silo for own in said.values() for silo in own}
    return tuple(
        silo
        for silo, own in sorted(companions.items())
        if (not said[silo] and len(own) < LEAST_SILOS)
        or (silo in unnamed and len(unnamed.intersection(own)) < LEAST_SILOS)
        or (not said[silo] and len({one for one in said.values() if silo in one}) > 1)
        or any(silo not in companions.get(one, own) for one in own)
    )


def joined(groups: Groups, ties: Iterable[Set]) -> Groups:
    """Return groups of which those that share a tie's silos are one, with these silos."""
    at = {silo: group for group in groups for silo in group}
    for tie in ties:
        one = tuple(sorted({*tie, *(silo for own in tie for silo in at.get(own, ()))}))
        at |= dict.fromkeys(one, one)
    return tuple(sorted(set(at.values())))


def parse_sets(raw: bytes | None) -> list[Set]:
    """Return sets of silos as :func:`encode_sets` wrote them; none for ``None``.

    Raises
    ------
    DataError
        Other bytes.
    """
    if raw is None:
        return []
    with readable("a record of sets of silos"):
        found = read_as(list[list[str]], json.loads(raw), "sets")
        return [tuple(map(Silo, one)) for one in found]


def encode_sets(sets: Iterable[Collection[str]]) -> bytes:
    """Return sets of silos as JSON."""
    return json.dumps([list(one) for one in sets], separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Opened:
    """A set over which a job let a sum be opened first; ``close`` as :class:`OpenedSets` has it."""

    silos: Set
    job: str = ""
    close: bool = False


class OpenedSets:
    """The sets over which sums of a table were opened, and those that may come to them.

    A set is close that is no union of whole groups with their companions, or that tells fewer than
    three silos apart by what was opened before. Each one that is opened counts, once.

    Parameters
    ----------
    groups : tuple of tuples of Silo
        Of the job; empty where any set may be opened.
    most_close : int
        Close sets that the job may open.
    opened : list of Opened
        That were opened before, of all jobs of the table; other jobs may add to it.
    most_of_table : int or None
        Close sets that all jobs together may open; None for no limit.
    companions : list of Silo
        Of this silo, itself among them; empty before its table's first sum. Other jobs fill it too.
    rows : list of tuple of str, int and int
        Earlier jobs, of how many rows of this silo their sums were, and how many they left out;
        other jobs fill it too.

    Attributes
    ----------
    keep : callable
        Makes what was noted durable before it returns.
    """

    def __init__(
        self,
        groups: Groups,
        most_close: int = 0,
        job: str = "",
        opened: list[Opened] | None = None,
        most_of_table: int | None = None,
        companions: list[Silo] | None = None,
        rows: list[tuple[str, int, int]] | None = None,
    ) -> None:
        self._companions = [] if companions is None else companions
        self._rows = [] if rows is None else rows
        self._apart: Set = ()
        self._own: Set = ()
        self._empty, self._few = frozenset[Silo](), frozenset[Silo]()
        self._changed: dict[str, tuple[set[Silo], set[Silo]]] = {}
        self._said: set[str] = set()
        self._groups, self.most_close, self.job = groups, most_close, job
        self.opened = [] if opened is None else opened
        self.most_of_table = most_of_table
        self.keep: Callable[[], None] = lambda: None
        self._ties = {self.companions} - {()}
        self._tied = joined(groups, self._ties) if self._ties else groups

    @property
    def groups(self) -> Groups:
        """Groups of the job's silos."""
        return self._groups

    @property
    def companions(self) -> Set:
        """The silos without which no sum over this one opens; empty before its first sum."""
        return tuple(self._companions)

    @property
    def tied(self) -> Groups:
        """Groups of which those with companions in another are one with it."""
        return self._tied

    def agree(
        self,
        said: Mapping[Silo, Set],
        own: Silo | None = None,
        empty: Collection[Silo] = (),
        few: Collection[Silo] = (),
        changed: Mapping[Silo, Collection[str]] = {},
        differing: Mapping[Silo, Collection[str]] = {},
    ) -> None:
        """Take in the companions that the silos of a setup say; as this silo does where given.

        ``empty`` and ``few``: who says so of its rows in this job; ``changed`` and ``differing``:
        since which jobs.
        """
        if not self._groups:
            return
        self._empty, self._few, self._changed = frozenset(empty), frozenset(few), {}
        for silo, jobs in changed.items():
            for job in jobs:
                others = {one for one, own in differing.items() if job in own}
                self._changed.setdefault(job, (set(), others))[0].add(silo)
        self._ties |= set(said.values()) - {()}
        if own is not None:
            found = companions_of(self._groups, said)
            self._own, self._apart = found[own], told_apart_by(said, found)
            self._ties |= set(found.values())
        self._tied = joined(self._groups, self._ties)

    def say_rows(self, n_rows: int, left_out: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the earlier jobs whose sums were of far other rows; of a tenth more or fewer.

        Far others: the share of the table that is in sums moved by a tenth, as by a label that rows
        lack, or there are ten times as many. The difference to such a job is over silos with other
        rows, which is why there have to be three.
        """
        changed, differing = [], []
        for job, n, out in self._rows:
            if job == self.job:
                continue
            if _differ(n * (n_rows + left_out), n_rows * (n + out), 1.1) or _differ(n, n_rows, 10):
                changed.append(job)
            elif _differ(n, n_rows, 1.1):
                differing.append(job)
        self._said = {*changed, *differing}
        return tuple(changed), tuple(differing)

    def bind(self, rows: tuple[int, int] | None = None) -> None:
        """Keep this silo's companions, before its first vector of its table leaves.

        And of how many rows it is, and how many the job leaves out; None where noise hides them.

        Raises
        ------
        SumRefused
            Another job has begun beside this one, with others.
        """
        if not self._groups:
            return
        if rows is not None and (kept := (self.job, *rows)) not in self._rows:
            self._rows.append(kept)  # before others of this table are looked for
            said = set(self._said)
            changed, _ = self.say_rows(*rows)
            if not said.issuperset(changed):
                self._rows.remove(kept)
                raise SumRefused(
                    "another job over other rows of this silo's table has begun its sums at the "
                    "same time: submit this one again"
                )
            del self._rows[:-MOST_JOBS]
            self.keep()
        if self.companions == self._own:
            return
        if self._companions:
            raise SumRefused(
                "another job has begun the first sums of this silo's table at the same time, with "
                f"{', '.join(self._companions)}; expected {', '.join(self._own)}: submit this one "
                "again"
            )
        self._companions[:] = self._own
        self.keep()

    @property
    def sets(self) -> list[Set]:
        """The sets, in the order in which they were opened."""
        return [one.silos for one in self.opened]

    def n_close(self, job: str | None = None) -> int:
        """Return how many close sets were opened, by one job or all."""
        return sum(one.close for one in self.opened if job in (None, one.job))

    def close_by(self, present: Set) -> str:
        """Return why a set that was not opened before is close; "" where it is not."""
        known = self.sets
        if not self.groups:
            return ""
        counted = any(
            one.close and one.job == self.job for one in self.opened if one.silos == present
        )
        if not counted and (alone := self._beside_few(present, self._few)):
            return f"of {', '.join(alone)} fewer than three have {LEAST_ROWS} rows or more"
        if not counted and (moved := self._changed_alone(present)):
            job, silos = moved
            return (
                f"since job {job} {', '.join(silos)} alone of their group have far more or fewer "
                "rows in sums, and the difference would tell these"
            )
        if present in known:
            return ""
        if not is_whole(groups := self.tied, present):
            away = [f"{one} (with {', '.join(own)})" for one, own in
                    sorted(waited_for(groups, present).items())]  # fmt: skip
            whole_own = is_whole(self.groups, present)
            what = "lacks companions" if whole_own else "is no union of whole groups"
            return f"it {what}: {', '.join(away) or 'strangers are in it'}"
        apart = tuple(silo for silo in self._apart if silo in present) or told_apart(
            [set(one) - self._empty for one in known], set(present) - self._empty
        )
        if apart is None:
            return ""
        return f"with the sums before it, it tells the sums of {', '.join(apart)} apart"

    def _beside_few(self, present: Set, few: frozenset[Silo]) -> Set:
        """Return a group that is present of which one or two silos are not in ``few``, if any."""
        there = set(present)
        for group in self.tied:
            if there.issuperset(group) and 0 < len(set(group) - few) < LEAST_SILOS:
                return group
        return ()

    def _changed_alone(self, present: Set) -> tuple[str, Set] | None:
        """Return a job, and silos with far other rows since, beside too few with others."""
        whole_ones = [set(group) for group in self.tied if set(present).issuperset(group)]
        for job, (changed, differing) in sorted(self._changed.items()):
            for group in whole_ones:
                if changed & group and len((changed | differing) & group) < LEAST_SILOS:
                    return job, tuple(sorted(changed & group))
        return None

    def forbids(self, present: Set) -> str:
        """Return why no sum may be opened over a set, or "" where one may."""
        why = self.close_by(present)
        if not why:
            return ""
        if self.n_close(self.job) >= self.most_close:
            return f"{why}; max_close_sums of the job allows {self.most_close} such sets"
        if self.most_of_table is not None and self.n_close() >= self.most_of_table:
            return f"{why}; policy rule max_close_sums allows {self.most_of_table} such sets"
        return ""

    def usable(self, present: Collection[str]) -> Set:
        """Return the silos present that a sum may be over: all, or those of whole groups."""
        there = tuple(sorted(map(Silo, present)))
        if not self.groups or not self.forbids(there):
            return there
        return whole(self.tied, there)

    def note(self, present: Set) -> None:
        """Record a set before a sum is opened over it."""
        close = bool(self.close_by(present))
        if close or present not in self.sets:
            self.opened.append(Opened(present, self.job, close))
            self.keep()


def _differ(one: int, other: int, times: float) -> bool:
    return max(one, other) > times * min(one, other)


def check_groups(job: JobParameters, groups: Groups, silos: Collection[str], own: Silo) -> None:
    """Check the groups that the coordinator says a job has.

    Raises
    ------
    InvalidJob
        They are no groups of the job's silos, or other groups than the job's silos are dealt into.
    """
    members = [silo for group in groups for silo in group]
    small = next((group for group in groups if len(group) < LEAST_SILOS), None)
    if small is not None:
        raise InvalidJob(f"the coordinator named a group of {len(small)} silos, expected 3 or more")
    if len(set(members)) < len(members) or not set(members) <= set(silos) | set(job.silos):
        raise InvalidJob("the coordinator's groups have silos twice, or silos that are not asked")
    if own not in members:
        raise InvalidJob(f"silo {own} is in no group: the job's groups were made without it")
    dealt = groups_of_job(job, job.silos)
    if set(members) == set(job.silos) and not all(is_whole(dealt, group) for group in groups):
        raise InvalidJob("the coordinator's groups are not those that the job's silos are dealt to")


def groups_of_job(
    job: JobParameters,
    silos: Collection[str],
    empty: Collection[str] = (),
    late: Collection[str] = (),
) -> Groups:
    """Return the groups of a job's silos.

    A job that draws silos for its rounds draws whole groups of those that it names.

    Parameters
    ----------
    silos : collection of str
        That have rows and are there.
    empty : collection of str
        That have no rows, and so hide nobody: groups in which few have any are joined.
    late : collection of str
        That were not there when groups were made: at least three make groups of their own.
    """
    deal = partial(groups_of, seed=job.seed, size=job.group_size)
    if job.parameters.safeguards(job).drawn_silos:
        return deal(job.silos)
    found: list[Set] = []
    few: Set = ()
    for group in deal((*silos, *empty)):
        few = tuple(sorted((*few, *group)))
        if len(set(few) - set(empty)) >= max(job.group_size, LEAST_SILOS):
            found.append(few)
            few = ()
    if few:
        found[-1:] = [tuple(sorted(silo for own in (*found[-1:], few) for silo in own))]
    return (*found, *(deal(tuple(late)) if len(late) >= job.group_size else ()))
