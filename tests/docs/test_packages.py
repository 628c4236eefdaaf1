"""What the page on packages shows works once its entry points are installed."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.datastructures import Headers

import hedgerow
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError, InvalidJob, PolicyDeclined, Unauthorised
from hedgerow.boosting.metrics import names
from hedgerow.boosting.tables import read_table
from hedgerow.client_agent.config import Source
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.sources import load, look
from hedgerow.coordinator.operator.console.guard import AUTHENTICATORS, Authenticator, Guard, SignOn
from hedgerow.services.rpc.http import ADMIT
from tests import plugin

MORE = """
ROWS["mixed"] = {}


class Mixed:
    schema = pa.schema({"x": pa.float64()})

    def __iter__(self):
        return iter(pa.table({"y": ["Smith"]}).to_batches())


LAKE = TableSource(lambda at: Mixed() if at.path.endswith("mixed") else read(at))
ROWS |= {name: {"x": [*range(60)], "label": [2.0 * k for k in range(60)]} for name in "abc"}
"""
"""Tables of three silos."""
JOB = """
name = "packages"
strategy = "bagging"
task = "regression"
label = "label"
min_silos = 3
metrics = ["acme-smape", "rmse"]

[bagging]
rounds = 1
"""
PAGE = (Path(__file__).resolve().parents[2] / "docs/packages.md").read_text()


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Install the page's package for this module's tests."""
    folder, before = tmp_path_factory.mktemp("acme"), list(sys.path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "acme_hedgerow.py").write_text("\n".join([*blocks, MORE]))
    found = re.findall(r'entry-points\."(.*)"\]\n(\S+) = "(.*)"', PAGE)
    assert len(found) == 3
    for group, name, value in found:
        plugin.entry(folder, name, name, value, group)
    plugin.entry(folder, "acme-broken", "acme-broken", "acme_hedgerow:ROWS", "hedgerow.metrics")
    yield folder
    sys.path[:] = before
    plugin.registry._shipped.cache_clear()
    sys.modules.pop("acme_hedgerow", None)


def test_a_metric_of_a_package_is_summed_shown_and_scored() -> None:
    y, margin = np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 0.0])
    asked = ("acme-smape",)
    metrics.check(asked, Task.REGRESSION)
    assert metrics.evaluate(asked, y, margin, objective="reg:squarederror") == {"acme-smape": 1.0}
    total = sum(
        metrics.sums(asked, y[part], margin[part], objective="reg:squarederror")
        for part in (slice(2), slice(2, 3))
    )
    assert metrics.combine(asked, total) == {"acme-smape": 1.0}  # type: ignore[arg-type]
    assert not metrics.higher_is_better("acme-smape")
    shown = {row.metric: row.meaning for row in names.described(Task.REGRESSION)}
    assert shown["acme-smape"] == "mean symmetric relative error"
    assert "acme_hedgerow:ROWS is no Metric" in shown["acme-broken"]


def test_a_metric_that_does_not_suit_or_is_not_there_is_refused_in_words() -> None:
    for name, told in (
        ("acme-smape", "does not suit a binary job"),
        ("acme-other", "it is of another package, which is not installed here"),
        ("acme-broken", "acme_hedgerow:ROWS is no Metric"),
    ):
        with pytest.raises(InvalidJob, match=told):
            metrics.check((name,), Task.BINARY)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda rows: {}[f"label {rows.y[0]}"], "failed: KeyError$"),
        (lambda rows: rows.y[:1], "expected a finite number of each of 3 rows, received others"),
        (lambda rows: rows.y * np.nan, "expected a finite number of each of 3 rows"),
        (lambda rows: "x", "failed: ValueError$"),
    ],
)
def test_a_packages_loss_that_fails_or_is_no_number_is_named_without_a_label(
    loss: Any, told: str
) -> None:
    metric = metrics.mean_loss([Task.REGRESSION], loss, "a mean")
    rows = metrics.scored_rows(np.ones(3), np.ones(3), "reg:squarederror", None, 0.0)
    with pytest.raises(DataError, match=f"metric 'a mean' of a package:? {told}"):
        metric.total(rows, 0.0)


