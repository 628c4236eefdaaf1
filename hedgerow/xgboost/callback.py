"""XGBoost's callbacks; what prints or writes does so at the rank that it names."""

from __future__ import annotations

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
