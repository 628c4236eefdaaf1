"""A federation of scripts on loopback: a coordinator, and the same script for each silo."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import hedgerow
from tests.federation.processes import PATIENCE_SECONDS, Federation, toml

SCRIPT = """
import json, sys, time
import hedgerow, pyarrow.parquet as pq
given = json.loads(sys.argv[1])
table = pq.read_table(given["table"])

def seen(done):
    print("round", done.round, done.metrics, flush=True)
    time.sleep(given.get("pause", 0.0))
    if given.get("fail_at") == done.round:
        raise KeyError("the user's own")
    return given.get("stop_at") == done.round

try:
    with hedgerow.join(given["folder"], **given["join"]) as site:
        print("joined", site.rank, *site.silos, flush=True)
        for settings in given["jobs"]:
            run = site.train(hedgerow.Job(**settings), table, on_round=seen)
            print("ended", run.state, flush=True)
            if run.state == "SUCCEEDED":
                print("model", (run.folder / run.document["model"]).read_bytes().hex(), flush=True)
except (hedgerow.FederationError, KeyboardInterrupt) as error:
    print("refused", type(error).__name__, error, flush=True)
    sys.exit(3)
"""
JOB = {
    "strategy": "histogram", "rounds": 3, "max_depth": 3, "seed": 7, "start_timeout_seconds": 40.0,
    "early_stopping_rounds": 100,
}  # fmt: skip


class Script:
    """One silo's script."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self, begins: str) -> str:
        """Return the rest of its next line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(begins):
                return line.removeprefix(begins).strip()
        raise AssertionError(f"no line {begins!r}; ended with {self.process.wait()}")

    def rest(self) -> str:
        """Return what it still says until it ends."""
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        self.process.wait(PATIENCE_SECONDS)
        return said


class Scripts(Federation):
    """A coordinator, and folders of silos with tables."""

    def folder_of(self, silo: str, **policy: Any) -> Path:
        """Return a silo's folder, as ``hedgerow init`` makes it but for the crypto process."""
        place = self.folder / f"silo-{silo}"
        place.mkdir(exist_ok=True)
        agent = {
            "coordinator": self.address,
            "identity": str(self.folder / "pki/silo" / silo),
            "state": str(place / "state"),
            "data": {"path": str(self.silos[silo])},
            "policy": policy,
        }
        (place / "agent.toml").write_text(toml(agent))
        return place

    def script(
        self,
        silo: str,
        *jobs: dict[str, Any],
        policy: dict[str, Any] | None = None,
        join: dict[str, Any] | None = None,
        **given: Any,
    ) -> Script:
        """Start a silo's script."""
        told = {
            "folder": str(self.folder_of(silo, **(policy or {}))),
            "table": str(self.silos[silo]),
            "jobs": jobs or (JOB,),
            "join": {"world_size": len(self.silos), "wait": 60.0} | (join or {}),
            **given,
        }
        return Script(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(told)],
                stdout=subprocess.PIPE,
                stderr=None,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        )

    def jobs(self) -> dict[str, str]:
        """Return the operators of the coordinator's jobs."""
        with sqlite3.connect(self.folder / "state.db") as database:
            return dict(database.execute("SELECT job_id, operator FROM jobs").fetchall())

    def local(self, job: dict[str, Any]) -> bytes:
        """Return the model that ``hedgerow.local`` makes of the same tables."""
        run = hedgerow.local(hedgerow.Job(**job), self.silos, quiet=True)
        return (run.folder / str(run.document["model"])).read_bytes()