def test_a_silo_computes_a_packages_metric_only_where_its_policy_names_it() -> None:
    with pytest.raises(PolicyDeclined, match="acme-smape is of another package"):
        Policy().check_packages("bagging", ("auc", "acme-smape"))
    Policy(metrics=("acme-smape",)).check_packages("bagging", ("poisson-nloglik", "acme-smape"))


def test_a_table_of_a_package_is_read_by_commands_and_agents(tmp_path: Path) -> None:
    assert read_table("acme-lake://loans").column("x").to_pylist() == [0.5, 1.5, 2.5]
    assert look(Source(path="acme-lake://loans")) == (3, 2)
    job = hedgerow.Job("bagging", rounds=1, min_silos=2, task="binary", label="label").parameters
    first, again = (load(Source(path="acme-lake://loans"), job, "a") for _ in range(2))
    assert first.n_samples == 3
    assert first.digest == again.digest
    assert list(first.labels) == [0.0, 1.0, 1.0]


def test_a_source_that_fails_or_is_not_there_is_named_without_its_text() -> None:
    for path, told in (
        ("acme-lake://Smith", "Smith: acme-lake cannot read it: KeyError$"),
        ("acme-lake://mixed", "mixed: acme-lake gives rows of other columns than it says$"),
        ("other-place://loans", "source of tables 'other-place' is not known; .*not installed"),
    ):
        for read in (read_table, lambda path: look(Source(path=path))):
            with pytest.raises(DataError, match=told):
                read(path)


@pytest.mark.process
def test_a_federation_trains_on_a_packages_tables_and_scores_by_its_metric(
    package: Path, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    silos = [word for name in "abc" for word in ("--silo", f"{name}=acme-lake://{name}")]
    done = subprocess.run(
        [sys.executable, "-m", "hedgerow", "local", "job.toml", *silos, "--out", "run"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(package)}, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [round_] = json.loads((tmp_path / "run/report.json").read_text())["rounds"]
    assert 0.0 < round_["metrics"]["train"]["acme-smape"] < 2.0


async def _asked(headers: dict[str, str], sign_on: SignOn) -> tuple[int, str]:
    """Return the status and the user of a request to a guarded page."""
    status, seen = 0, ""

    async def page(scope: Any, receive: Any, send: Any) -> None:
        nonlocal seen
        seen = scope["hedgerow.user"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"", ADMIT: lambda who: None,
        "headers": Headers({"host": "localhost", **headers}).raw, "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await Guard(page, "secret", ("localhost",), sign_on=sign_on)(scope, receive, send)
    return status, seen


async def test_who_signed_in_is_read_by_a_package() -> None:
    sign_on = SignOn(AUTHENTICATORS.load("acme-token", Authenticator))
    key = b"of the sign-on: read it from a file"
    seal = hmac.new(key, b"rosa", hashlib.sha256).hexdigest()
    assert await _asked({"x-acme-user": f"rosa {seal}"}, sign_on) == (200, "rosa")
    assert await _asked({"x-acme-user": f"otto {seal}"}, sign_on) == (403, "")
    assert await _asked({}, sign_on) == (403, "")
    with pytest.raises(Unauthorised, match="the authenticator failed: TypeError"):
        SignOn(Authenticator(lambda h, n: len(n) + None, "")).user(Headers(), {})  # type: ignore


@pytest.mark.parametrize("named", [[], [""], None, [None], "rosa", ["rosa", "otto"]])
async def test_a_package_that_names_nobody_admits_nobody_without_a_password(named: Any) -> None:
    by = Authenticator(lambda headers, name: named, "X-Acme-User", has_password=False)
    assert await _asked({}, SignOn(by)) == (403, "")


async def test_a_name_alone_is_not_enough_for_those_that_a_password_goes_with() -> None:
    sign_on = SignOn(AUTHENTICATORS.load("header", Authenticator), header="X-User")
    assert await _asked({"x-user": "rosa"}, sign_on) == (401, "")
    basic = "Basic b25lOnNlY3JldA=="  # one:secret
    assert await _asked({"x-user": "rosa", "authorization": basic}, sign_on) == (200, "rosa")
    basic_only = SignOn(AUTHENTICATORS.load("basic", Authenticator))
    assert await _asked({"authorization": basic}, basic_only) == (200, "one")
