"""``docker compose up`` from nothing to a model; what containers cost beside ``hedgerow local``.

``python -m benchmarks.containers [--quick] [--json FILE]``. Needs a Docker engine and ``make
images``, and says so where there are none. The same job (bagging, 100 rounds, 20 with ``--quick``,
three silos of the Adult data) runs in containers over mTLS, with PostgreSQL and a crypto process a
silo, and as ``hedgerow local``; the seconds of a job are those that its rounds took.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.containers.compose import ROOT, Project, docker, eventually, project

JOB = """
name = "containers"
strategy = "bagging"
label = "label"
task = "binary"
seed = 7
min_silos = 3
silos = ["silo-0", "silo-1", "silo-2"]
{test}metrics = ["auc"]
[bagging]
rounds = {rounds}
scrub = "none"
[booster]
eta = 0.3
max_depth = 6
"""


def row(metric: str, who: str, value: float, unit: str) -> dict[str, Any]:
    """Return one row of the table."""
    return {"metric": metric, "who": who, "value": round(value, 3), "unit": unit}


def bring_up(made: Project) -> list[dict[str, Any]]:
    """Start everything from nothing; wait for health, then for the demo job."""
    started = time.monotonic()
    made.up()
    eventually(made.healthy, 120, "healthy")
    rows = [row("compose_up_to_healthy", "hedgerow", time.monotonic() - started, "s")]
    docker("wait", made.container("demo"))
    rows.append(row("compose_up_to_demo_done", "hedgerow", time.monotonic() - started, "s"))
    return rows


def in_containers(made: Project, rounds: int) -> float:
    """Return the seconds of the job's rounds in containers."""
    job_id = made.submit(JOB.format(rounds=rounds, test='test_data = "test"\n'))
    view = made.end(job_id, 300)
    assert view.state == "SUCCEEDED", view.detail
    return sum(r.seconds for r in view.rounds)


def on_this_machine(folder: Path, rounds: int) -> float:
    """Return the seconds of the same job's rounds by ``hedgerow local``."""
    (folder / "job.toml").write_text(JOB.format(rounds=rounds, test=""))
    command = [sys.executable, "-m", "hedgerow"]
    table = str(ROOT / "examples/data/adult.parquet")
    if not (folder / "data").exists():
        subprocess.run(
            [*command, "split", table, "--silos", "3", "--test", "0.25", "--seed", "7",
             "--out", str(folder / "data")],
            check=True, capture_output=True, cwd=ROOT,
        )  # fmt: skip
    silos = [f"--silo=silo-{k}={folder}/data/silo-{k}.parquet" for k in range(3)]
    subprocess.run(
        [*command, "local", str(folder / "job.toml"), *silos,
         "--test", f"{folder}/data/test.parquet", "--out", str(folder / "run")],
        check=True, capture_output=True, cwd=ROOT,
    )  # fmt: skip
    report = json.loads((folder / "run/report.json").read_text())
    return float(sum(r["seconds"] for r in report["rounds"]))


def memory_megabytes(made: Project, service: str) -> float:
    """Return the memory in use of a container."""
    said = docker("stats", "--no-stream", "--format", "{{.MemUsage}}", made.container(service))
    number = said.split("/")[0].strip()
    for unit, factor in (("GiB", 1073.7), ("MiB", 1.0486), ("KiB", 0.001)):
        if number.endswith(unit):
            return float(number.removesuffix(unit)) * factor
    return 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rounds, repeats = (20, 1) if given.quick else (100, 3)
    try:
        docker("image", "inspect", "hedgerow/coordinator:dev", "hedgerow/demo:dev")
    except (OSError, AssertionError):
        print("skipped: no Docker engine with this project's images; run `make images`")
        return
    rows: list[dict[str, Any]] = []
    for image in ("crypto", "coordinator", "agent"):
        size = docker("image", "inspect", "--format", "{{.Size}}", f"hedgerow/{image}:dev")
        rows.append(row(f"image_size_{image}", "hedgerow", int(size) / 1e6, "MB"))
    with tempfile.TemporaryDirectory() as name, project(Path(name)) as made:
        rows += bring_up(made)
        here: list[float] = []
        there: list[float] = []
        for _ in range(repeats):
            there.append(in_containers(made, rounds))
            here.append(on_this_machine(Path(name), rounds))
        inside, local = statistics.median(there), statistics.median(here)
        rows.append(row("round_in_containers", "hedgerow", 1000 * inside / rounds, "ms"))
        rows.append(row("round_by_local", "hedgerow", 1000 * local / rounds, "ms"))
        rows.append(row("overhead_of_containers", "hedgerow", 100 * (inside / local - 1), "%"))
        for service in ("coordinator", "agent-0", "crypto-0"):
            value = memory_megabytes(made, service)
            rows.append(row(f"memory_{service.removesuffix('-0')}", "hedgerow", value, "MB"))
    for r in rows:
        print(f"{r['metric']:<28}{r['who']:<12}{r['value']:>12}  {r['unit']}")
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
