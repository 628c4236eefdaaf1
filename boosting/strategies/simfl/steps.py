"""What SimFL's silos and coordinator exchange beside trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.exchange import Call, Discloses, Silo, Step
from hedgerow.boosting.payloads import Elements, Float32s

REVEALS = (
    "All parties learn the hashes of every row of every silo: roundings of public random "
    "projections. A row can be estimated from them, the better the more hashes there are and the "
    "smaller their width; anyone with a person's values finds that person's row, and equal rows of "
    "two silos are seen to be equal. They learn the least and largest values of columns (the "
    "coordinator each silo's, the silos those over all silos), row counts, and all trees, without "
    "covers and gains: thresholds are values of the silo that grew the tree. In every round the "
    "coordinator learns, of every silo but the one whose turn it is, sums of gradients over the "
    "rows that are similar to one row of that silo; many are of a single row, and give its label. "
    "The silo whose turn it is learns the totals over the other silos: among two silos those of "
    "the other one. Who colludes with the coordinator learns all of it. The mean label of a "
    "regression is summed securely among three silos or more; otherwise the coordinator learns "
    "each silo's label sum. Nothing else is masked and nothing is noised. Model files contain the "
    "united category lists of the schema that all agreed on."
)
"""What each party learns beyond the result."""

Int64Table = Annotated[NDArray[np.int64], Elements("<i8", 2)]


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRanges:
    """Least and largest value of each numeric feature, of one silo or of all."""

    low: Float32s
    high: Float32s
    """Of shape (n_features,), float32. ``low`` and ``high``: ``low`` above ``high`` where there is
    no value, and for a categorical feature."""


@dataclass(frozen=True, slots=True, eq=False)
class RowHashes:
    """Hashes of a silo's rows."""

    silo: Silo
    values: Int64Table
    """Of shape (n_samples, n_hashes), int64."""


@dataclass(frozen=True, slots=True, eq=False)
class OtherHashes:
    """Hashes of all rows but the receiver's, by silo in sorted order."""

    silos: tuple[RowHashes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GradientSums:
    """Gradients and hessians of similar rows, added up by row of the silo whose turn it is."""

    gradients: Float32s
    hessians: Float32s
    """Of shape (n_samples * n_outputs,), float32. ``gradients`` and ``hessians``: row by row; empty
    from and to silos that have none."""


RANGES = Step(
    "ranges", Call.SKETCHES, FeatureRanges, FeatureRanges,
    "least and largest value of each column", Discloses.QUANTILES,
)  # fmt: skip
HASHES = Step(
    "hashes", Call.SKETCHES, RowHashes, OtherHashes,
    "to all silos: hashes of each row, from which its values can be estimated", Discloses.HASHES,
)  # fmt: skip
GRADIENTS = Step(
    "gradients", Call.GRADIENTS, GradientSums, GradientSums,
    "to the coordinator: gradients, added up over few rows or of one row, from which labels follow",
    Discloses.COUNTS,
)  # fmt: skip
