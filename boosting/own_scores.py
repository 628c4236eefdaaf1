"""The file in which a silo keeps scores of its own rows; they leave only by its policy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from hedgerow.boosting.errors import DataError

LEAST_ROWS = 20
"""Rows of which scores may leave, at least: of fewer, they would tell single labels."""
OWN_SCORES = "own-scores.json"
"""One entry a scored model, in order: by data set, by metric."""

Scores = Mapping[str, Mapping[str, float]]


def kept_scores(found: Sequence[Scores]) -> bytes:
    """Return the file of scores; one that is not defined is null."""
    finite = [
        {
            data: {name: value if math.isfinite(value) else None for name, value in own.items()}
            for data, own in scores.items()
        }
        for scores in found
    ]
    return json.dumps(finite, indent=1).encode()


def read_scores(raw: bytes) -> list[dict[str, dict[str, float | None]]]:
    """Return what a silo has kept of scores.

    Raises
    ------
    DataError
        The file is another.
    """
    try:
        found = json.loads(raw)
        return [{data: dict(own.items()) for data, own in scores.items()} for scores in found]
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{OWN_SCORES} is not a file of scores") from error
