"""What both of our clients for Flower do with a round; runs in ``.venv-peers``."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost as xgb


def added_tree(
    parameters: dict[str, Any], own: xgb.DMatrix, received: bytes
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the tree that a silo adds to the common model, as bytes of XGBoost's JSON.

    Parameters
    ----------
    received : bytes
        The common model; empty before the first round.
    """
    booster = xgb.Booster(parameters, [own])
    if received:
        booster.load_model(bytearray(received))
    booster.update(own, booster.num_boosted_rounds())
    last = booster[booster.num_boosted_rounds() - 1 :]
    return np.frombuffer(last.save_raw("json"), dtype=np.uint8)
