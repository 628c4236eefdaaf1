"""Protobuf bytes as reported beside bytes on the loopback interface: what TLS and HTTP/2 add.

``python -m benchmarks.wire [--quick] [--json FILE]``. Each job runs alone in a network namespace of
its own, whose loopback counters see nothing else. Needs ``unshare`` from util-linux.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "examples/data/adult.parquet"
JOB = """
name = "wire"
strategy = "bagging"
seed = 7
min_silos = 5
metrics = ["auc"]
[bagging]
rounds = {rounds}
trees_per_round = {trees}
scrub = "none"
[booster]
eta = 0.1
max_depth = 8
"""


def measure(folder: Path, rounds: int, trees: int) -> dict[str, int]:
    """Return reported and counted bytes of one job of five silos."""
    (folder / "job.toml").write_text(JOB.format(rounds=rounds, trees=trees))
    python = shlex.quote(sys.executable)
    silos = " ".join(f"--silo s{k}={folder}/data/silo-{k}.parquet" for k in range(5))
    out = folder / f"run-{rounds}-{trees}"
    script = (
        "ip link set lo up && "
        f"{python} -m hedgerow local {folder}/job.toml {silos} "
        f"--test {folder}/data/test.parquet --out {out} && cat /proc/net/dev"
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    loopback = next(line for line in done.stdout.splitlines() if line.strip().startswith("lo:"))
    report = json.loads((out / "report.json").read_text())
    moved = report["bytes"]
    return {
        "data_plane": moved["up"] + moved["down"],
        "control_plane": moved["control"]["up"] + moved["control"]["down"],
        "downloaded_result": sum((out / name).stat().st_size for name in report["artefacts"]),
        "loopback": int(loopback.split()[1]),
        "packets": int(loopback.split()[2]),
    }


def rows(quick: bool) -> list[dict[str, Any]]:
    """Return the table's rows."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        split = [sys.executable, "-m", "hedgerow", "split", str(DATA), "--silos", "5"]
        subprocess.run(
            [*split, "--test", "0.25", "--out", str(folder / "data")],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
        for rounds, trees in ((4, 1),) if quick else ((4, 1), (36, 1), (12, 10), (12, 50)):
            for metric, value in measure(folder, rounds, trees).items():
                name = f"{metric}_bytes" if metric != "packets" else "loopback_packets"
                unit = "packets" if metric == "packets" else "B"
                found.append(
                    {
                        "metric": f"{name}[{rounds} rounds x {trees} trees]",
                        "who": "hedgerow",
                        "value": value,
                        "unit": unit,
                    }
                )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = rows(options.quick)
    for row in table:
        print(f"{row['metric']:45} {row['who']:10} {row['value']:>14,} {row['unit']}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
