"""Strangers at HTTP servers of ours who hold connections and send little, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest
import xgboost as xgb

from hedgerow.api.serving.v1 import scoring_service_pb2 as pb
from hedgerow.api.serving.v1.scoring_service_pb2_grpc import ScoringServiceStub
from tests.adversary.test_doors import FEW_DESCRIPTORS, coordinator, idle, n_open
from tests.federation.consoles import asked, console
from tests.federation.processes import PATIENCE_SECONDS, Federation, wait_until
from tests.federation.serving import digest, nested
from tests.federation.test_serving_changes import Callers

LIMITS = {"rows_per_minute": 1000, "rows_per_day": 1000}


class Serving(Federation):
    """``hedgerow serve`` of one stock model, with 1,024 descriptors."""

    def _text(self, config: dict[str, Any]) -> str:
        return nested(config)

    def serve(self, caller: str, **more: Any) -> int:
        """Return the port."""
        X = np.arange(20.0).reshape(10, 2)
        matrix = xgb.DMatrix(X, X[:, 0] > 9, feature_names=["a", "b"])
        path = self.folder / "model.ubj"
        xgb.train({"objective": "binary:logistic"}, matrix, 1).save_model(path)
        settings = {
            "listen": "127.0.0.1:0",
            "grpc": "127.0.0.1:0",
            "state": str(self.folder / "state-serve"),
            "models": {"stock": {"path": str(path), "digest": digest(path)}},
            "callers": {caller: {"models": ["stock"], **LIMITS}},
        }
        self._spawn("serve", "serving", {**settings, **more}, FEW_DESCRIPTORS)
        return self.ports["serve"]["port"]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path, {}, make_certificates=False)
    yield made
    made.stop()


def test_idle_connections_keep_no_caller_out_of_scores(serving: Serving) -> None:
    callers = Callers(serving.folder / "callers")
    port = serving.serve("web", tls=str(callers.folder))
    with idle(port, 1300) as held:
        assert callers.ask("web", port, "stock", [{"a": 1, "b": 2}])[0] == 200
        wait_until(lambda: n_open(held) == 0, 60, "they are shut")
        assert callers.ask("web", port, "stock", [{"a": 1, "b": 2}])[0] == 200
    at = f"127.0.0.1:{serving.ports['serve']['grpc_port']}"
    row = pb.ScoredRow()
    row.features.update({"a": 1, "b": 2})
    request = pb.PredictRequest(model="stock", rows=[row])
    with (
        idle(int(at.rpartition(":")[2]), 1300) as held,
        grpc.secure_channel(at, callers.credentials("web")) as dialled,
    ):
        stub = ScoringServiceStub(dialled)
        assert stub.Predict(request, timeout=60, wait_for_ready=True).scores[0].values
        wait_until(lambda: n_open(held) == 0, 60, "they are shut")
        assert stub.Predict(request, timeout=60).scores[0].values


def connection(port: int, sent: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    made.sendall(sent)
    return made


def test_requests_that_never_end_are_ended(serving: Serving) -> None:
    port = serving.serve("loopback")
    whole = b'{"instances": [{"a": 1, "b": 2}]}'
    head = b"POST /v1/models/stock:predict HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n"
    answered = connection(port, head % len(whole) + whole)
    assert answered.recv(1 << 16).startswith(b"HTTP/1.1 200")
    answered.sendall(b"\r\n")
    again = connection(port, head % len(whole) + whole)
    assert again.recv(1 << 16).startswith(b"HTTP/1.1 200")
    again.sendall(b"GET /v1/models/stock HTTP/1.1\r\nhost: he")
    slow = {
        "nothing": connection(port, b""),
        "half a head": connection(port, b"GET /healthz HTTP/1.1\r\nhost: he"),
        "half a body": connection(port, head % 1000 + whole),
        "an empty line after an answer": answered,
        "half a head after an answer": again,
        "a stranger's answered call": connection(port, b"GET /healthz HTTP/1.1\r\n\r\n"),
    }
    for made in slow.values():
        made.setblocking(False)
    wait_until(lambda: n_open([*slow.values()]) == 0, 90, "they are ended")
    for made in slow.values():
        made.close()
    assert "Traceback" not in serving.log("serve")


def test_idle_connections_keep_no_operator_out_of_the_console(tmp_path: Path) -> None:
    with coordinator(tmp_path) as fed, console(fed, "--listen", "127.0.0.1:0") as (address, _):
        to = urlsplit(address)
        assert to.port
        asked_for = asked(address, "GET", f"/?{to.query}")
        cookie = asked_for.headers["set-cookie"].split(";")[0]
        with idle(to.port, 2300) as held:
            assert asked(address, "GET", "/jobs", Cookie=cookie).status == 200
            wait_until(lambda: n_open(held) == 0, 60, "they are shut")
            assert asked(address, "GET", "/jobs", Cookie=cookie).status == 200
