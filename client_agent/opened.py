"""Over which sets of silos sums of this silo's tables were opened, by all jobs so far.

The difference of two sums over sets that differ by one silo is that silo's share, also where two
jobs made them on two days. So what was opened counts for a table, not for a job, and is on disk
before a sum opens.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.sums.groups import Groups, Opened, OpenedSets, groups_of_job
from hedgerow.client_agent.records import Records, writing_state


@dataclass(frozen=True, slots=True)
class Openings:
    """What was opened of a table, and how many close sets the policy allowed at the last one.

    ``companions``: the silos without which no sum over this one opens, itself among them.
    """

    max_close_sums: int = 0
    opened: list[Opened] = field(default_factory=list)
    companions: list[Silo] = field(default_factory=list)
    explored: list[str] = field(default_factory=list)
    """Jobs that have told counts of the table's rows."""
    max_explorations: int = 0

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

    Raises
    ------
    RecordDamaged
        What is there may be older than what was stored last.
    """

    def __init__(
        self, records: Records, table: str, most_close: int, most_explored: int = 0
    ) -> None:
        self._records = records
        self._most = most_close
        self._lock = threading.RLock()
        self._tables = _RECORD.validate_json(records.read(_NAME) or b"{}", strict=True)
        kept = replace(
            self._tables.get(table, Openings()),
            max_close_sums=most_close,
            max_explorations=most_explored,
        )
        self._tables[table], self._opened, self._explored = kept, kept.opened, kept.explored
        self._most_explored, self._companions = most_explored, kept.companions

    def of_job(self, job: JobParameters, job_id: str, groups: Groups) -> OpenedSets:
        """Return the sets as one job sees them and adds to them."""
        found = OpenedSets(
            groups, job.most_close_sums, job_id, self._opened, self._most, self._companions
        )
        found.keep = self._store
        return found

    def check_explored(self, job: JobParameters, job_id: str) -> bool:
        """Return whether a job tells counts of rows, and has not yet.

        Raises
        ------
        PolicyDeclined
            As many jobs as the policy allows have done so.
        """
        if not job.parameters.safeguards(job).tells_counts or job_id in self._explored:
            return False
        if len(self._explored) >= self._most_explored:
            raise PolicyDeclined(
                f"policy rule max_explorations: {len(self._explored)} explore jobs have told "
                f"counts of the table's rows, at most {self._most_explored} may"
            )
        return True

    def note_explored(self, job: JobParameters, job_id: str) -> None:
        """Record a job before it tells counts of rows, once for all its attempts; as above."""
        with self._lock:
            if not self.check_explored(job, job_id):
                return
            self._explored.append(job_id)
            try:
                self._store()
            except BaseException:  # also Ctrl-C: it is not on disk, so nothing has been told
                self._explored.remove(job_id)
                raise

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


def would_add(job: JobParameters, own: Openings) -> str:
    """Return in words what a job would add to what was opened and told of a table."""
    sums = _would_open(job, own)
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
