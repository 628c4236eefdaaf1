"""A server that compares the rows that it scores with those of before, by counts."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hedgerow
from tests.coordinator.operator.library.tables import people
from tests.coordinator.operator.library.test_models import finished
from tests.federation.processes import ROOT, Federation, wait_until
from tests.federation.prometheus import prometheus
from tests.federation.serving import ServingFederation

pytestmark = pytest.mark.process
RULES = ROOT / "deploy/prometheus/rules.yml"
FEATURES = ("age", "site", "dose")


class DriftServer(ServingFederation):
    """``hedgerow serve`` of one horizontal model, without a coordinator."""

    def __init__(self, folder: Path) -> None:
        Federation.__init__(self, folder, {}, make_certificates=False)
        self.run = hedgerow.Run(finished(folder / "run", "histogram", rounds=5, max_depth=3))
        self.reference = folder / "reference.json"
        self.reference.write_text(json.dumps(self.run.reference(people(4000, 1))))
        self.drift: dict[str, Any] = {"reference": str(self.reference), "window_rows": 1000}
        self.policy: dict[str, Any] = {}

    def server_settings(self) -> dict[str, Any]:
        model = self.folder / "run/model.ubj"
        own = {"path": str(model), "digest": hashlib.sha256(model.read_bytes()).hexdigest()}
        limits = {"max_rows": 1000, "rows_per_minute": 10**8, "rows_per_day": 10**9}
        return {
            "listen": "127.0.0.1:0",
            "state": str(self.folder / "state-serve"),
            "models": {"ages": {**own, **({"drift": self.drift} if self.drift else {})}},
            "callers": {"loopback": {"models": ["ages"], **limits}},
            **({"policy": self.policy} if self.policy else {}),
        }

    def change(self) -> None:
        """Write the settings anew, which the server then reads."""
        text = self._text({**self.server_settings(), "ready_file": str(self.folder / "x")})
        (self.folder / "serve.toml").write_text(text)

    def loads(self) -> int:
        """Return how often the model was loaded."""
        digest = hashlib.sha256((self.folder / "run/model.ubj").read_bytes()).hexdigest()
        return self.log("serve").count(digest[:12])

    def send(self, table: dict[str, Any], size: int) -> None:
        cells = [[None if v != v else v for v in table[n].tolist()] for n in FEATURES]
        rows = [dict(zip(FEATURES, own, strict=True)) for own in zip(*cells, strict=True)]
        for first in range(0, len(rows), size):
            code, found = self.predict(*rows[first : first + size], model="ages")
            assert code == 200, found

    def metrics(self) -> dict[str, float]:
        port = self.ports["serve"]["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found = re.findall(r"^(hedgerow_(?:drift|model_stale)\S*) (\S+)$", text, re.M)
        return {key.replace('model="ages"', "").strip("{}"): float(v) for key, v in found}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DriftServer]:
    made = DriftServer(tmp_path)
    try:
        made.start_server()
        yield made
    finally:
        made.stop()


def older(n: int, seed: int) -> dict[str, Any]:
    found = people(n, seed)
    found["age"] = found["age"] + 6
    return found


def psi(metrics: dict[str, float]) -> dict[str, float]:
    found = {}
    for key, value in metrics.items():
        if column := re.search(r'column="(.*?)"', key):
            found[column[1]] = value
    return found


def test_a_window_that_is_like_the_reference_leaves_a_model_and_another_one_makes_it_stale(
    server: DriftServer,
) -> None:
    columns = {"age", "site", "dose", "(score)"}
    assert psi(server.metrics()) == dict.fromkeys(columns, 0.0)
    server.send(people(1024, 2), 64)
    found = psi(server.metrics())
    assert set(found) == columns
    assert max(found.values()) < 0.1
    assert max(found.values()) > 0
    assert all(v == round(v, 2) for v in found.values())
    assert server.ask("/v1/models/ages")[1]["drifted"] == []
    # What is told is of whole windows: none of the rows before is of the next one.
    server.send(older(512, 3), 64)
    assert psi(server.metrics()) == found
    server.send(older(600, 4), 1)
    changed = psi(server.metrics())
    assert changed["age"] > 0.2 > changed["site"]
    assert server.ask("/v1/models/ages")[1]["drifted"] == ["age", "(score)"]
    assert server.metrics()["hedgerow_model_stale"] == 1.0
    assert "model stale" in server.log("serve")
    window = {k: np.concatenate([older(512, 3)[k], older(600, 4)[k][:512]]) for k in FEATURES}
    expected = server.run.drift(window, json.loads(server.reference.read_text()))
    index = dict(zip(expected["column"], expected["psi"], strict=True))
    assert changed == {name: round(index[name], 2) for name in columns}
    server.drift = {}
    server.change()
    wait_until(lambda: not server.metrics(), 60, "no drift is shown")


def test_the_policy_says_when_a_model_is_stale_and_an_alert_tells_it(server: DriftServer) -> None:
    port = server.ports["serve"]["metrics_port"]
    with prometheus(
        server.folder / "prometheus", {"serve": [f"127.0.0.1:{port}"]}, RULES
    ) as watching:
        wait_until(lambda: watching.query("hedgerow_model_stale") != [], 60, "it is seen")
        server.policy = {"stale_psi": 90.0}
        server.change()
        wait_until(lambda: server.loads() == 2, 60, "it is read")
        server.send(older(1024, 3), 64)
        assert psi(server.metrics())["age"] > 0.2
        assert server.ask("/v1/models/ages")[1]["drifted"] == []
        server.policy = {"stale_psi": 0.2}
        server.change()
        wait_until(lambda: server.loads() == 3, 60, "it is read")
        server.send(older(1024, 3), 64)
        wait_until(lambda: watching.firing() == {"HedgerowModelStale"}, 60, "the alert fires")
        server.send(people(1024, 2), 64)
        wait_until(lambda: not watching.firing(), 60, "no alert fires")
        server.drift["max_psi"] = 0.3
        server.change()
        wait_until(lambda: "expected at most policy.stale_psi" in server.log("serve"), 60, "no")


def test_a_reference_of_another_model_is_refused_at_the_start(tmp_path: Path) -> None:
    made = DriftServer(tmp_path)
    other = json.loads(made.reference.read_text())
    made.reference.write_text(json.dumps({**other, "model": "0" * 64}))
    try:
        made.start_server()
        assert not made.alive("serve")
        assert "models.ages.drift: reference: expected counts by this model's" in made.log("serve")
    finally:
        made.stop()
