"""The script of docs/coming-from.md in three processes, over a real coordinator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hedgerow.xgboost as xgb
from tests.federation.processes import PATIENCE_SECONDS
from tests.federation.scripts import Scripts

pytestmark = [pytest.mark.process, pytest.mark.slow]

SILOS = ("north", "south", "west")
PAGE = Path(__file__).parents[2] / "docs/coming-from.md"
OURS, FROM_NVFLARE = (
    block.split("```")[0]
    for block in PAGE.read_text().split("```python\n")
    if "hedgerow.xgboost" in block
)


def rows_of(seed: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).normal(size=(150, 4)).astype(np.float32)
    return X, (X[:, 0] * X[:, 1] > 0).astype(np.float32)


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Scripts]:
    tables = {}
    for silo in SILOS:
        tables[silo] = tmp_path / f"{silo}.parquet"
        pq.write_table(pa.table({"label": [0, 1]}), tables[silo])  # the folder's own is not read
    made = Scripts(tmp_path, tables)
    made.start_coordinator()
    try:
        yield made
    finally:
        made.stop()


def started(fed: Scripts, script: str, silo: str) -> subprocess.Popen[str]:
    rank = SILOS.index(silo)
    place = fed.folder / f"at-{silo}"
    place.mkdir(exist_ok=True)
    X, y = rows_of(rank)
    np.savez(place / "rows.npz", X=X, y=y)
    names = [*"abcd", "label"]
    np.savetxt(
        place / "rows.csv", np.column_stack([X, y]), delimiter=",", header=",".join(names),
        comments="", fmt="%.9g",
    )  # fmt: skip
    own = (
        script.replace("coordinator.example:7443", fed.address)
        .replace("federated_rank=0", f"federated_rank={rank}")
        .replace('"north"', repr(str(fed.folder_of(silo))), 1)
    )
    return subprocess.Popen(
        [sys.executable, "-c", own], cwd=place, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PAGE.parents[1])},
    )  # fmt: skip


def said(fed: Scripts, scripts: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    """Return each script's exit code, and what it wrote."""
    running = {silo: started(fed, script, silo) for silo, script in scripts.items()}
    found = {silo: one.communicate(timeout=PATIENCE_SECONDS) for silo, one in running.items()}
    return {silo: (running[silo].returncode, *own) for silo, own in found.items()}


