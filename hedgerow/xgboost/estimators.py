"""XGBoost's estimators, which train by :func:`hedgerow.xgboost.train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xgboost

from hedgerow.xgboost.data import QuantileDMatrix
from hedgerow.xgboost.training import rebound, train

_OURS: dict[str, Any] = {"train": train, "QuantileDMatrix": QuantileDMatrix}


def _by_ours(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of XGBoost's that calls our functions where it calls XGBoost's."""
    return rebound(method, **_OURS)


class XGBModel(xgboost.XGBModel):  # type: ignore[misc]  # XGBoost is skipped
    """XGBoost's own, which trains in the context of the process."""

    _create_dmatrix = _by_ours(xgboost.XGBModel._create_dmatrix)
    fit = _by_ours(xgboost.XGBModel.fit)


class XGBClassifier(xgboost.XGBClassifier, XGBModel):  # type: ignore[misc]
    """XGBoost's own, which trains in the context of the process."""

    fit = _by_ours(xgboost.XGBClassifier.fit)


class XGBRegressor(xgboost.XGBRegressor, XGBModel):  # type: ignore[misc]
    """XGBoost's own, which trains in the context of the process."""


class XGBRanker(xgboost.XGBRanker, XGBModel):  # type: ignore[misc]
    """XGBoost's own, which trains in the context of the process."""

    fit = _by_ours(xgboost.XGBRanker.fit)


class XGBRFClassifier(xgboost.XGBRFClassifier, XGBClassifier):  # type: ignore[misc]
    """XGBoost's own, which trains in the context of the process."""


class XGBRFRegressor(xgboost.XGBRFRegressor, XGBRegressor):  # type: ignore[misc]
    """XGBoost's own, which trains in the context of the process."""
