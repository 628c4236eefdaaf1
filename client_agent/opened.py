"""Over which sets of silos sums of this silo's tables were opened, by all jobs so far.

The difference of two sums over sets that differ by one silo is that silo's share, also where two
jobs made them on two days. So what was opened counts for a table, not for a job, and is on disk
before a sum opens. So do the ways in which jobs divide columns and labels: between the cut points
of two jobs there may be fewer rows than either leaves between its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from hedgerow.boosting.allowances import COLUMNS
from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.sums.groups import Groups, Opened, OpenedSets, groups_of_job
from hedgerow.client_agent.records import Records, writing_state


@dataclass(frozen=True, slots=True)
class Binning:
    """One way in which a job has divided columns or labels of a table, over which silos' rows."""

    what: str
    how: str
    silos: tuple[Silo, ...]
    job: str
    """The first that has."""

    @property
    def key(self) -> tuple[str, str, tuple[Silo, ...]]:
        """What is the same in two jobs with the same cut points of the same rows."""
        return self.what, self.how, self.silos


@dataclass(frozen=True, slots=True)
class Openings:
    """What was opened of a table, and how many close sets the policy allowed at the last one.

    ``companions``: the silos without which no sum over this one opens, itself among them.
    """

    max_close_sums: int = 0
    opened: list[Opened] = field(default_factory=list)
    companions: list[Silo] = field(default_factory=list)
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    """Jobs, how many of the table's rows their sums were of, and how many they left out."""
    explored: list[str] = field(default_factory=list)
    """Jobs that have told counts of the table's rows."""
    max_explorations: int = 0
    binnings: list[Binning] = field(default_factory=list)
    """How jobs have divided the table's columns and labels, each way once."""
    max_binnings: int = 16
    max_label_binnings: int = 1

    @property
    def n_close(self) -> int:
        """How many of the sets are close."""
        return sum(one.close for one in self.opened)


_RECORD, _NAME = TypeAdapter(dict[str, Openings]), "sets"
FOLDER = "opened"


class TableOpenings:
    """The sets over which sums of one table were opened.

    Parameters
    ----------
    table : str
        Name of the table in the silo's configuration; its content may change.
    most_close : int
        Close sets that all jobs together may open (``max_close_sums`` of the policy).
    most_explored : int
        Jobs that may tell counts of the table's rows (``max_explorations``).
    most_binnings, most_label_binnings : int
        Ways in which jobs may divide the table's columns, and each label (``max_binnings``,
        ``max_label_binnings``).

    Raises
    ------
    RecordDamaged
        What is there may be older than what was stored last.
    """

    def __init__(
        self,
        records: Records,
        table: str,
        most_close: int,
        most_explored: int = 0,
        most_binnings: int = 16,
        most_label_binnings: int = 1,
    ) -> None:
        self._records = records
        self._most = most_close
        self._lock = threading.RLock()
        self._tables = _RECORD.validate_json(records.read(_NAME) or b"{}", strict=True)
        kept = replace(
            self._tables.get(table, Openings()),
            max_close_sums=most_close,
            max_explorations=most_explored,
            max_binnings=most_binnings,
            max_label_binnings=most_label_binnings,
        )
        self._tables[table], self._opened, self._explored = kept, kept.opened, kept.explored
        self._own, self._companions = kept, kept.companions

    def of_job(self, job: JobParameters, job_id: str, groups: Groups) -> OpenedSets:
        """Return the sets as one job sees them and adds to them."""
        found = OpenedSets(
            groups, job.most_close_sums, job_id, self._opened, self._most, self._companions,
            self._own.rows,
        )  # fmt: skip
        found.keep = self._store
        return found

    def check_told(
        self, job: JobParameters, job_id: str, silos: tuple[Silo, ...], *found: tuple[str, str]
    ) -> bool:
        """Return whether a job tells of the table what it has not told yet.

        Parameters
        ----------
        *found : tuples of what is divided, and how
            Ways that are known in the course of the job alone.

        Raises
        ------
        PolicyDeclined
            As many jobs as the policy allows have told counts, or have divided the table otherwise.
        """
        explores = self._explores(job, job_id)
        if explores and len(self._explored) >= self._own.max_explorations:
            raise PolicyDeclined(
                f"policy rule max_explorations: {len(self._explored)} explore jobs have told "
                f"counts of the table's rows, at most {self._own.max_explorations} may"
            )
        new = new_binnings(job, self._own, job_id, silos, found)
        for one in new:
            rule, most = _limit_of(self._own, one.what)
            ways = [other for other in self._own.binnings if other.what == one.what]
            if len(ways) >= most:
                raise PolicyDeclined(
                    f"policy rule {rule}: jobs have divided the table's {one.what} in {len(ways)} "
                    f"ways, at most {most} may be ({_ways(ways)}); this job has another one: "
                    f"{one.how}, over {', '.join(one.silos)}"
                )
        return explores or bool(new)

    def note_told(
        self, job: JobParameters, job_id: str, silos: tuple[Silo, ...], *found: tuple[str, str]
    ) -> None:
        """Record a job before it tells of the table, once for all its attempts; as above."""
        with self._lock:
            if not self.check_told(job, job_id, silos, *found):
                return
            new = new_binnings(job, self._own, job_id, silos, found)
            explores = self._explores(job, job_id)
            self._explored += [job_id] * explores
            self._own.binnings.extend(new)
            try:
                self._store()
            except BaseException:  # also Ctrl-C: it is not on disk, so nothing has been told
                del self._explored[len(self._explored) - explores :]
                del self._own.binnings[len(self._own.binnings) - len(new) :]
                raise

    def _explores(self, job: JobParameters, job_id: str) -> bool:
        return job.parameters.safeguards(job).tells_counts and job_id not in self._explored

    def check(self, job: JobParameters, job_id: str, silos: tuple[Silo, ...]) -> None:
        """Check what a job would open at least: sums over all its silos.

        Raises
        ------
        PolicyDeclined
            By what earlier jobs opened, these sums would tell fewer than three silos apart; or the
            job allows more close sets than the policy leaves.
        """
        asked, used = job.most_close_sums, sum(o.close for o in self._opened if o.job != job_id)
        if asked and asked + used > self._most:
            raise PolicyDeclined(
                f"policy rule max_close_sums: the job may open sums over {asked} sets that are no "
                "union of whole groups or tell fewer than three silos apart, the jobs before it "
                f"have opened {used}, at most {self._most} may be"
            )
        groups = groups_of_job(job, silos)
        why = self.of_job(job, job_id, groups).forbids(tuple(sorted(silos)))
        if why:
            raise PolicyDeclined(f"policy rule max_close_sums: sums over {', '.join(silos)}: {why}")

    def _store(self) -> None:
        with self._lock, writing_state():
            self._records.write(_NAME, _RECORD.dump_json(self._tables))


