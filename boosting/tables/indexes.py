"""What pandas keeps of a frame's index: rows' names, which are no column of the table."""

from __future__ import annotations

import json
from typing import Any

ID = "_id"
"""An index of this name identifies rows, as a column of it does."""
_KEY = b"pandas"


def without_index(schema: Any) -> Any:
    """Return an Arrow schema without the columns that are a pandas index, but one named ``_id``.

    pandas writes an index beside the columns, named or as ``__index_level_0__``, wherever it is not
    a mere count, and says so in the schema's metadata only.
    """
    import pyarrow as pa

    kept = dict(schema.metadata or {})
    try:
        about = json.loads(kept.pop(_KEY, b"{}")).get("index_columns") or []
        index = {name for name in about if isinstance(name, str) and name != ID}
    except (ValueError, AttributeError, TypeError):
        return schema
    if not index:
        return schema
    return pa.schema([field for field in schema if field.name not in index], kept)


def columns_without_index(table: Any) -> Any:
    """Return an Arrow table without its pandas index, see :func:`without_index`."""
    schema = without_index(table.schema)
    if schema is table.schema:
        return table
    names = set(schema.names)
    kept = [k for k, name in enumerate(table.column_names) if name in names]
    return table.select(kept).replace_schema_metadata(schema.metadata)
