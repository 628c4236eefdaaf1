"""Models of one XGBoost and their scores, for another one.

``python -m tests.boosting.trees.exchanged write|read FOLDER`` runs in environments of other
versions of Python and XGBoost, too.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import xgboost as xgb

from hedgerow.boosting.trees.loading import load

KINDS = {
    "numbers": {"objective": "binary:logistic"},
    "regression": {"objective": "reg:absoluteerror", "max_cat_to_onehot": 1},
    "positive": {"objective": "reg:tweedie"},
    "classes": {"objective": "multi:softprob", "num_class": 3},
    "forest": {"objective": "binary:logistic", "num_parallel_tree": 3, "subsample": 0.5},
    "dropped": {"objective": "binary:logistic", "booster": "dart", "rate_drop": 0.5},
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return rows of numbers and codes, with gaps, and labels that suit all objectives."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(400, 5)).astype(np.float32)
    X[:, 3] = rng.integers(0, 3, 400)
    X[:, 4] = rng.integers(0, 12, 400)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, rng.integers(0, 2, 400) + (np.nan_to_num(X[:, 0]) > 0)


def matrix(kind: str) -> xgb.DMatrix:
    X, y = rows()
    types = ["q", "q", "q", *("qq" if kind == "numbers" else "cc")]
    labels = y if kind in ("regression", "positive", "classes") else y > 0
    return xgb.DMatrix(X, labels, feature_types=types, enable_categorical=True, nthread=1)


def write(folder: Path) -> None:
    """Train a model of each kind, and store it as XGBoost's and as Hedgerow's file."""
    (folder / "version").write_text(xgb.__version__)
    for kind, parameters in KINDS.items():
        data = matrix(kind)
        booster = xgb.train({**parameters, "nthread": 1, "seed": 3, "max_depth": 4}, data, 6)
        raw = bytes(booster.save_raw("ubj"))
        (folder / f"{kind}.ubj").write_bytes(raw)
        booster.save_model(folder / f"{kind}.json")
        load(raw).booster().save_model(folder / f"{kind}.own.ubj")
        np.save(folder / f"{kind}.npy", booster.predict(data, output_margin=True))


def minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def read(folder: Path) -> None:
    """Score all files by XGBoost and by Hedgerow.

    An XGBoost before the one that wrote a file overlooks weights of trees, Hedgerow does not.
    """
    older = minor(xgb.__version__) < minor((folder / "version").read_text())
    for kind in KINDS:
        data, expected = matrix(kind), np.load(folder / f"{kind}.npy")
        for file in (f"{kind}.ubj", f"{kind}.json", f"{kind}.own.ubj"):
            theirs = xgb.Booster(model_file=folder / file)
            ours = load((folder / file).read_bytes()).booster()
            for name, booster in (("XGBoost", theirs), ("Hedgerow", ours)):
                found = booster.predict(data, output_margin=True, validate_features=False)
                same = np.allclose(found, expected, rtol=1e-5, atol=1e-6)
                lost = older and kind == "dropped" and booster is theirs and ".own" not in file
                assert same == (not lost), f"{name} {xgb.__version__}: {file}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
