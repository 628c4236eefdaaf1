"""Whether a table is nearly one that sums were opened of: two sums then differ by a few rows.

The silo keeps a sketch of each column of each such table: values fall by a hash into 128 places,
and each adds 1 to its place or takes 1 away (Charikar, Chen and Farach-Colton, 2002). The sketches
of two tables differ by no more than the values that have gone or come, all places together, and by
far more where hundreds have. Rows in another order, and columns under other names of a job, are the
same table.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.tables.digests import mixed
from hedgerow.client_agent.records import Records, writing_state

_PLACES = 128
_MOST_COLUMNS, _MOST_TABLES = 64, 32
Sketch = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Seen:
    digest: str
    job: str
    columns: dict[str, str]
    """Sketches by the table's own names, little-endian int32 in base64."""


_RECORD, _NAME = TypeAdapter(list[_Seen]), "tables"
FOLDER = "seen"


def counts_rows(job: JobParameters) -> bool:
    """Return whether a job tells sums or trees of a table's rows that no noise hides."""
    return not job.vertical and job.parameters.safeguards(job).epsilon is None


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
        if self._least < 2 or any(data.digest == seen.digest != "" for seen in self._seen):
            return
        own = self._sketches(job, data)
        for seen in self._seen:
            moved = {
                name: int(np.abs(own[name] - _decoded(text)).sum(dtype=np.int64))
                for name, text in seen.columns.items()
                if name in own
            }
            if _is_close(moved, own, self._least):
                raise PolicyDeclined(
                    f"policy rule min_changed_rows: since job {seen.job} fewer than {self._least} "
                    "rows of the table have gone or come, and the sums of the two jobs would tell "
                    "these; change more at once, or take the table as it was then"
                )

    def note(self, job: JobParameters, job_id: str, data: Dataset) -> None:
        """Record the table of a job before its first sum, once for all its attempts."""
        with self._lock:
            same = [one for one in self._seen if data.digest == one.digest != ""]
            known = {name: text for one in same for name, text in one.columns.items()}
            if self._least < 2 or (known and set(_columns(job, data)) <= set(known)):
                return
            known |= {name: _encoded(one) for name, one in self._sketches(job, data).items()}
            others = [one for one in self._seen if one not in same]
            seen = [*others, _Seen(data.digest, job_id, known)][-_MOST_TABLES:]
            with writing_state():
                self._records.write(_NAME, _RECORD.dump_json(seen))
            self._seen = seen

    def _sketches(self, job: JobParameters, data: Dataset) -> dict[str, Sketch]:
        digest, kept = self._last
        if not digest or digest != data.digest:
            kept = {}
        columns = _columns(job, data)
        kept |= {name: read() for name, read in columns.items() if name not in kept}
        self._last = data.digest, kept
        return {name: kept[name] for name in columns}


def _is_close(moved: dict[str, int], own: dict[str, Sketch], least: int) -> bool:
    """Return whether a few rows have changed, by how many values of each column have.

    A column of few values has about as many of each in other rows, too: it counts where another one
    says that the rows are the same, or where all columns are so.
    """
    few = {name for name, n in moved.items() if 0 < n < least}
    many_values = {name for name in moved if np.count_nonzero(own[name]) >= _PLACES // 2}
    if few & many_values or not many_values:
        return bool(few) and (bool(many_values) or max(moved.values()) < least)
    return bool(few) and any(moved[name] == 0 for name in many_values)


def _columns(job: JobParameters, data: Dataset) -> dict[str, Callable[[], Sketch]]:
    """Return by the table's own names how to get the sketches of features and labels."""
    renamed = {new: old for old, new in job.columns.rename}
    features = zip(data.schema.features, data.columns.readers, strict=True)
    found: dict[str, Callable[[], Sketch]] = {
        renamed.get(one.name, one.name): lambda one=one, read=read: _sketch(  # type: ignore[misc]
            read(), one.categories or ()
        )
        for one, read in sorted(features, key=lambda pair: pair[0].name)[:_MOST_COLUMNS]
    }
    if data.y is not None:
        labels, classes = data.y.reshape(data.n_samples, -1), data.schema.classes
        names = (data.schema.label, *data.schema.more_labels)
        for k in range(labels.shape[1]):
            name = names[k] if k < len(names) else f"{names[0]}, {k + 1}"
            found[name] = partial(_sketch, labels[:, k], classes)
    return found


def _sketch(values: NDArray[np.floating], names: tuple[str, ...]) -> Sketch:
    """Return the sketch of a column: of its numbers, or of the names that they are codes of."""
    numbers = np.asarray(values, np.float64) + 0.0  # -0.0 is 0.0
    missing = np.isnan(numbers)
    if names:
        digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
        table = np.frombuffer(b"".join(digests), "<u8")
        hashes = table[np.where(missing, 0, numbers).astype(np.intp)]
    else:
        hashes = numbers.view(np.uint64)
    hashes = mixed(np.where(missing, np.uint64(1), hashes))
    places = (hashes % np.uint64(2 * _PLACES)).astype(np.intp)
    counts = np.bincount(places, minlength=2 * _PLACES)
    return (counts[:_PLACES] - counts[_PLACES:]).astype(np.int32)


def _encoded(sketch: Sketch) -> str:
    return base64.b64encode(sketch.astype("<i4").tobytes()).decode()


def _decoded(text: str) -> Sketch:
    return np.frombuffer(base64.b64decode(text), "<i4")
