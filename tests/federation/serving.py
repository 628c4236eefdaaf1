"""Scores on request in processes: a vertical model in parts, its parties, and the server."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import xgboost as xgb

from hedgerow.api.serving.v1.scoring_service_pb2_grpc import ScoringServiceStub
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from tests.federation import vertical
from tests.federation.processes import Federation, toml
from tests.federation.test_secureboost_models import run
from tests.federation.test_secureboost_processes import write_parties

WIDTHS = [3, 2, 2]
ACTIVE = "guest"


def nested(table: Mapping[str, Any], path: str = "") -> str:
    """Return TOML of tables within tables."""
    lines = []
    if path:
        lines.append(f"[{path}]")
    lines += toml({k: v for k, v in table.items() if not isinstance(v, dict)}).splitlines()
    for key, value in table.items():
        if isinstance(value, dict):
            lines.append(nested(value, f"{path}.{key}" if path else key))
    return "\n".join(lines) + "\n"


class ServingFederation(Federation):
    """A coordinator, agents that answer, and ``hedgerow serve`` at the active party."""

    def __init__(
        self,
        folder: Path,
        whole: Dataset,
        rounds: int = 4,
        widths: Sequence[int] = WIDTHS,
        **changes: Any,
    ) -> None:
        self.whole = vertical.by_id(whole)
        cut = vertical.cut_by_columns(whole, widths)
        super().__init__(folder, write_parties(cut, folder))
        job = vertical.job(encryption="plain", rounds=rounds, **changes)
        outcome, _ = run(job, cut)
        self.active, self.passive = vertical.parts(outcome.kept)
        self.files: dict[str, Path] = {}
        every: list[ActivePart | PassivePart] = [self.active, *self.passive.values()]
        for part in every:
            self.files[part.party] = path = folder / "parts" / part.party / "part.json"
            path.parent.mkdir(parents=True)
            path.write_bytes(part.dump())
        self.stock = folder / "model.ubj"
        self.booster = joined(self.active, self.passive)[0].booster(n_threads=1)
        self.booster.save_model(self.stock)

    def answers(self, party: str, **limits: Any) -> dict[str, Any]:
        limits = {"models": [self.active.digest], "rows_per_minute": 1_000_000, **limits}
        folder = str(self.files[party].parent)
        return {"parts": folder, "askers": {ACTIVE: {"rows_per_day": 10**9, **limits}}}

    def start(self) -> ServingFederation:
        self.start_coordinator()
        for party in self.passive:
            self.start_agent(party, answers=self.answers(party))
        self.start_server()
        return self

    def server_settings(self) -> dict[str, Any]:
        port = self.ports.get("serve", {}).get("port", 0)
        limits = {"rows_per_minute": 10**8, "rows_per_day": 10**9}
        return {
            "listen": f"127.0.0.1:{port}",
            "grpc": "127.0.0.1:0",
            "patience_seconds": 1.0,
            "coordinator": self.address,
            "identity": str(self.folder / f"pki/silo/{ACTIVE}"),
            "state": str(self.folder / "state-serve"),
            "audit": str(self.folder / "audit.jsonl"),
            "models": {
                "credit": {
                    "path": str(self.files[ACTIVE]),
                    "digest": digest(self.files[ACTIVE]),
                    "rows": {"path": str(self.silos[ACTIVE])},
                },
                "stock": {"path": str(self.stock), "digest": digest(self.stock)},
            },
            "callers": {"loopback": {"models": ["credit", "stock"], "explain": True, **limits}},
        }

    def start_server(self, **changes: Any) -> None:
        self._spawn("serve", "serving", {**self.server_settings(), **changes})

    def _text(self, config: dict[str, Any]) -> str:
        return nested(config)

    def ask(self, path: str, document: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
        """Return code and document of a request."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['serve']['port']}{path}",
            None if document is None else json.dumps(document).encode(),
            headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def stub(self, credentials: grpc.ChannelCredentials | None = None) -> Any:
        """Return a client of the same by gRPC."""
        address = f"127.0.0.1:{self.ports['serve']['grpc_port']}"
        if credentials is None:
            return ScoringServiceStub(grpc.insecure_channel(address))
        return ScoringServiceStub(grpc.secure_channel(address, credentials))

    def predict(self, *rows: Any, model: str = "credit") -> tuple[int, dict[str, Any]]:
        return self.ask(f"/v1/models/{model}:predict", {"instances": list(rows)})

    def expected(self, ids: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the joined model's probabilities."""
        assert self.whole.ids is not None
        place = {i: k for k, i in enumerate(self.whole.ids)}
        rows = self.whole.X[[place[i] for i in ids]]
        found = self.booster.predict(xgb.DMatrix(rows), validate_features=False)
        return np.asarray(found)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def serving(folder: Path, **changes: Any) -> Iterator[ServingFederation]:
    made = ServingFederation(folder, vertical.table(120, sum(WIDTHS), missing=0.1), **changes)
    try:
        yield made.start()
    finally:
        made.stop()
