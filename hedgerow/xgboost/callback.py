"""XGBoost's callbacks; what prints or writes does so at the rank that it names."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Sequence
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


OF_ROUNDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "eta": ("eta", float), "learning_rate": ("eta", float),
    "multi_strategy": ("multi_strategy", str),
}  # fmt: skip
"""Parameters that rounds of a job may have of their own, by each of their names."""


def of_rounds(params: Any, value: Any = None) -> dict[str, Any]:
    """Return what ``set_param`` is given by first name; raises KeyError for another parameter."""
    given = {params: value} if isinstance(params, str) else dict(params)
    return {OF_ROUNDS[name][0]: OF_ROUNDS[name][1](one) for name, one in given.items()}


class _Rehearsal:
    """A booster that knows what its rounds have of their own alone."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def set_param(self, params: Any, value: Any = None) -> None:
        """Note parameters; raises KeyError for another one."""
        self.given |= of_rounds(params, value)


def given_by(callbacks: Sequence[TrainingCallback], rounds: int) -> list[dict[str, Any]]:
    """Return the parameters that callbacks set for each round by its number.

    Copies of callbacks that say ``set_param`` are called for all rounds before the first, without
    scores; nothing comes of one that looks at scores, or at anything else of a booster.
    """
    setting = [one for one in callbacks if _sets(one)]
    try:
        setting = copy.deepcopy(setting)
        booster, found = _Rehearsal(), list[dict[str, Any]]()
        with contextlib.redirect_stdout(None):
            for epoch in range(rounds if setting else 0):
                for one in setting:
                    one.before_iteration(booster, epoch, {})
                found.append(dict(booster.given))
                for one in setting:
                    one.after_iteration(booster, epoch, {})
    except Exception:
        if any(isinstance(one, LearningRateScheduler) for one in setting):
            raise
        return []
    return found if booster.given else []


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
