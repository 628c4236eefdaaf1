"""How many ids of other parties a silo's tables have answered in intersections, over all jobs."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import FOREIGN
from hedgerow.client_agent.records import RecordDamaged, Records, writing_state
from hedgerow.crypto.errors import PsiRefused

FOLDER = "asked-ids"
_NAME = "tables"


def read_asked(records: Records) -> dict[str, dict[str, Any]]:
    """Return what tables have answered: ``answered``, ``own``, and ``jobs``, by table.

    Raises
    ------
    RecordDamaged
        The record is damaged, or older than the one written last.
    """
    data = records.read(_NAME)
    try:
        return {} if data is None else dict(json.loads(data))
    except FOREIGN as error:
        raise RecordDamaged(f"the record {FOLDER}/{_NAME} is not what was written") from error


@dataclass(frozen=True, slots=True)
class AskedIds:
    """Counts a table's answers against a limit; a count is on disk before its answer is given.

    An id cannot be told from one that was asked before: each run hashes and blinds again. So what
    is counted is ids answered, the same list each time.
    """

    records: Records
    """Of the folder :data:`FOLDER` of the agent's state."""
    table: str
    """Name of the table in the silo's configuration."""
    max_ratio: float
    """Most ids that may be answered, in multiples of the table's own distinct ones."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def charge(self, job_id: str, asked: int, own: int) -> None:
        """Count ids of another party that a job asks about.

        Raises
        ------
        PsiRefused
            They would be more than the limit; nothing is counted.
        RecordDamaged, StateUnwritable
        """
        with self._lock:
            tables = read_asked(self.records)
            about = tables.setdefault(self.table, {"answered": 0, "own": own, "jobs": {}})
            about["own"] = own
            about["limit"] = None if math.isinf(self.max_ratio) else int(self.max_ratio * own)
            if about["answered"] + asked > self.max_ratio * own:
                raise PsiRefused(
                    f"this party's table has been asked about more than {self.max_ratio:g} times "
                    "as many ids as it has, over all jobs; `hedgerow privacy` shows them, and the "
                    "policy's max_ids_asked allows more"
                )
            about["answered"] += asked
            about["jobs"][job_id] = about["jobs"].get(job_id, 0) + asked
            with writing_state():
                self.records.write(_NAME, json.dumps(tables).encode())


def read(state: Path) -> dict[str, dict[str, Any]]:
    """Return what tables of an agent's state folder have answered, see :func:`read_asked`."""
    if not (state / FOLDER).is_dir():
        return {}
    key = (state / "records.key").read_bytes()
    return read_asked(Records(state / FOLDER, state / "turns" / FOLDER, key))
