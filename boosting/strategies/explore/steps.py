"""What the silos and the coordinator send each other, beside the sums; what each learns."""

from __future__ import annotations

from hedgerow.boosting.exchange import Call, Discloses, Receipt, Step
from hedgerow.boosting.sums.steps import PlainVector

REVEALS = (
    "Silos: sums over all silos, exactly: counts of rows by bin, category and class, also those "
    "below min_cell; sums, squares, third powers and products of columns; the power of two above "
    "a column's largest distance from its median; and the cut points that counts below proposed "
    "values led to. A silo that colludes with the coordinator shows it these. Coordinator and "
    "operator: the table that every silo derives from them, in which each count is of at least "
    "min_cell rows of all silos and to the nearest multiple of it, smaller ones are merged with "
    "their neighbours, columns that depend on each other may differ by a multiple that a few rows "
    "have passed, and means, "
    "deviations and correlations are rounded so that min_cell rows move none by more than a step, "
    "by which about that power of two of a column's largest distance can be told; "
    "how many numbers each sum has, which follows the values' spread; who takes part and when; "
    "row counts, column names and lists of categories and classes of each silo. That table leaves "
    "in clear: a policy's may_send must have counts."
)
"""What each party learns."""

LENGTH = Step(
    "length", Call.SUMS, PlainVector, Receipt, "how many numbers the next sum has",
    Discloses.NOTHING,
)  # fmt: skip
"""One number; 0 says that there is no further sum."""

RELEASE = Step(
    "release", Call.SUMS, PlainVector, Receipt,
    "sums over all silos without small counts, the same from every silo", Discloses.COUNTS,
)  # fmt: skip
