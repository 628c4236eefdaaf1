"""Explainable boosting machines of InterpretML, in an environment that has ``interpret-core``.

``python benchmarks/_interpret.py FOLDER``, where ``FOLDER`` has ``train.parquet``,
``test.parquet`` and ``domain.json``: the ranges and categories of ``[columns]``, ``seed``,
``epsilon`` and ``delta``. Prints the test AUC. Without epsilon the machine has no pairs: one curve
a feature, 14 bags, otherwise its defaults. With it, it is told the same domain as the job, and its
types; all else is its default.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
from interpret.glassbox import ExplainableBoostingClassifier
from interpret.privacy import DPExplainableBoostingClassifier
from sklearn.metrics import roc_auc_score


def main() -> None:
    """Train, and print the AUC."""
    folder = Path(sys.argv[1])
    given = json.loads((folder / "domain.json").read_text())
    levels, ranges = given["levels"], given["ranges"]
    frames = [pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "test")]
    X = [frame[[*ranges, *levels]].astype(dict.fromkeys(levels, object)) for frame in frames]
    X = [x.fillna(dict.fromkeys(levels, "?")) for x in X]
    about = {"feature_types": ["continuous"] * len(ranges) + ["nominal"] * len(levels)}
    about |= {"random_state": given["seed"], "n_jobs": 1}
    if given["epsilon"] is None:
        machine = ExplainableBoostingClassifier(interactions=0, **about)
    else:
        bounds = {name: tuple(ends) for name, ends in ranges.items()}
        budget = {"epsilon": given["epsilon"], "delta": given["delta"]}
        machine = DPExplainableBoostingClassifier(privacy_bounds=bounds, **budget, **about)
    machine.fit(X[0], frames[0]["label"])
    print(roc_auc_score(frames[1]["label"], machine.predict_proba(X[1])[:, 1]))


if __name__ == "__main__":
    main()