def test_the_script_of_the_page_trains_the_model_of_all_rows(fed: Scripts) -> None:
    found = said(fed, dict.fromkeys(SILOS, OURS))
    assert [own[0] for own in found.values()] == [0, 0, 0], found
    saved = xgb.Booster(model_file=fed.folder / "at-north/model.ubj")
    assert not (fed.folder / "at-west/model.ubj").exists()
    lines = found["north"][1].splitlines()
    assert found["south"][1] == found["west"][1] == ""
    assert len(lines) == 21
    assert "20 rounds: " in lines[-1]

    parts = [rows_of(rank) for rank in range(3)]
    whole = xgb.DMatrix(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    log: dict = {}
    with xgb.collective.simulate(1):
        param = {"objective": "binary:logistic", "max_depth": 3}
        alone = xgb.train(param, whole, 20, evals=[(whole, "train")], evals_result=log)
    assert saved.get_dump() == alone.get_dump()
    told = [float(line.rpartition(":")[2]) for line in lines[:-1]]
    assert told == pytest.approx(log["train"]["logloss"], abs=1e-5)


def test_the_script_that_nvflares_users_write_stops_where_pooled_training_does(
    fed: Scripts,
) -> None:
    found = said(fed, dict.fromkeys(SILOS, FROM_NVFLARE))
    assert [own[0] for own in found.values()] == [0, 0, 0], found
    saved = [(fed.folder / f"at-{silo}/model.ubj").read_bytes() for silo in SILOS]
    assert saved[0] == saved[1] == saved[2]
    parts = [rows_of(rank) for rank in range(3)]
    X, y = ([own[k] for own in parts] for k in (0, 1))
    train, valid = (
        xgb.DMatrix(*(np.concatenate([part[rows] for part in own]) for own in (X, y)),
                    feature_names=[*"abcd"])
        for rows in (slice(-30), slice(-30, None))
    )  # fmt: skip
    with xgb.collective.simulate(1):
        alone = xgb.train(
            {"objective": "binary:logistic", "max_depth": 3}, train, 20,
            evals=[(train, "train"), (valid, "eval")], early_stopping_rounds=3, verbose_eval=False,
        )  # fmt: skip
    booster = xgb.Booster(model_file=fed.folder / "at-north/model.ubj")
    assert booster.get_dump() == alone.get_dump()


def test_a_schedule_of_rates_is_in_the_job_that_all_sites_sign(fed: Scripts) -> None:
    def falling(rates: str) -> str:
        given = f"3, callbacks=[xgb.callback.LearningRateScheduler({rates})], evals"
        return OURS.replace("20, evals", given)

    function, values = falling("lambda r: 0.2 * 0.5**r"), falling("[0.2, 0.1, 0.05]")
    # Who wrote a list and who wrote a function of the same rates states the same job.
    found = said(fed, {"north": function, "south": values, "west": values})
    assert [own[0] for own in found.values()] == [0, 0, 0], found
    parts = [rows_of(rank) for rank in range(3)]
    whole = xgb.DMatrix(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    with xgb.collective.simulate(1):
        alone = xgb.train(
            {"objective": "binary:logistic", "max_depth": 3}, whole, 3, verbose_eval=False,
            callbacks=[xgb.callback.LearningRateScheduler([0.2, 0.1, 0.05])],
        )  # fmt: skip
        constant = xgb.train(
            {"objective": "binary:logistic", "max_depth": 3}, whole, 3, verbose_eval=False
        )
    saved = xgb.Booster(model_file=fed.folder / "at-north/model.ubj").get_dump()
    assert saved == alone.get_dump() != constant.get_dump()
    other = falling("[0.2, 0.15, 0.05]")
    for code, _, errors in said(fed, {"north": function, "south": values, "west": other}).values():
        assert code == 1
        assert "the scripts differ in histogram.etas" in errors
        assert "0.15" in errors


def test_training_goes_on_from_a_booster_that_all_sites_have(fed: Scripts) -> None:
    param = '"eta": 0.3, "tree_method": "hist"'
    drawn = OURS.replace(param, param + ', "subsample": 0.7, "seed": 5')
    twice = drawn.replace(
        'dtrain, 20, evals=[(dtrain, "train")])',
        """dtrain, 3)
    booster = xgb.train(param, dtrain, 4, xgb_model=booster)
    booster.save_model("mine.ubj")""",
    )
    scripts = dict.fromkeys(SILOS, twice)
    found = said(fed, scripts)
    assert [own[0] for own in found.values()] == [0, 0, 0], found
    saved = [xgb.Booster(model_file=fed.folder / f"at-{silo}/mine.ubj") for silo in SILOS]
    once = said(fed, dict.fromkeys(SILOS, drawn.replace("dtrain, 20, ", "dtrain, 7, ")))
    assert [own[0] for own in once.values()] == [0, 0, 0], once
    whole = xgb.Booster(model_file=fed.folder / "at-north/model.ubj")
    assert [one.get_dump() for one in saved] == [whole.get_dump()] * 3

    # A later script of the same sites goes on from its file; who has another is refused.
    later = drawn.replace(
        'dtrain, 20, evals=[(dtrain, "train")])', 'dtrain, 1, xgb_model="mine.ubj")'
    )
    found = said(fed, dict.fromkeys(SILOS, later))
    assert [own[0] for own in found.values()] == [0, 0, 0], found
    eighth = xgb.Booster(model_file=fed.folder / "at-north/model.ubj")
    assert eighth.num_boosted_rounds() == 8
    other = later.replace("mine.ubj", "model.ubj")
    (fed.folder / "at-west/model.ubj").write_bytes(whole.save_raw("ubj"))
    for code, _, errors in said(fed, {"north": later, "south": later, "west": other}).values():
        assert code == 1
        assert "the scripts differ in warm_start." in errors


def test_scripts_that_differ_and_what_one_site_cannot_decide_are_refused(fed: Scripts) -> None:
    other = OURS.replace('"max_depth": 3', '"max_depth": 4')
    found = said(fed, {"north": OURS, "south": OURS, "west": other})
    for code, _, errors in found.values():
        assert code == 1
        assert "the scripts differ in booster.max_depth: " in errors
    named = [OURS.replace('rows["y"])', f'rows["y"], feature_names={[*names]})')
             for names in ("abcd", "abcd", "bacd")]  # fmt: skip
    for code, _, errors in said(fed, dict(zip(SILOS, named, strict=True))).values():
        assert code == 1
        assert "the scripts differ in features: " in errors
    early = OURS.replace("20, evals", "20, early_stopping_rounds=3, maximize=True, evals")
    for code, _, errors in said(fed, dict.fromkeys(SILOS, early)).values():
        assert code == 1
        assert "logloss is better when it is lower" in errors


def test_rounds_are_scored_on_all_sites_validation_rows_which_end_the_job(fed: Scripts) -> None:
    script = OURS.replace(
        'evals=[(dtrain, "train")]',
        'evals=[(dtrain, "train"), (dtest, "test")], early_stopping_rounds=2, evals_result=log',
    )
    lines = script.splitlines(keepends=True)
    at = next(k for k, line in enumerate(lines) if "dtrain = " in line)
    lines[at] = (
        '    log, X, y = {}, rows["X"], rows["y"]\n'
        "    dtrain, dtest = xgb.DMatrix(X[:100], y[:100]), xgb.DMatrix(X[100:], y[100:])\n"
    )
    lines.append(
        "    import json; print(json.dumps((log, booster.best_iteration, booster.best_score)))\n"
    )
    found = said(fed, dict.fromkeys(SILOS, "".join(lines)))
    assert [own[0] for own in found.values()] == [0, 0, 0], found
    each = [own[1].splitlines()[-1] for own in found.values()]
    assert each == each[:1] * 3, "sites know the same"
    log, best, score = json.loads(each[0])

    parts = [rows_of(rank) for rank in range(3)]
    whole, test = (
        xgb.DMatrix(
            *(np.concatenate([own[part] for own in each]) for each in zip(*parts, strict=True))
        )
        for part in (slice(None, 100), slice(100, None))
    )
    expected: dict = {}
    with xgb.collective.simulate(1):
        param = {"objective": "binary:logistic", "max_depth": 3}
        alone = xgb.train(
            param, whole, 20, evals=[(whole, "train"), (test, "test")], evals_result=expected,
            early_stopping_rounds=2, verbose_eval=False,
        )  # fmt: skip
    assert best == alone.best_iteration
    assert score == pytest.approx(alone.best_score, abs=1e-5)
    for name in ("train", "test"):
        assert log[name]["logloss"] == pytest.approx(expected[name]["logloss"], abs=1e-5)
    saved = xgb.Booster(model_file=fed.folder / "at-north/model.ubj")
    assert saved.get_dump() == alone[: best + 1].get_dump(), "the model is that of the best round"


def test_a_job_ends_early_by_its_own_rule_in_all_scripts(fed: Scripts) -> None:
    script = OURS.replace(
        'hedgerow_identity="north",',
        'hedgerow_identity="north",\n    hedgerow_early_stopping_rounds=2,\n    hedgerow_tol=0.05,',
    )
    found = said(fed, dict.fromkeys(SILOS, script))
    assert [own[0] for own in found.values()] == [0, 0, 0], found
    n_rounds = len(found["north"][1].splitlines()) - 1
    assert 2 < n_rounds < 20
    saved = xgb.Booster(model_file=fed.folder / "at-north/model.ubj")
    assert 0 < saved.num_boosted_rounds() <= n_rounds - 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"dmlc_communicator": "rabit"}, "expected 'federated'"),
        ({"dmlc_communicator": "federated"}, "hedgerow_identity: expected"),
        (
            {"dmlc_communicator": "federated", "hedgerow_identity": "north",
             "federated_client_key_path": "key.pem"},
            "federated_client_key_path: keys and certificates are in",
        ),
        (
            {"dmlc_communicator": "federated", "hedgerow_identity": "north", "federated_port": 1},
            "federated_port: there is no such argument",
        ),
    ],
)  # fmt: skip
def test_arguments_of_a_context_are_refused_by_name(arguments: dict, why: str) -> None:
    with pytest.raises(xgb.collective.InvalidJob, match=why):
        xgb.collective.CommunicatorContext(**arguments)


