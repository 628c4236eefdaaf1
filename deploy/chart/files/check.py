"""What ``helm test`` runs: submits a job, waits for its end, and checks what came back."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path


def hedgerow(*arguments: str) -> str:
    """Return what a command of the operator prints."""
    command = [sys.executable, "-m", "hedgerow", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"hedgerow {arguments[0]} ended with code {done.returncode}: {done.stdout}")
    return done.stdout


def main() -> None:
    """Exit with 0 if the job has succeeded and its model is whole, else with a sentence."""
    path = Path(sys.argv[1])
    job = tomllib.loads(path.read_text())
    job_id = json.loads(hedgerow("submit", str(path), "--json"))["job"]
    report = json.loads(hedgerow("watch", job_id, "--json").splitlines()[-1])
    wanted = job.get(job["strategy"], {}).get("rounds")
    if wanted is not None and len(report["rounds"]) != wanted:
        sys.exit(f"{wanted} rounds were asked for, {len(report['rounds'])} came")
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        hedgerow("download", job_id, "--out", str(run))
        model = run / report["model"]
        if not model.is_file() or not model.stat().st_size:
            sys.exit(f"the job has left no {report['model']}")
        if model.name == "model.ubj":
            import xgboost

            n_trees = xgboost.Booster(model_file=str(model)).num_boosted_rounds()
            if n_trees < 1:
                sys.exit("the model has no trees")
    silos = ", ".join(silo["name"] for silo in report["silos"])
    print(f"job {job_id} succeeded: {len(report['rounds'])} rounds with {silos}")


if __name__ == "__main__":
    main()
