"""The strategy that is a package of its own: installed and trained as its page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import xgboost as xgb

from hedgerow.services.process import ledgers
from tests import plugin
from tests.federation.processes import federation

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/write-a-strategy.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(folder), str(plugin.SOURCE)],
        check=True, timeout=300,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def run(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder that the page's commands make, over mTLS with three agents."""
    lines = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)]
    assert [line[:2] for line in lines] == [
        ["pip", "install"], ["hedgerow", "help"], ["hedgerow", "split"], ["hedgerow", "local"],
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("written")
    (folder / "examples").symlink_to(ROOT / "examples")
    for line in lines[1:]:
        done = subprocess.run(
            [sys.executable, "-m", *line], cwd=folder, env={**os.environ, "PYTHONPATH": str(site)},
            text=True, capture_output=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        if line[1] == "help":
            assert "Share of the features that each split is chosen among." in done.stdout
    return folder / "forest"


@pytest.mark.slow
def test_a_package_trains_as_its_page_says(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    assert (report["strategy"], report["state"]) == ("random-forest", "SUCCEEDED")
    assert report["rounds"][-1]["metrics"]["test"]["auc"] > 0.9
    assert report["reveals"] == plugin.installed().REVEALS
    model = xgb.Booster(model_file=run / "model.ubj")
    assert model.num_boosted_rounds() == 4 * 3 * 10
    assert 'strategy = "random-forest"' in (run / "job.toml").read_text()


@pytest.mark.slow
def test_what_leaves_is_counted_planned_and_in_the_ledger(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    for silo in ("a", "b", "c"):
        sent = [e for e in ledgers.read(run / f"ledger-{silo}.jsonl") if e.step == "forest"]
        assert {(e.kind, e.discloses) for e in sent} == {("GrownTrees", "trees")}
        assert len(sent) == 4
        assert sum(e.bytes for e in sent) == report["bytes"]["by_silo"][silo]["up"]
    planned = report["plan"]["steps"]["ExchangeTrees"]
    moved = report["bytes"]["by_step"]["ExchangeTrees"]
    for way in ("up", "down"):
        assert moved[way] / 2 < 3 * planned[way] < 3 * moved[way]


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.installed()
    monkeypatch.setenv("PYTHONPATH", str(site))


JOB = 'strategy = "random-forest"\nmin_silos = 2\nstart_timeout_seconds = 8\n{silos}'
ALLOWED = {"strategies": ["random-forest"], "may_send": ["trees", "schema"]}


@pytest.mark.slow
def test_a_silo_whose_policy_does_not_name_the_package_declines(
    installed: None, tmp_path: Path
) -> None:
    with federation(tmp_path, 2, start=False) as fed:
        fed.fresh = True  # interpreters of their own, which find the package
        fed.start_coordinator()
        fed.start_agent("s0", policy=ALLOWED)
        fed.start_agent("s1")
        view = fed.end(fed.submit(JOB.format(silos='silos = ["s0", "s1"]\n')))
        assert view.state == "FAILED"
        declined = {one.name: one.detail for one in view.silos if one.state == "declined"}
        assert declined["s1"] == (
            "policy rule strategies: random-forest is of another package, and is not named"
        )
        view = fed.end(fed.submit(JOB.format(silos="")))  # who did not announce it is not asked
        assert view.state == "FAILED"
        assert "s1" not in {one.name for one in view.silos}
