"""A silo in JavaScript beside two of ours, over mTLS: bagging, and the labels' masked sum."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.trees.loading import load
from tests.federation.processes import PATIENCE_SECONDS, Federation
from tests.interop.vectors import FOLDER as VECTORS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE = shutil.which("node")
NPM = shutil.which("npm")

COMMON = """
strategy = "bagging"
seed = 3
min_silos = 3
start_timeout_seconds = 300
silos = ["ours-0", "ours-1", "theirs"]
features = ["x0", "x1", "x2"]
"""
BINARY = f"""{COMMON}
name = "stumps"
metrics = ["logloss"]
[bagging]
rounds = 4
trees_per_round = 2
scrub = "none"
evaluate = "none"
[booster]
max_depth = 3
"""
REGRESSION = f"""{COMMON}
name = "mean"
task = "regression"
label = "target"
metrics = ["rmse"]
[bagging]
rounds = 3
scrub = "none"
evaluate = "none"
[booster]
max_depth = 2
"""


def table(seed: int, n: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    columns: dict[str, Any] = {f"x{j}": X[:, j] for j in range(3)}
    columns["label"] = (X[:, 0] + rng.normal(size=n) / 3 > 0).astype(np.int8)
    columns["target"] = 1e3 * X[:, 1].astype(np.float64) + rng.normal(size=n)
    return pa.table(columns)


def write_csv(path: Path, rows: pa.Table) -> Path:
    """Write a table with as many digits as its numbers need."""
    lines = [",".join(rows.column_names)]
    lines += [",".join(repr(value) for value in row.values()) for row in rows.to_pylist()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def node() -> str:
    """Node, with the packages of the lock file."""
    if NODE is None or NPM is None:
        pytest.skip("node or npm is not installed; `make services` installs them")
    done = subprocess.run(
        [NPM, "ci", "--prefer-offline"], cwd=HERE, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return NODE


def test_the_silo_in_javascript_agrees_with_the_vectors(node: str) -> None:
    done = subprocess.run(
        [node, str(HERE / "silo/check_vectors.mjs"), str(VECTORS), str(ROOT / "proto")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Ran:
    """Two jobs of two silos of ours and one in JavaScript."""

    def __init__(self, folder: Path, node: str) -> None:
        self.tables = {name: table(k, 150 + 10 * k) for k, name in enumerate(("ours-0", "ours-1"))}
        self.tables["theirs"] = table(7, 130)
        paths = {name: folder / f"{name}.parquet" for name in self.tables}
        for name, path in paths.items():
            pq.write_table(self.tables[name], path)
        federation = Federation(folder, paths, lease_seconds=30.0)
        try:
            federation.start_coordinator()
            for name in ("ours-0", "ours-1"):
                federation.start_agent(name)
            silo = self._start(folder, node, federation)
            self.views, self.models, self.provenance = [], [], []
            for text in (BINARY, REGRESSION):
                job_id = federation.submit(text)
                view = federation.end(job_id)
                assert view.state == "SUCCEEDED", (view.detail, (folder / "node.log").read_text())
                self.views.append(view)
                self.models.append(load(federation.client.download(job_id)[1]))
                _, raw = federation.client.download(job_id, "provenance.json")
                self.provenance.append(json.loads(raw))
            assert silo.wait(PATIENCE_SECONDS) == 0, (folder / "node.log").read_text()
            self.reports = json.loads((folder / "report.json").read_text())
        finally:
            federation.stop()

    def _start(self, folder: Path, node: str, federation: Federation) -> subprocess.Popen[bytes]:
        settings = {
            "address": federation.address,
            "identity": str(folder / "pki/silo/theirs"),
            "protos": str(ROOT / "proto"),
            "state": str(folder / "state-node"),
            "data": str(write_csv(folder / "theirs.csv", self.tables["theirs"])),
            "version": version("hedgerow"),
            "jobs": 2,
            "report": str(folder / "report.json"),
        }
        (folder / "node.json").write_text(json.dumps(settings))
        with (folder / "node.log").open("wb") as log:
            process = subprocess.Popen(
                [node, str(HERE / "silo/main.mjs"), str(folder / "node.json")],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        federation.processes["node"] = process
        return process


@pytest.fixture(scope="module")
def ran(node: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("interop"), node)


@pytest.mark.parametrize("job", [0, 1], ids=["binary", "regression"])
def test_its_stumps_are_in_the_model(ran: Ran, job: int) -> None:
    blocks = ran.provenance[job]["blocks"]
    rounds = ran.reports[job]["rounds"]
    assert [b["silo"] for b in blocks] == ["ours-0", "ours-1", "theirs"] * rounds
    theirs = []
    trees = iter(ran.models[job].trees)
    for block in blocks:
        own = [next(trees) for _ in range(block["steps"])]
        theirs += own if block["silo"] == "theirs" else []
    assert next(trees, None) is None
    assert ran.reports[job]["offers"] == rounds == len(theirs) // blocks[-1]["steps"]
    assert all(tree.n_nodes == 3 and tree.threshold[tree.is_leaf].any() for tree in theirs)
    assert ran.reports[job]["digest"] == ran.provenance[job]["digest"]


def test_the_masked_sum_of_the_labels_is_exact(ran: Ran) -> None:
    found = ran.reports[1]["sum"]
    labels = [float(v) for t in ran.tables.values() for v in t["target"].to_pylist()]
    exact = sum((Fraction(v) for v in labels), Fraction(0))
    assert Fraction(int(found["labels"]), 1 << 140) == exact
    assert int(found["weight"]) >> 140 == len(labels)
    assert found["present"] == ["ours-0", "ours-1", "theirs"]
    assert ran.reports[1]["base_score"] == float(exact / len(labels))
    (base_score,) = ran.models[1].about.base_score
    assert np.float32(base_score) == np.float32(float(exact / len(labels)))
