"""Whether a table is nearly one that sums were opened of: two sums then differ by a few rows.

The silo keeps a sketch of columns of each such table: values fall by a hash into 128 places, and
each adds 1 to its place or takes 1 away (Charikar, Chen and Farach-Colton, 2002). The sketches of
two tables differ by no more than the values that have gone or come, all places together, and by
far more where hundreds have. Values are those of the silo's own table, in rows that have the job's
labels: a job may read columns otherwise, or use others, and the rows are the same. Columns are the
labels, the first 64 by name that the job uses, and the first 16 of numbers, which are in all jobs.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.tables.digests import hashes
from hedgerow.boosting.tables.values import is_given
from hedgerow.client_agent.records import Records, writing_state

_PLACES = 128
_MOST_COLUMNS, _COMMON_COLUMNS, _MOST_TABLES = 64, 16, 32
_BLOCK = 1 << 20
"""Rows whose hashes are in memory at a time."""
Sketch = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Seen:
    digest: str
    """Of the table, and the labels where rows without them are left out."""
    job: str
    n_rows: int
    columns: dict[str, str]
    """Sketches by the table's own names, little-endian int32 in base64."""

    @property
    def table(self) -> str:
        """What tells the table's content, regardless of labels, which jobs choose."""
        return self.digest.split("\0")[0] or self.job


_RECORD, _NAME = TypeAdapter(list[_Seen]), "tables"
FOLDER = "seen"


def counts_rows(job: JobParameters) -> bool:
    """Return whether a job tells sums, trees or scores of a table's rows that no noise hides."""
    return not job.vertical and not job.parameters.safeguards(job).hides_rows


class SeenTables:
    """The tables of this silo of which jobs have opened sums, under any name of its settings.

    Parameters
    ----------
    least : int
        Values of a column that must have gone or come, both counted, since any of those tables
        (``min_changed_rows`` of the policy).

    Raises
    ------
    RecordDamaged
        What is there may be older than what was stored last.
    """

    def __init__(self, records: Records, least: int) -> None:
        self._records, self._least, self._lock = records, least, threading.Lock()
        self._seen = _RECORD.validate_json(records.read(_NAME) or b"[]", strict=True)
        self._last: tuple[str, dict[str, Sketch]] = "", {}

    def check(self, job: JobParameters, data: Dataset) -> None:
        """Check that a job's sums and those of earlier jobs do not differ by a few rows.

        Raises
        ------
        PolicyDeclined
        """
        with self._lock:
            if self._least > 1 and not self._same(_Table(job, data)):
                self._compare(_Table(job, data))

    def note(self, job: JobParameters, job_id: str, data: Dataset) -> None:
        """Record the table of a job before its first sum, once for all its attempts; as above.

        Raises
        ------
        PolicyDeclined
            Another job has begun since the check.
        """
        if self._least < 2:
            return
        with self._lock:
            table = _Table(job, data)
            same = self._same(table)
            known = {name: text for one in same for name, text in one.columns.items()}
            if same and set(table.columns) <= set(known):
                return
            if not same:
                self._compare(table)
            known |= {name: _encoded(one) for name, one in self._sketches(table).items()}
            # The same rows in a new file take no other table's place.
            others = [one for one in self._seen if one not in same and one.columns != known]
            seen = [*others, _Seen(table.digest, job_id, table.n_rows, known)]
            kept = list(dict.fromkeys(one.table for one in reversed(seen)))[:_MOST_TABLES]
            seen = [one for one in seen if one.table in kept]
            with writing_state():
                self._records.write(_NAME, _RECORD.dump_json(seen))
            self._seen = seen

    def _same(self, table: _Table) -> list[_Seen]:
        return [one for one in self._seen if table.digest == one.digest != ""]

    def _compare(self, table: _Table) -> None:
        own = self._sketches(table)
        for seen in self._seen:
            if abs(table.n_rows - seen.n_rows) >= self._least:
                continue  # as many rows at least have gone or come
            moved = {
                name: int(np.abs(own[name] - _decoded(text)).sum(dtype=np.int64))
                for name, text in seen.columns.items()
                if name in own
            }
            if _is_close(moved, own, table.n_rows, self._least):
                raise PolicyDeclined(
                    f"policy rule min_changed_rows: since job {seen.job} fewer than {self._least} "
                    "of the table's rows with a label have gone or come, and the sums of the two "
                    "jobs would tell these; change more at once, or take the table as it was then"
                )

    def _sketches(self, table: _Table) -> dict[str, Sketch]:
        digest, kept = self._last
        if not digest or digest != table.digest:
            kept = {}
        kept |= {name: read() for name, read in table.columns.items() if name not in kept}
        self._last = table.digest, kept
        return {name: kept[name] for name in table.columns}


class _Table:
    """The rows of a silo's own table that a job's sums are of."""

    def __init__(self, job: JobParameters, data: Dataset) -> None:
        table, own = data.table, {new: old for old, new in job.columns.rename}
        labels = [own.get(name, name) for name in data.schema.labels]
        kept: NDArray[np.bool_] | None = None
        self.digest, self.n_rows = data.digest, int(table.num_rows)
        if data.unlabelled:
            kept = np.all([is_given(table.column(name)) for name in labels], axis=0)
            self.digest, self.n_rows = "\0".join([data.digest, *labels]), int(kept.sum())
        numbers = sorted(one.name for one in table.schema if _is_number(one.type))
        names = [*labels, *sorted(set(data.sources))[:_MOST_COLUMNS], *numbers[:_COMMON_COLUMNS]]
        self.columns: dict[str, Callable[[], Sketch]] = {
            name: partial(_sketch, table, name, kept) for name in dict.fromkeys(names)
        }


def _is_close(moved: dict[str, int], own: dict[str, Sketch], n_rows: int, least: int) -> bool:
    """Return whether a few rows have changed, by how many values of each column have.

    A column of few values has about as many of each in other rows, too: it counts where another one
    says that the rows are the same, or where all columns are so.
    """
    few = {name for name, n in moved.items() if 0 < n < least}
    many = min(_PLACES, n_rows) // 3
    many_values = {name for name in moved if np.count_nonzero(own[name]) >= many}
    if few & many_values or not many_values:
        return bool(few) and (bool(many_values) or max(moved.values()) < least)
    return bool(few) and any(moved[name] == 0 for name in many_values)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _sketch(table: Any, name: str, kept: NDArray[np.bool_] | None) -> Sketch:
    """Return the sketch of a column's values in the rows that are kept."""
    counts, start = np.zeros(2 * _PLACES, np.int64), 0
    for part in table.parts(name) if hasattr(table, "parts") else [table.column(name)]:
        if _is_number(part.type):
            part = part.cast("float64", safe=False)  # whole numbers are floats beside a null
        for first in range(0, len(part), _BLOCK):
            found = hashes(part.slice(first, _BLOCK))
            if kept is not None:
                found = found[kept[start : start + len(found)]]
            start += len(part.slice(first, _BLOCK))
            places = (found % np.uint64(2 * _PLACES)).astype(np.intp)
            counts += np.bincount(places, minlength=2 * _PLACES)
    return (counts[:_PLACES] - counts[_PLACES:]).astype(np.int32)


def _encoded(sketch: Sketch) -> str:
    return base64.b64encode(sketch.astype("<i4").tobytes()).decode()


def _decoded(text: str) -> Sketch:
    return np.frombuffer(base64.b64decode(text), "<i4")
