"""What a first job would otherwise import and compile while silos' leases run."""

from __future__ import annotations

import importlib

import numpy as np

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import strategy_of
from hedgerow.boosting.strategies import NAMES


def warm_up() -> None:
    """Import all strategies and XGBoost, and load or compile the kernels of coordinator halves.

    Takes seconds, minutes where no compiled kernels are kept, in which other threads hardly run.
    """
    for name in NAMES:
        strategy_of(name)
    importlib.import_module("xgboost")
    cuts = importlib.import_module("hedgerow.boosting.engine.cuts")
    histogram = importlib.import_module("hedgerow.boosting.engine.histogram")
    splitting = importlib.import_module("hedgerow.boosting.engine.splitting")
    schema = Schema((Feature("x"),), "y", Task.BINARY, 2)
    one = cuts.cuts_from_thresholds(schema, [np.zeros(1, np.float32)])
    parameters = splitting.TreeParameters.of(Booster(), 1)
    scale = splitting.Scale(1.0, 1.0)
    sums = np.ones((1, 2), np.int64)
    histograms = np.ones((1, 2, 2), np.int64)
    splitting.find_splits(histograms, sums, histogram.layout_of(one), one, parameters, scale)
    splitting.node_weights(sums, parameters, scale)
