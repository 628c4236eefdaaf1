"""XGBoost's callbacks; what prints or writes does so at the rank that it names."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Sequence
from typing import Any

from xgboost import callback
from xgboost.callback import (
    CallbackContainer,
    EarlyStopping,
    LearningRateScheduler,
    TrainingCallback,
)

from hedgerow.xgboost import collective

__all__ = [
    "CallbackContainer",
    "EarlyStopping",
    "EvaluationMonitor",
    "LearningRateScheduler",
    "TrainingCallback",
    "TrainingCheckPoint",
]
TrainingCheckPoint = callback.TrainingCheckPoint


RATES = ("eta", "learning_rate")


class _Rehearsal:
    """A booster that knows its rate alone."""

    rate: float | None = None

    def set_param(self, params: Any, value: Any = None) -> None:
        """Note a rate; raises KeyError for another parameter."""
        given = {params: value} if isinstance(params, str) else dict(params)
        for name, one in given.items():
            if name not in RATES:
                raise KeyError(name)
            self.rate = float(one)


def rates_of(callbacks: Sequence[TrainingCallback], rounds: int) -> list[float | None]:
    """Return the rate that callbacks set for each round by its number; None where they set none.

    Copies of callbacks that say ``set_param`` are called for all rounds before the first, without
    scores; nothing comes of one that looks at scores, or at anything else of a booster.
    """
    setting = [one for one in callbacks if _sets(one)]
    try:
        setting = copy.deepcopy(setting)
        booster, found = _Rehearsal(), list[float | None]()
        with contextlib.redirect_stdout(None):
            for epoch in range(rounds if setting else 0):
                for one in setting:
                    one.before_iteration(booster, epoch, {})
                found.append(booster.rate)
                for one in setting:
                    one.after_iteration(booster, epoch, {})
    except Exception:
        if any(isinstance(one, LearningRateScheduler) for one in setting):
            raise
        return []
    return found if booster.rate is not None else []


def _sets(one: TrainingCallback) -> bool:
    own = (getattr(type(one), name) for name in ("before_iteration", "after_iteration"))
    return any("set_param" in inspect.unwrap(method).__code__.co_names for method in own)


class EvaluationMonitor(callback.EvaluationMonitor):  # type: ignore[misc]  # XGBoost is skipped
    """XGBoost's own, for which the rank is that of the site in the federation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("logger", collective.communicator_print)
        super().__init__(*args, **kwargs)

    @property
    def printer_rank(self) -> int:
        """XGBoost's rank of this process, 0, where this site is to print."""
        return 0 if self._rank == collective.get_rank() else -1

    @printer_rank.setter
    def printer_rank(self, rank: int) -> None:
        self._rank = rank
