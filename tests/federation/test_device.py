"""``device`` of a job and of an agent: where it is refused, and that it reaches stock XGBoost."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

import hedgerow
import hedgerow.xgboost
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies import NAMES
from hedgerow.boosting.strategies.bagging import silo as bagging
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.fedxgbllr import silo as fedxgbllr
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.trees.local import booster_parameters, check_device
from hedgerow.client_agent.config import AgentSettings
from hedgerow.coordinator.operator.library.running import RunFailed
from hedgerow.services.process.settings import SettingsInvalid, load
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.sklearn import FederatedClassifier
from tests.federation.memory import run_in_memory
from tests.federation.stacking import silos

pytestmark = pytest.mark.skipif(
    xgb.build_info()["USE_CUDA"], reason="what XGBoost's build for CPUs is refused"
)
LOCAL = {"bagging": Bagging(rounds=2), "fedxgbllr": FedXGBllr(trees=6, combiner="mean")}
HALVES: dict[str, Any] = {"bagging": bagging.participate, "fedxgbllr": fedxgbllr.participate}
BUILD = "has the build of XGBoost for CPUs: install the wheel xgboost in place of xgboost-cpu"


def job(strategy: str, **booster: Any) -> JobParameters:
    return JobParameters("device", LOCAL[strategy], seed=5, booster=Booster(**booster))


@pytest.mark.parametrize("strategy", [name for name in NAMES if name not in LOCAL])
def test_strategies_whose_trees_are_not_stock_xgboosts_refuse_it(strategy: str) -> None:
    own = {"dp_tree": "epsilon = 1.0", "secureboost": 'active = "a"'}.get(strategy, "")
    text = (
        f'strategy = "{strategy}"\nmin_silos = 3\n[booster]\ndevice = "cuda"\n[{strategy}]\n{own}'
    )
    given = job_wire.decode(job_file.parse(text))
    with pytest.raises(InvalidJob, match=r"\[booster\] device: "):
        given.parameters.validate(given)


@pytest.mark.parametrize("strategy", LOCAL)
@pytest.mark.parametrize(
    ("booster", "says"),
    [
        ({"device": "cuda:1"}, "[booster] device: expected one of cpu, cuda"),
        (
            {"device": "cuda", "tree_method": "exact"},
            "tree_method: expected hist or approx",
        ),
    ],
)
def test_what_xgboost_has_not_is_refused(strategy: str, booster: Any, says: str) -> None:
    given = job(strategy, **booster)
    with pytest.raises(InvalidJob, match=re.escape(says)):
        given.parameters.validate(given)


@pytest.mark.parametrize("strategy", LOCAL)
@pytest.mark.parametrize(("own", "asked"), [("", "cuda"), ("cuda:1", "cuda:1")])
def test_it_reaches_stock_xgboost_and_a_machine_without_one_is_told(
    strategy: str, own: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = []
    made = xgb.Booster.__init__

    def noting(self: xgb.Booster, params: Any = None, *others: Any, **named: Any) -> None:
        reached.append((params or {}).get("device"))
        made(self, params, *others, **named)

    monkeypatch.setattr(xgb.Booster, "__init__", noting)
    outcome = run_in_memory(
        job(strategy, device="cpu" if own else "cuda"),
        silos(Task.BINARY, 3),
        participate_as=lambda parameters, link, vault, start: HALVES[strategy](
            parameters, link, vault, replace(start, device=own)
        ),
    )
    assert asked in reached
    assert len(outcome.errors) == 3
    for error in outcome.errors.values():
        assert isinstance(error, DataError)
        assert str(error) == f"device = '{asked}': XGBoost finds no such GPU on this machine"


def test_exact_trees_of_a_silo_with_a_gpu_grow_on_its_cpus() -> None:
    """XGBoost has no others, and a job that asks for them does not know of a silo's GPU."""
    for method, where in (("exact", None), ("hist", "cuda:1")):
        booster = Booster(tree_method=method)
        told = booster_parameters(booster, "binary:logistic", 1, 1, "cuda:1")
        assert told.get("device") == where


def test_an_agents_own_device_needs_the_wheel_and_no_cluster(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    text = 'coordinator = "c:1"\nidentity = "i"\nstate = "s"\n{}\n[data]\n'
    path.write_text(text.format('device = "cuda:1"'))
    assert load(AgentSettings, path).device == "cuda:1"
    path.write_text(text.format('device = "cuda"\ndask = "tcp://h:1"'))
    with pytest.raises(SettingsInvalid, match=r"dask.*expected none beside device"):
        load(AgentSettings, path)
    path.write_text(text.format('device = "gpu"'))
    with pytest.raises(SettingsInvalid, match="device"):
        load(AgentSettings, path)
    with pytest.raises(InvalidJob, match="trees of it grow on a Dask cluster"):
        check_device("cuda", "it", cluster=True)


def test_python_sklearn_and_scripts_refuse_it_before_a_row_is_read() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = (X[:, 0] > 0).astype(int)
    given = hedgerow.Job("bagging", rounds=2, min_silos=2, booster={"device": "cuda"})
    with pytest.raises(InvalidJob, match=f"device = 'cuda': this environment {BUILD}"):
        hedgerow.simulate(given, {"x": X[:, 0], "label": y}, 3)
    with pytest.raises(InvalidJob, match=f"device = 'cuda': this environment {BUILD}"):
        FederatedClassifier("bagging", rounds=2, device="cuda").fit(X, y)
    with (
        hedgerow.xgboost.collective.simulate(3),
        pytest.raises(InvalidJob, match="device = 'cuda': trees grow from sums"),
    ):
        hedgerow.xgboost.train({"device": "cuda"}, hedgerow.xgboost.DMatrix(X, y), 2)


@pytest.mark.process
def test_local_refuses_it_in_one_line(tmp_path: Path) -> None:
    given = hedgerow.Job("bagging", rounds=2, min_silos=2, booster={"device": "cuda"})
    tables = {name: tmp_path / f"{name}.csv" for name in ("a", "b")}
    for path in tables.values():
        path.write_text("x,label\n1,0\n2,1\n")
    with pytest.raises(RunFailed, match=f"^device = 'cuda': this environment {BUILD}"):
        hedgerow.local(given, tables, quiet=True)


@pytest.mark.process
def test_an_agent_with_a_gpu_in_its_settings_does_not_start_without_the_wheel(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        'coordinator = "c:1"\nidentity = "i"\nstate = "s"\ndevice = "cuda:1"\n[data]\npath = "t"\n'
    )
    call = subprocess.run(
        [sys.executable, "-m", "hedgerow.client_agent", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert call.returncode
    said = call.stderr + call.stdout
    assert f"device = 'cuda:1': this agent's environment {BUILD}" in said
    assert "Traceback" not in said
