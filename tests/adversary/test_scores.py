"""Labels read off scores: a model made up so that each row of a silo has a score of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.exchange import Discloses, ExchangeKey
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import Artefact, JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import MarginRows
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.results import leaving, told_once
from hedgerow.client_agent.state import StateFolder
from tests.federation.memory import MemoryLink, run_in_memory

N_ROWS = 20
METRICS = ("auc", "logloss")
SCHEMA = Schema((Feature("x"),), "label", Task.BINARY, 2)
JOB = JobParameters(
    "made-up",
    Bagging(rounds=1, scrub="none", leaf_bound=0, evaluate="silos"),
    metrics=METRICS,
    booster=Booster(max_depth=10, min_child_weight=0.0, max_bin=64),
)
NOTHING_OF_LABELS = {Discloses.NOTHING, Discloses.KEYS, Discloses.SCHEMA, Discloses.MASKED}


class Told(MemoryLink):
    """Keeps what silos offer."""

    offers: list[tuple[str, str, Discloses, Any]] = []  # noqa: RUF012

    def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
        type(self).offers.append((str(self.silo), step.name, step.discloses, offer))
        return super().exchange(step, at, offer)


def rows_of(y: np.ndarray[Any, Any], weight: np.ndarray[Any, Any] | None = None) -> Dataset:
    X = np.arange(N_ROWS, dtype=np.float32)[:, None]
    return Dataset(SCHEMA, X, y.astype(np.float32), weight)


def tables(labels: np.ndarray[Any, Any], n_silos: int) -> dict[str, Dataset]:
    """Return a liar's table, whose trees have a leaf for each row, the victim's, and others."""
    weight = np.linspace(1.0, 3.0, N_ROWS).astype(np.float32)
    found = {"liar": rows_of(np.arange(N_ROWS) % 2, weight), "victim": rows_of(labels)}
    others = np.random.default_rng(9)
    for k in range(n_silos - 2):
        found[f"other-{k}"] = rows_of(others.integers(0, 2, N_ROWS))
    return found


def offers_of(n_silos: int, policy: Policy) -> Any:
    Told.offers = []
    labels = np.random.default_rng(3).integers(0, 2, N_ROWS)
    outcome = run_in_memory(JOB, tables(labels, n_silos), make_link=Told, may_send=policy.classes)
    return labels, outcome, [one for one in Told.offers if one[0] == "victim"]


def test_the_metrics_additive_form_over_one_silos_rows_is_its_labels() -> None:
    """The attack, on what a silo computes and no longer sends."""
    labels, outcome, _ = offers_of(4, Policy())
    assert outcome.error is None, outcome.error
    model = load(outcome.artefact.files["model.ubj"])
    scored = MarginRows(rows_of(labels), model.slice(0), 1)
    scored.add(model)
    sums = metrics.sums(("auc",), labels.astype(float), scored.margins, objective=JOB.objective)
    assert sums.sum() == N_ROWS
    occupied = sums.reshape(2, -1).sum(axis=0)
    assert np.count_nonzero(occupied == 1) >= N_ROWS // 2, "a bin of its own for most rows"


def test_no_score_of_one_silo_leaves_in_clear_by_default() -> None:
    _, outcome, offers = offers_of(4, Policy())
    assert outcome.error is None, outcome.error
    assert "train" in outcome.rounds[-1].metrics, "the sum over all silos has its scores"
    told = {(step, discloses) for _, step, discloses, _ in offers}
    assert "scores-sum-masked" in {step for step, _ in told}
    assert {step for step, one in told if one not in NOTHING_OF_LABELS} == {"trees"}


def test_two_silos_send_no_score_by_default_and_by_their_policys_word_four_digits() -> None:
    _, outcome, offers = offers_of(2, Policy())
    assert outcome.error is not None
    assert Discloses.SCORES not in {discloses for _, _, discloses, _ in offers}
    _, outcome, offers = offers_of(2, Policy(may_send=("schema", "keys", "trees", "scores")))
    assert outcome.error is None, outcome.error
    (told,) = (offer for _, step, _, offer in offers if step == "scores")
    assert len(told.train) == len(METRICS), "one number a metric, whatever the model"
    assert told.train.tolist() == [float(f"{value:.4g}") for value in told.train]


@pytest.mark.parametrize("rules", [{}, {"may_send": ["scores"], "require_dp": True}])
def test_scores_of_own_test_rows_stay_in_the_silo_by_default(rules: dict[str, Any]) -> None:
    assert leaving(Policy(**rules), {"auc": 0.123456789, "rmse": 1234.56789}, 400) == {}


def test_scores_of_own_test_rows_leave_of_one_model_a_job(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    first, second = (Artefact({"model.ubj": raw}, "model.ubj") for raw in (b"one", b"two"))
    assert told_once(state, "1", first)
    state.close()
    again = StateFolder(tmp_path)
    assert told_once(again, "1", first)
    assert not told_once(again, "1", second)
    assert told_once(again, "2", second)
    again.close()


def test_scores_of_own_test_rows_leave_by_the_policys_word_in_four_digits_and_of_20_rows() -> None:
    said = Policy(may_send=(Discloses.SCORES,))
    scores = {"auc": 0.123456789, "rmse": 1234.56789, "logloss": float("nan")}
    assert leaving(said, scores, 20) == {"auc": 0.1235, "rmse": 1235.0}
    assert leaving(said, scores, 19) == {}
