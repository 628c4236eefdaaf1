"""A job as a person plans and runs it: what `hedgerow plan` promised, and what the run moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.federation.forked import hedgerow
from tests.federation.processes import write_table


def plan_and_run(
    folder: Path, job: str, *, n_silos: int = 3, n_samples: int = 400
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plan and the report of a job over small tables; the run is in ``folder/run``."""
    (folder / "job.toml").write_text(job)
    silos: list[str] = []
    for k in range(n_silos):
        silos += ["--silo", f"s{k}={write_table(folder / f's{k}.parquet', n_samples, k)}"]
    test = write_table(folder / "test.parquet", n_samples, 99)

    def ask(command: str, *arguments: str) -> dict[str, Any]:
        done = hedgerow(command, folder / "job.toml", *silos, *arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    planned = ask("plan")
    more = ["--may-send", "hashes", "--test", str(test), "--out", str(folder / "run")]
    return planned, ask("local", *more)
