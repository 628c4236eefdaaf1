"""Small tables with numbers and text, as columns by name."""

from __future__ import annotations

from typing import Any

import numpy as np


def people(n: int, seed: int, task: str = "binary") -> dict[str, Any]:
    """Return ages, sites, doses with gaps, and a label that depends on the first two."""
    rng = np.random.default_rng(seed)
    age = rng.normal(40.0, 10.0, n).round(1)
    site = rng.choice(["harbour", "hill", "mill", "moor"], n)
    dose = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    score = (age - 40.0) / 10.0 + (site == "hill") * 1.5 + 0.3 * rng.normal(size=n)
    labels: dict[str, Any] = {
        "binary": np.where(score > 0.3, "yes", "no"),
        "multiclass": np.array(["low", "mid", "top"])[np.digitize(score, [0.0, 1.0])],
        "regression": score,
    }
    return {"age": age, "site": site, "dose": dose, "label": labels[task]}