def test_gradients_of_each_sites_script_give_the_trees_of_all_rows(fed: Scripts) -> None:
    obj = (
        "def mine(p, d):\n    q = 1 / (1 + np.exp(-p))\n    return q - d.get_label(), q * (1 - q)\n"
    )
    own = OURS.replace("20, evals", "3, obj=mine, evals")
    found = said(fed, dict.fromkeys(SILOS, f"import numpy as np\n{obj}{own}"))
    assert [one[0] for one in found.values()] == [0, 0, 0], found
    parts = [rows_of(rank) for rank in range(3)]
    whole = xgb.DMatrix(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    with xgb.collective.simulate(1):
        param = {"objective": "binary:logistic", "max_depth": 3, "base_score": 0.5}
        alone = xgb.train(param, whole, 3, verbose_eval=False)
    saved = xgb.Booster(model_file=fed.folder / "at-north/model.ubj")
    np.testing.assert_allclose(saved.predict(whole), alone.predict(whole), atol=1e-5)
    # Another function at one site, and one that fails there, whose words stay there.
    other = f"import numpy as np\n{obj.replace('q - d', 'd')}{own}".replace("d.get_label()", "-p")
    for code, _, errors in said(
        fed, {**dict.fromkeys(SILOS, f"import numpy as np\n{obj}{own}"), "west": other}
    ).values():
        assert code == 1
        assert "the scripts differ in histogram.gradients" in errors
        assert "mine" in errors
    failing = obj.replace("    q =", "    if len(p) > bound: raise ValueError('label 17')\n    q =")
    script = f"import numpy as np\nimport sys\nbound = BOUND\n{failing}{own}"
    scripts = {silo: script.replace("BOUND", "149" if silo == "west" else "150") for silo in SILOS}
    ended = said(fed, scripts)
    assert [one[0] for one in ended.values()] == [1, 1, 1]
    assert "ValueError: label 17" in ended["west"][2]
    assert "the script's function raised ValueError" in ended["north"][2]
    assert "label 17" not in ended["north"][2]


def test_scores_of_each_sites_script_are_means_and_folds_are_jobs(fed: Scripts) -> None:
    mine = "def mine(p, d):\n    return 'mine', float(np.mean((p > 0.5) != d.get_label()))\n"
    own = OURS.replace("20, evals", "2, custom_metric=mine, evals").replace(
        '"max_depth": 3', '"max_depth": 3, "eval_metric": "error"'
    )
    folds = (
        "    found = xgb.cv({'objective': 'binary:logistic', 'eval_metric': 'error'}, dtrain, 2,\n"
        "                   nfold=2, custom_metric=mine, as_pandas=False)\n"
        "    import json; print(json.dumps(found, default=float))\n"
    )
    found = said(fed, dict.fromkeys(SILOS, f"import numpy as np\n{mine}{own}{folds}"))
    assert [one[0] for one in found.values()] == [0, 0, 0], found
    lines = found["north"][1].splitlines()
    scores = [dict(re.findall(r"train-(\w+):(\S+)", line)) for line in lines[:2]]
    assert [one["mine"] for one in scores] == [one["error"] for one in scores]
    folded = {silo: json.loads(one[1].splitlines()[-1]) for silo, one in found.items()}
    assert folded["north"] == folded["south"] == folded["west"]
    assert folded["north"]["test-mine-mean"] == folded["north"]["test-error-mean"]
    assert 0 < folded["north"]["test-mine-mean"][-1] < 0.6
    # Another metric at one site is refused by name.
    other = f"import numpy as np\n{mine.replace('0.5', '0.4')}{own}{folds}"
    for code, _, errors in said(
        fed, {**dict.fromkeys(SILOS, f"import numpy as np\n{mine}{own}{folds}"), "west": other}
    ).values():
        assert code == 1
        assert "the scripts differ in metrics" in errors
