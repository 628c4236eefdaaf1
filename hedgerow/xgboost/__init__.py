"""XGBoost's Python API, whose ``train`` runs in every organisation of a federation at once.

>>> import hedgerow.xgboost as xgb
>>> with xgb.collective.simulate(silos=3):  # doctest: +SKIP
...     booster = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(X, y), 100)

Outside of a context of :mod:`hedgerow.xgboost.collective` every name is XGBoost's own, and
``train`` trains here. Inside, ``train`` and the estimators grow their trees by a ``histogram`` job
of all silos; what they return is a stock ``xgboost.Booster``. A parameter or an argument that such
a job cannot have is refused by name.
"""

from __future__ import annotations

import xgboost
from xgboost import (
    DataIter,
    DMatrix,
    build_info,
    config_context,
    get_config,
    plot_importance,
    plot_tree,
    set_config,
    to_graphviz,
)

from hedgerow.xgboost import callback, collective
from hedgerow.xgboost.data import QuantileDMatrix
from hedgerow.xgboost.data import SiteBooster as Booster
from hedgerow.xgboost.estimators import (
    XGBClassifier,
    XGBModel,
    XGBRanker,
    XGBRegressor,
    XGBRFClassifier,
    XGBRFRegressor,
)
from hedgerow.xgboost.training import cv, train

__version__ = xgboost.__version__
__all__ = [
    "Booster",
    "DMatrix",
    "DataIter",
    "QuantileDMatrix",
    "XGBClassifier",
    "XGBModel",
    "XGBRFClassifier",
    "XGBRFRegressor",
    "XGBRanker",
    "XGBRegressor",
    "build_info",
    "callback",
    "collective",
    "config_context",
    "cv",
    "get_config",
    "plot_importance",
    "plot_tree",
    "set_config",
    "to_graphviz",
    "train",
]

_REFUSED = {
    "ExtMemQuantileDMatrix": "each silo bins its rows in memory: use DMatrix or QuantileDMatrix",
    "RabitTracker": "the coordinator is in its place",
    "dask": "a silo's own cluster is a setting of its agent",
    "spark": "there is no estimator for Spark",
}


def __getattr__(name: str) -> object:
    """Say why a name of XGBoost is none here."""
    if name in _REFUSED:
        raise AttributeError(f"hedgerow.xgboost has no {name}, for {_REFUSED[name]}")
    raise AttributeError(f"module 'hedgerow.xgboost' has no attribute {name!r}")
