"""XGBoost's estimators, which train by :func:`hedgerow.xgboost.train`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

import xgboost

from hedgerow.xgboost.data import QuantileDMatrix
from hedgerow.xgboost.training import train

_OURS: dict[str, Any] = {"train": train, "QuantileDMatrix": QuantileDMatrix}


def _by_ours(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of XGBoost's that calls our functions where it calls XGBoost's."""
    own = inspect.unwrap(method)
    assert isinstance(own, FunctionType)
    assert set(own.__code__.co_names) & set(_OURS), f"{own.__qualname__} calls none of them"
    found = FunctionType(
        own.__code__, {**own.__globals__, **_OURS}, own.__name__, own.__defaults__, own.__closure__
    )
    found.__kwdefaults__ = own.__kwdefaults__
    return wraps(own)(found)


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
