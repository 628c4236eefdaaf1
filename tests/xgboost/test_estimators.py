"""Estimators in a process of their own: the tests import XGBoost without scikit-learn."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

SCRIPT = """
import numpy as np, xgboost
import hedgerow.xgboost as xgb

X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
z = X[:, 0] + X[:, 1]
for estimator, y, shape in (
    (xgb.XGBRegressor, z, None),
    (xgb.XGBClassifier, (z > 0).astype(int), (300, 2)),
    (xgb.XGBClassifier, np.digitize(z, [-1, 1]), (300, 3)),
):
    found = []
    for silos in (1, 3):
        with xgb.collective.simulate(silos):
            one = estimator(n_estimators=4, max_depth=3, random_state=1)
            assert isinstance(one, xgb.XGBModel) and isinstance(one, xgboost.XGBModel)
            one.fit(X, y, eval_set=[(X, y), (X[:50], y[:50])], verbose=False)
        found.append(one.get_booster().save_raw("json"))
        ((name, told),) = one.evals_result()["validation_1"].items()
        assert len(told) == 4
        scored = one.get_booster().eval(xgb.DMatrix(X[:50], y[:50])).rpartition(":")[2]
        assert abs(told[-1] - float(scored)) < 1e-5, (name, told, scored)
    assert found[0] == found[1]
    with xgb.collective.simulate():
        more = estimator(n_estimators=2, max_depth=3).fit(X, y)
        two = more.get_booster().get_dump()
        more.fit(X, y, xgb_model=more)
        assert more.get_booster().get_dump()[: len(two)] == two
        assert more.get_booster().num_boosted_rounds() == 4
        pooled = {k: v for k, v in one.get_xgb_params().items() if k != "num_class"}
        if shape and shape[1] > 2:
            pooled["num_class"] = shape[1]
        assert xgb.train(pooled, xgb.DMatrix(X, y), 4).get_dump() == one.get_booster().get_dump()
    assert one.score(X, y) > 0.6, one.score(X, y)
    if shape:
        chances = one.predict_proba(X)
        assert chances.shape == shape
        assert (one.predict(X) == chances.argmax(1)).all()
        assert one.classes_.tolist() == [*range(shape[1])]

with xgb.collective.simulate():
    forest = xgb.XGBRFRegressor(n_estimators=5, max_depth=4, random_state=1).fit(X, z)
    model = forest.get_booster()
    assert (model.num_boosted_rounds(), len(model.get_dump())) == (1, 5)
    assert len({*model.get_dump()}) == 5
    assert forest.score(X, z) > 0.5
    classes = xgb.XGBRFClassifier(n_estimators=3, max_depth=3).fit(X, np.digitize(z, [-1, 1]))
    assert len(classes.get_booster().get_dump()) == 9
    assert (classes.predict(X) == np.digitize(z, [-1, 1])).mean() > 0.6

grade, query = np.digitize(z, [-1, 0, 1]), np.arange(300) // 10
with xgb.collective.simulate():
    ranker = xgb.XGBRanker(n_estimators=5, max_depth=3)
    ranker.fit(X, grade, qid=query, eval_set=[(X, grade)], eval_qid=[query], verbose=False)
told = ranker.evals_result()["validation_0"]["ndcg@32"]
rows = xgboost.DMatrix(X, grade, qid=query)
alone = xgboost.XGBRanker(n_estimators=5, max_depth=3).fit(X, grade, qid=query)
for one, score in ((ranker, told[-1]), (alone, told[-1])):
    assert abs(float(one.get_booster().eval(rows).rpartition(":")[2]) - score) < 0.02
assert told[-1] > told[0]

words = np.array(["ash", "elm"])[(z > 0).astype(int)]
for module in (xgb, xgboost):
    try:
        with xgb.collective.simulate():
            module.XGBClassifier(n_estimators=1).fit(X, words)
        raise AssertionError("text was taken")
    except ValueError as error:
        assert "Invalid classes inferred" in str(error)
try:
    with xgb.collective.simulate():
        xgb.XGBRegressor(n_estimators=1, data_split_mode="col").fit(X, z)
    raise AssertionError("columns were taken for rows")
except ValueError as error:
    assert "hedgerow.Job('secureboost')" in str(error)
print("held")
"""


def test_estimators_train_in_a_context_as_train_does() -> None:
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr
