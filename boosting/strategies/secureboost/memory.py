"""What a party holds of its rows in a vertical job, by formula."""

from __future__ import annotations

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.engine.sparse import MOST_LISTED
from hedgerow.boosting.ports import JobParameters, memory_of_table
from hedgerow.boosting.storage import MemoryNeed
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost

_LISTED_BYTES = 40
"""Of a value that is not its feature's usual one: in the table, in its bin, and as a copy of that
which is sent to the vault, with what finding a node's rows takes."""
_ROW_BYTES = 64


def memory(
    parameters: SecureBoost,
    job: JobParameters,
    schema: Schema,
    n_rows: int,
    n_threads: int,
    stored: float,
) -> MemoryNeed:
    """Return the bytes of a party's rows: those of a table, or of the values that it stores."""
    if stored > MOST_LISTED:
        return memory_of_table(parameters, job, schema, n_rows, n_threads, stored)
    n_outputs = max(schema.n_outputs, job.classes, 1)
    listed = _LISTED_BYTES * stored * schema.n_features
    return MemoryNeed(int(n_rows * (listed + _ROW_BYTES * n_outputs)))
