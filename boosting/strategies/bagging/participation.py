"""Who takes part in a round of bagging, and with which learning rate.

All participants of a round fit the same residual, so their rates add up to the round's step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.streams import Purpose, xgboost_seed

LR_MODES = ("plain", "uniform", "rows", "gain", "total")
"""How rates are shared out; the parameter ``lr_mode`` describes each."""


def participants(
    rows: Mapping[Silo, int], round: int, *, seed: int, count: int = 0, cyclic: bool = False
) -> tuple[Silo, ...]:
    """Return a round's participants among the silos that are present and have rows, sorted.

    Parameters
    ----------
    rows : Mapping
        Rows of each silo that is present.
    seed : int
        Of the job; the draw depends on it, the round and who is present.
    count : int
        How many to draw; 0 for all.
    cyclic : bool
        One silo after the other instead.
    """
    present = sorted(silo for silo, n in rows.items() if n > 0)
    if cyclic:
        return (present[round % len(present)],) if present else ()
    if not 0 < count < len(present):
        return tuple(present)
    rng = np.random.default_rng(xgboost_seed(seed, 0, round, Purpose.PARTICIPANTS))
    return tuple(present[i] for i in sorted(rng.choice(len(present), count, replace=False)))


def rates(mode: str, eta: float, rows: Mapping[Silo, int]) -> dict[Silo, float]:
    """Return the learning rate that each participant trains with.

    Parameters
    ----------
    mode : str
        One of :data:`LR_MODES`; under ``gain`` the final rates are only known after training.
    eta : float
        Learning rate of the job; under ``total`` the step of the whole round.
    rows : Mapping
        Rows of each participant, positive.
    """
    if mode in ("plain", "gain"):
        return dict.fromkeys(rows, eta)
    if mode == "uniform":
        return dict.fromkeys(rows, eta / max(len(rows), 1))
    total = sum(rows.values())
    return {silo: eta * n / total for silo, n in rows.items()}


def factors(
    mode: str,
    planned: Mapping[Silo, float],
    eta: float,
    rows: Mapping[Silo, int],
    gains: Mapping[Silo, float],
) -> dict[Silo, float]:
    """Return what the leaf values of each silo's trees are multiplied by.

    Under ``gain`` it is the silo's share of the total gain (of the rows where nobody split).
    Otherwise it is 1, unless a participant was lost: then it turns the planned rate into that of
    the silos that are left.

    Parameters
    ----------
    planned : Mapping
        :func:`rates` of the planned participants.
    rows, gains : Mapping
        Rows and total split gains of the silos that offered trees.
    """
    if mode == "gain":
        weights = gains if sum(gains.values()) > 0 else rows
        total = sum(weights.values())
        return {silo: weight / total for silo, weight in weights.items()}
    if gains.keys() == planned.keys():
        return dict.fromkeys(gains, 1.0)
    fair = rates(mode, eta, rows)
    return {silo: fair[silo] / planned[silo] for silo in rows}
