"""Attacks on membership find what was planted, and nothing where there is nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score
from xgboost import DMatrix

import hedgerow
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.audit import audit, membership
from hedgerow.coordinator.operator.library.audit.subject import opened
from tests.coordinator.operator.library.tables import people

N = 120
SILOS = 3


def coins(seed: int) -> dict[str, Any]:
    """Return rows whose labels are coins: a model knows one of them by heart or not at all."""
    rng = np.random.default_rng(seed)
    features = {f"x{k}": rng.normal(size=N) for k in range(4)}
    return {**features, "label": np.where(rng.random(N) < 0.5, "yes", "no")}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    found = {}
    for k, name in enumerate([*(f"silo-{k}" for k in range(SILOS)), "test"]):
        found[name] = folder / f"{name}.parquet"
        pq.write_table(pa.table(coins(k)), found[name])
    return found


def trained(out: Path, tables: dict[str, Path], **more: Any) -> Path:
    job = hedgerow.Job(
        "bagging", rounds=8, max_depth=8, min_child_weight=0, eta=1.0, leaf_bound=0,
        evaluate="none", min_silos=SILOS, **more,
    )  # fmt: skip
    whole = pa.concat_tables(
        [
            pq.read_table(tables[f"silo-{k}"]).append_column("_site", pa.array([f"silo-{k}"] * N))
            for k in range(SILOS)
        ]
    )
    hedgerow.simulate(job, whole, scheme="column:_site", test=0.0, out=out, crypto=False)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, Path]) -> Path:
    return trained(tmp_path_factory.mktemp("run") / "run", tables)


def test_certainty_is_the_log_odds_of_the_own_label() -> None:
    margin = np.array([[0.3, -1.0, 2.0], [5.0, 0.0, 0.0]])
    y = np.array([2.0, 1.0])
    p = np.exp(margin) / np.exp(margin).sum(axis=1, keepdims=True)
    own = p[[0, 1], [2, 1]]
    found = membership.certainty(margin, y, "multi:softprob", Task.MULTICLASS)
    np.testing.assert_allclose(found, np.log(own / (1.0 - own)))
    binary = membership.certainty(np.array([2.0, 2.0]), np.array([1.0, 0.0]), "", Task.BINARY)
    assert binary.tolist() == [2.0, -2.0]
    numbers = membership.certainty(
        np.log([4.0, 4.0]), np.array([4.0, 6.0]), "count:poisson", Task.REGRESSION
    )
    np.testing.assert_allclose(numbers, [0.0, -2.0])


def test_an_attack_that_knows_nothing_is_a_guess_and_one_that_knows_all_is_certain() -> None:
    rng = np.random.default_rng(0)
    member = np.repeat([True, False], 1_000)
    blind = rng.normal(size=2_000)
    found = membership.told(blind, member, 0)
    assert found.auc.value == pytest.approx(roc_auc_score(member, blind))
    assert found.auc.low < 0.5 < found.auc.high
    assert found.caught.low <= membership.FALSE_ALARMS <= found.caught.high
    sure = membership.told(member + 0.1 * blind / np.abs(blind).max(), member, 0)
    assert (sure.auc.low, sure.auc.value, sure.caught.value) == (1.0, 1.0, 1.0)
    assert membership.told(np.zeros(2_000), member, 0).caught.value == 0.0  # ties are no catch


def test_the_likelihood_ratio_finds_what_only_hard_rows_give_away() -> None:
    """Rows differ by far more than membership moves them: a threshold of the loss is blind."""
    rng = np.random.default_rng(1)
    n, shadows = 2_000, 32
    member = np.repeat([True, False], n // 2)
    hard = rng.normal(scale=5.0, size=n)
    inside = np.array([rng.permutation(n) < n // 2 for _ in range(shadows)])
    seen = hard + 1.0 * inside + 0.5 * rng.normal(size=(shadows, n))
    certain = 3.0 + 2.0 * (hard + member + 0.5 * rng.normal(size=n))  # on another scale
    ratio = membership.likelihood_ratio(certain, np.array([seen, inside]), 1.0)
    assert membership.told(certain, member, 0).auc.high < 0.6
    assert membership.told(ratio, member, 0).auc.low > 0.85


@pytest.mark.process
def test_rows_known_by_heart_are_found_and_the_limit_does_not_hold(
    run: Path, tables: dict[str, Path]
) -> None:
    limits = run.parent / "limits.toml"
    limits.write_text("[audit]\nmembership_auc_max = 0.55\n")
    silos = [f"--silo=silo-{k}={tables[f'silo-{k}']}" for k in range(SILOS)]
    call = CliRunner().invoke(
        main, ["audit", str(run), *silos, f"--test={tables['test']}", f"--limits={limits}"]
    )
    assert call.exit_code == 1, call.output
    assert "membership_auc_max 0.55: does not hold" in call.output
    document = json.loads((run / "audit.json").read_text())
    own = [one for one in document["attacks"] if one["attack"] == "membership: own trees"]
    assert [one["silo"] for one in own] == [f"silo-{k}" for k in range(SILOS)]
    least = {name: min(one["measures"]["auc"]["low"] for one in document["attacks"]
                       if one["attack"] == f"membership: {name}")
             for name in ("loss threshold", "likelihood ratio", "own trees",
                          "loss threshold, model of the silo alone")}  # fmt: skip
    assert all(low > 0.6 for low in least.values()), least
    assert least["loss threshold, model of the silo alone"] > 0.75  # others' trees hide rows
    page = (run / "audit.html").read_text()
    assert "audit-attacks" in page
    assert "audit-limits" in page
    # What is written is no larger with more rows, and has none of a row's values.
    text = (run / "audit.json").read_text()
    assert not any(str(x) in text for x in coins(0)["x0"])


def test_a_memorised_row_stands_out(run: Path, tables: dict[str, Path]) -> None:
    """A row of silo-0 with a label against its neighbours is above all rows of strangers."""
    of = opened(run, {"silo-0": tables["silo-0"]}, tables["test"])
    share, trees = of.share("silo-0"), of.trees_of
    both = membership.joined(of.silos["silo-0"], of.test)
    own = of.added_by(trees["silo-0"], both) / share
    rest = sum(of.added_by(trees[name], both) for name in trees if name != "silo-0") / (1 - share)
    sure = [membership.certainty(m, both.labels, of.model.objective, Task.BINARY)
            for m in (own, rest)]  # fmt: skip
    score = sure[0] - sure[1]
    memorised = np.argmin(sure[1][:N])  # what others' trees say of it is most wrong
    assert score[memorised] > score[N:].max()


def test_the_trees_of_silos_add_up_to_the_model(run: Path, tables: dict[str, Path]) -> None:
    of = opened(run, {"silo-1": tables["silo-1"]}, tables["test"])
    margin = of.model.ensemble.base_margins(N) + sum(
        of.added_by(trees, of.test) for trees in of.trees_of.values()
    )
    np.testing.assert_allclose(margin, of.model.margins(of.test), atol=1e-5)
    assert {len(trees) for trees in of.trees_of.values()} == {8}


def test_a_model_of_all_rows_together_says_why_it_has_no_own_trees(
    tmp_path: Path, tables: dict[str, Path]
) -> None:
    whole = people(400, 3)
    job = hedgerow.Job("histogram", rounds=3, max_depth=3, min_silos=3)
    made = hedgerow.simulate(job, whole, 3, out=tmp_path / "run", crypto=False)
    parts = hedgerow.split(whole, 3, test=0.2, seed=0)
    document = made.audit({"silo-0": parts["silo-0"]}, parts["test"])
    (own,) = [one for one in document["attacks"] if one["attack"] == "membership: own trees"]
    assert not own["measures"]
    assert "of a histogram job are of the rows of all silos together" in own["note"]
    assert document["passed"]


def test_a_silo_of_one_row_and_a_model_without_splits_have_numbers(
    tmp_path: Path, tables: dict[str, Path]
) -> None:
    one = pq.read_table(tables["silo-0"]).slice(0, 1)
    flat = trained(tmp_path / "run", tables, gamma=1e9)
    found = hedgerow.Run(flat).audit({"silo-0": one}, tables["test"])
    values = [of["value"] for each in found["attacks"] for of in each["measures"].values()]
    assert np.isfinite(values).all()


def test_what_cannot_be_audited_is_refused_in_one_line(run: Path, tables: dict[str, Path]) -> None:
    silo = {"silo-0": tables["silo-0"]}
    with pytest.raises(FederationError, match=r"expected a silo of the run \(silo-0, .* 'north'"):
        audit(run, {"north": tables["silo-0"]}, tables["test"])
    none = pq.read_table(tables["test"]).slice(0, 0)
    with pytest.raises(FederationError, match="test: expected rows with labels, received none"):
        audit(run, silo, none)
    with pytest.raises(FederationError, match="expected the table of a silo at least"):
        audit(run, {}, tables["test"])
    for limits, said in (
        ({"membership": 0.5}, r"\[audit\] membership: expected one of membership_auc_max"),
        ({"membership_auc_max": 5}, "expected a number from 0 to 1, received 5"),
        ({"membership_auc_max": True}, "expected a number from 0 to 1, received True"),
        ({"membership_auc_max": "0.5"}, "expected a number from 0 to 1, received '0.5'"),
    ):
        with pytest.raises(FederationError, match=said):
            audit(run, silo, tables["test"], limits=limits)  # type: ignore[arg-type]


def test_an_audit_of_another_model_is_no_part_of_a_report(
    tmp_path: Path, tables: dict[str, Path]
) -> None:
    again = trained(tmp_path / "run", tables)
    document = hedgerow.Run(again).audit({"silo-0": tables["silo-0"]}, tables["test"])
    (again / "audit.json").write_text(json.dumps({**document, "model_sha256": "0" * 64}))
    with pytest.raises(FederationError, match=r"audit\.json is of another model: audit the run"):
        hedgerow.Run(again).report()


def test_rows_are_coded_as_the_model_has_them(run: Path, tables: dict[str, Path]) -> None:
    of = opened(run, {"silo-2": tables["silo-2"]}, tables["test"])
    rows = DMatrix(of.silos["silo-2"].X)
    expected = of.model.to_xgboost().predict(rows, output_margin=True, validate_features=False)
    np.testing.assert_allclose(of.model.margins(of.silos["silo-2"]), expected, rtol=1e-6)