def new_binnings(
    job: JobParameters,
    own: Openings,
    job_id: str,
    silos: tuple[Silo, ...],
    found: Sequence[tuple[str, str]] = (),
) -> list[Binning]:
    """Return the ways in which a job divides a table and no job has; none where it has begun to.

    A later attempt keeps the cut points of the first, also where it has other silos.
    """
    known = {one.key for one in own.binnings}
    begun = {one.what for one in own.binnings if one.job == job_id}
    made = [
        Binning(what, how, tuple(sorted(silos)), job_id)
        for what, how in (*job.parameters.safeguards(job).binnings, *found)
    ]
    return [one for one in made if one.key not in known and one.what not in begun]


def _limit_of(own: Openings, what: str) -> tuple[str, int]:
    if what.startswith(COLUMNS):
        return "max_binnings", own.max_binnings
    return "max_label_binnings", own.max_label_binnings


def _ways(found: Sequence[Binning]) -> str:
    some = "; ".join(f"{one.how}, over {', '.join(one.silos[:8])}" for one in found[:3])
    return f"{some}; ..." if len(found) > 3 else some or "none"


def would_add(job: JobParameters, own: Openings) -> str:
    """Return in words what a job would add to what was opened and told of a table."""
    sums = _would_open(job, own)
    for one in new_binnings(job, own, "", tuple(map(Silo, job.silos))) if job.silos else ():
        rule, most = _limit_of(own, one.what)
        n = sum(other.what == one.what for other in own.binnings)
        if n or n >= most:
            ends = "may be one more" if n < most else "would be declined"
            sums += f"; {rule} is {most}, jobs have divided the {one.what} in {n} other ways: "
            sums += f"it {ends}"
    if not job.parameters.safeguards(job).tells_counts:
        return sums
    n, most = len(own.explored), own.max_explorations
    ends = "may tell counts of rows" if n < most else "would be declined"
    return f"{sums}; max_explorations is {most}, {n} jobs have told counts: it {ends}"


def _would_open(job: JobParameters, own: Openings) -> str:
    if not job.silos:
        return "it names no silos: over which sets its sums open is known when they have accepted"
    groups, silos = groups_of_job(job, job.silos), tuple(map(Silo, job.silos))
    sets = OpenedSets(groups, opened=list(own.opened), companions=own.companions)
    text = f"sums over {len(silos)} silos in {len(groups)} group{'s' * (len(groups) > 1)}"
    why = sets.close_by(silos)
    if not why:
        return f"{text}: " + ("opened before" if silos in sets.sets else "a set that is not close")
    left = max(own.max_close_sums - own.n_close, 0)
    ends = "may open" if min(left, job.most_close_sums) else "would be declined"
    return (
        f"{text}: {why}; max_close_sums of the job is {job.most_close_sums}, the policy leaves "
        f"{left}: it {ends}"
    )


def read_openings(state: Path) -> dict[str, Openings]:
    """Return by table what the state folder of an agent has; nothing where it has none.

    Raises
    ------
    RecordDamaged
    """
    key = state / "records.key"
    if not key.is_file():
        return {}
    records = Records(state / FOLDER, state / "turns" / FOLDER, key.read_bytes())
    return _RECORD.validate_json(records.read(_NAME) or b"{}", strict=True)
