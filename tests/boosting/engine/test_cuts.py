"""Cut points: built from thresholds, checked."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.engine.cuts import FENCE, Cuts, cuts_from_thresholds
from hedgerow.boosting.engine.summaries import merge_summaries, summarise
from hedgerow.boosting.errors import DataError


def test_silos_without_values_give_a_single_bin() -> None:
    schema = Schema((Feature("f"),), "y", Task.REGRESSION, 0)
    nothing = summarise(np.array([np.nan], np.float32), 8)
    cuts = cuts_from_thresholds(schema, [merge_summaries([nothing], 8)])
    assert cuts.values.tolist() == [FENCE]


def test_cuts_that_do_not_increase_are_refused() -> None:
    with pytest.raises(DataError, match="increasing"):
        Cuts(
            np.array([1.0, 1.0], np.float32),
            np.array([0, 2]),
            np.array([False]),
            np.array([-FENCE], np.float32),
        )


@pytest.mark.parametrize("n_columns", [0, 2])
def test_thresholds_are_of_each_numeric_feature(n_columns: int) -> None:
    schema = Schema((Feature("f"), Feature("c", ("a", "b"))), "y", Task.REGRESSION, 0)
    assert cuts_from_thresholds(schema, [np.ones(1, np.float32)]).n_bins.tolist() == [2, 2]
    with pytest.raises(DataError, match="thresholds"):
        cuts_from_thresholds(schema, [np.ones(1, np.float32)] * n_columns)
