"""Which round of a job is the best so far, and when too many after it were no better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hedgerow.boosting import metrics


@dataclass(slots=True, kw_only=True)
class BestRound:
    """The best round by one score; rounds without a score are not noted."""

    best_round: int = -1
    """-1 without one."""
    best_score: float = math.nan
    """NaN without one."""

    def note(self, metric: str, round_: int, score: float, by: float = 0.0) -> bool:
        """Note a round's score; return whether it is the best, by more than ``by``."""
        found = metrics.better(metric, score, self.best_score, by)
        if found:
            self.best_round, self.best_score = round_, score
        return found

    def ends(self, round_: int, patience: int) -> bool:
        """Return whether ``patience`` rounds up to this one were no better; of 0 never."""
        return 0 < patience <= round_ - self.best_round
