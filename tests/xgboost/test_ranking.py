"""Rankings by ``hedgerow.xgboost``: ``qid`` and ``group`` of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xgboost

import hedgerow.xgboost as xgb
from hedgerow.boosting.errors import InvalidJob

RNG = np.random.default_rng(0)
N = 720
X = RNG.normal(size=(N, 4)).astype(np.float32).round(1)
GRADE = np.digitize(X[:, 0] + 0.3 * RNG.normal(size=N), [0, 1])
QUERY = np.sort(RNG.integers(0, 60, N))
PARAMETERS = {"objective": "rank:ndcg", "max_depth": 3, "base_score": 0.0}


def matrix(**more: Any) -> xgboost.DMatrix:
    return xgb.DMatrix(X, GRADE, **({"qid": QUERY} | more))


@pytest.mark.parametrize("objective", ["rank:ndcg", "rank:pairwise"])
@pytest.mark.parametrize("silos", [1, 3])
def test_a_script_that_ranks_gives_xgboosts_trees(silos: int, objective: str) -> None:
    told = PARAMETERS | {"objective": objective, "lambdarank_num_pair_per_sample": 6}
    log: dict[str, Any] = {}
    with xgb.collective.simulate(silos, hedgerow_min_cell=1):
        rows = matrix()
        ours = xgb.train(
            told, rows, 4, evals=[(rows, "train")], evals_result=log, verbose_eval=False
        )
    stock: dict[str, Any] = {}
    rows = matrix()
    theirs = xgboost.train(
        told, rows, 4, evals=[(rows, "train")], evals_result=stock, verbose_eval=False
    )
    assert [*log["train"]] == [*stock["train"]] == ["ndcg@6"]
    assert log["train"]["ndcg@6"] == pytest.approx(stock["train"]["ndcg@6"], abs=0.02)
    own = float(ours.eval(rows).rsplit(":", 1)[1])
    assert own == pytest.approx(log["train"]["ndcg@6"][-1], abs=1e-6)
    splits = ours.trees_to_dataframe().query("Tree == 0").Feature.tolist()
    assert splits == theirs.trees_to_dataframe().query("Tree == 0").Feature.tolist()


def test_queries_by_size_are_those_by_name() -> None:
    found = set()
    sizes = np.unique(QUERY, return_counts=True)[1]
    with xgb.collective.simulate(3, hedgerow_min_cell=1):
        for rows in (
            matrix(), matrix(qid=QUERY * 3 + 1), xgb.DMatrix(X, GRADE, group=sizes),
            xgb.QuantileDMatrix(X, GRADE, qid=QUERY),
        ):  # fmt: skip
            found.add(bytes(xgb.train(PARAMETERS, rows, 2).save_raw()))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("told", "more", "said"),
    [
        ({}, {"qid": None}, "dtrain: expected group or qid of rows that are ranked"),
        ({"objective": "reg:squarederror"}, {}, "group, qid: objectives that rank have them"),
        ({}, {"weight": np.ones(len(np.unique(QUERY)))}, "weight: queries of a ranking count"),
        ({"lambdarank_pair_method": "mean"}, {}, "lambdarank_pair_method = 'mean': pairs are"),
        ({"lambdarank_normalization": False}, {}, "it bounds gradients, which secure sums need"),
        ({"lambdarank_unbiased": True}, {}, "lambdarank_unbiased = True: places of clicks"),
        ({"ndcg_exp_gain": False}, {}, "ndcg_exp_gain = False: gains are 2 to the label"),
    ],
)
def test_what_a_federation_cannot_rank_is_refused_by_name(
    told: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with (
        xgb.collective.simulate(3, hedgerow_min_cell=1),
        pytest.raises(InvalidJob, match=said),
    ):
        xgb.train(PARAMETERS | told, matrix(**more), 2)
