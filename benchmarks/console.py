"""How fast the console answers before a coordinator with many jobs and silos.

``python -m benchmarks.console [--quick] [--jobs N] [--silos N] [--times N] [--json FILE]``. The
coordinator and the console are processes of their own; the silos hold leases that they took by
gRPC, each with its certificate, and the jobs are rows of the coordinator's database, among them one
of all silos with 300 rounds and a model of 300 trees. Each page is asked for over HTTP; the first
answer, by a console that nobody has asked anything yet, is shown apart. CPU time is of both
processes together; on a machine that does other work as well, it says more than the clock.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import xgboost

from benchmarks.many_agents import start_coordinator
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.coordinator.operator.console.app import PAGE_JOBS
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.database import JOBS, ROUNDS, SCORES, SENT, STEP_BYTES
from hedgerow.coordinator.server.store import Store
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.rpc.channel import Channels
from hedgerow.services.rpc.federation import FederationClient, Registration
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import job_file
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.job_view import JobSilo, JobState, SiloState
from hedgerow.services.wire.signed_job import open_job, sign_job

LEASE_SECONDS = 3600.0
ROUNDS_OF_LARGEST = 300
SPEC = """
name = "{name}"
strategy = "bagging"
label = "label"
min_silos = 3
metrics = ["auc", "logloss"]
[bagging]
rounds = 300
"""


def fill(folder: Path, n_jobs: int, silos: Sequence[str]) -> tuple[str, str]:
    """Write finished jobs into the coordinator's database.

    Returns
    -------
    largest, last : str
        Identifiers of the largest job, and of the one behind which the last page of jobs begins.
    """
    store = Store(f"sqlite:///{folder / 'state.db'}")
    identity = FileIdentity(IdentityPaths.of(folder / "pki/operator"))
    jobs = []
    for k in range(n_jobs):
        signed = sign_job(job_file.parse(SPEC.format(name=f"job {k}")), identity)
        opened = open_job(signed, identity)
        jobs.append(
            {"job_id": opened.statement.job_id, "name": f"job {k}",
             "operator": opened.operator, "signed": signed.serialise(), "attempt": 1,
             "state": (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)[k % 3],
             "detail": "" if k % 3 == 0 else "too few silos", "created": 1.7e9 + k,
             "ended": 1.7e9 + k + 60.0}
        )  # fmt: skip
    largest = str(jobs[-1]["job_id"])
    jobs[-1] |= {"state": JobState.SUCCEEDED, "detail": ""}
    names = sorted(silos)
    each = [{"job_id": largest, "round": k} for k in range(ROUNDS_OF_LARGEST)]
    with store._writing("filling the database") as connection:
        connection.execute(JOBS.insert(), jobs)
        connection.execute(
            ROUNDS.insert(),
            [one | {"attempt": 1, "seconds": 0.4, "bytes_up": 90_000, "bytes_down": 120_000,
                    "silos": names} for one in each],
        )  # fmt: skip
        connection.execute(
            SCORES.insert(),
            [one | {"data": "train", "metric": metric, "value": 0.9 - 0.001 * one["round"]}
             for one in each for metric in ("auc", "logloss")],
        )  # fmt: skip
        for method in ("ExchangeTrees", "ExchangeSums", "ExchangeSignatures"):
            moved = [{"job_id": largest, "silo": silo, "method": method} for silo in names]
            connection.execute(
                STEP_BYTES.insert(),
                [one | {"calls": 300, "messages_up": 300, "messages_down": 300,
                        "bytes_up": 90_000, "bytes_down": 120_000} for one in moved],
            )  # fmt: skip
            connection.execute(
                SENT.insert(), [one | {"payloads": 300, "bytes": 90_000} for one in moved]
            )
    for name in names:
        store.set_job_silos(largest, [JobSilo(name, 1024, SiloState.PRESENT, "")])
    artefacts, files = Artefacts(str(folder / "artefacts")), {}
    schema = Schema(tuple(Feature(f"x{j}") for j in range(20)), "label", Task.BINARY, 2)
    for name, data in (("model.ubj", model()), ("schema.json", schema_wire.dump(schema))):
        files[name] = artefacts.write(largest, name, data)
    store.set_result(largest, files, "model.ubj", ROUNDS_OF_LARGEST - 1)
    store.close()
    return largest, str(jobs[min(PAGE_JOBS, n_jobs - 1)]["job_id"])


def model() -> bytes:
    """Return a model of 300 trees of depth 6."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 20)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=5000) > 0).astype(np.int8)
    parameters = {"objective": "binary:logistic", "max_depth": 6, "nthread": 1}
    booster = xgboost.train(parameters, xgboost.DMatrix(X, y), ROUNDS_OF_LARGEST)
    return bytes(booster.save_raw("ubj"))


def register(folder: Path, address: str, silos: Sequence[str]) -> None:
    """Take a lease for each silo, with its own certificate."""
    for name in silos:
        paths = IdentityPaths.of(folder / "pki/silo" / name)
        channels = Channels(address, paths, Metrics())
        client = FederationClient(channels(), address, lambda *sent: None)
        client.register(Registration(secrets.token_hex(8), version("hedgerow"), (), 1024, 20))


def main() -> None:
    """Print what each page takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--silos", type=int, default=200)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="100 jobs, 20 silos, 3 times")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.jobs, options.silos, options.times = 100, 20, 3
    silos = [f"silo-{k:03d}" for k in range(options.silos)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        throwaway(folder / "pki", silos, time.time())
        largest, last = fill(folder, options.jobs, silos)
        os.environ["HEDGEROW_COORDINATOR_LEASE_SECONDS"] = str(LEASE_SECONDS)
        coordinator, address = start_coordinator(folder)
        console = None
        try:
            register(folder, address, silos)
            words = ("console", "--listen", "127.0.0.1:0", "--json", "--coordinator", address,
                     "--identity", str(folder / "pki/operator"))  # fmt: skip
            console = subprocess.Popen(
                [sys.executable, "-m", "hedgerow.coordinator.cli", *words], stdout=subprocess.PIPE
            )
            assert console.stdout
            at = json.loads(console.stdout.readline())["address"]
            both = [psutil.Process(process.pid) for process in (console, coordinator)]
            found = measure(at, pages(largest, last), options.times, both)
        finally:
            for process in (console, coordinator):
                if process is not None:
                    process.terminate()
                    process.wait(30)
    print(f"{options.jobs:,} jobs, {options.silos} silos; milliseconds, of {options.times} answers")
    print(f"{'page':<24}" + "".join(f"{head:>11}" for head in next(iter(found.values()))))
    for page, one in found.items():
        print(f"{page:<24}" + "".join(f"{value:11.0f}" for value in one.values()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def pages(largest: str, last: str) -> dict[str, str]:
    """Return addresses by what they show; ``{k}`` is to be another number each time."""
    return {
        "Federation": "/",
        "Jobs": "/jobs",
        "Jobs, the last page": f"/jobs?after={last}",
        "New job": "/submit",
        "A job": f"/jobs/{largest}",
        "A job, as it changes": f"/jobs/{largest}/live",
        "Ledger": f"/jobs/{largest}/ledger",
        "A tree": f"/jobs/{largest}/trees?tree=200",
        "Another tree": f"/jobs/{largest}/trees?tree={{k}}",
        "Report": f"/jobs/{largest}/report",
        "Compare": f"/compare?job={largest}",
    }


def measure(
    address: str, paths: dict[str, str], times: int, processes: list[psutil.Process]
) -> dict[str, dict[str, float]]:
    """Return milliseconds and kB of each page."""
    to = urlsplit(address)
    connection = http.client.HTTPConnection(str(to.hostname), to.port, timeout=60)
    connection.request("GET", f"/?{to.query}")
    entered = connection.getresponse()
    entered.read()
    cookie = {"Cookie": str(entered.getheader("set-cookie")).split(";")[0]}
    connection.request("GET", "/static/vega.js", headers=cookie)  # which it makes at its start
    connection.getresponse().read()

    def cpu() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    found = {}
    for name, path in paths.items():
        took, before, first = [], cpu(), 0.0
        for k in range(times + 1):
            if k == 1:
                first, before = cpu() - before, cpu()
            began = time.perf_counter()
            connection.request("GET", path.format(k=k + 1), headers=cookie)
            answer = connection.getresponse()
            body = answer.read()
            took.append(1e3 * (time.perf_counter() - began))
            if answer.status != 200:
                raise RuntimeError(f"{name}: {answer.status} {body[:300]!r}")
        found[name] = {
            "first": took[0], "first CPU": 1e3 * first, "median": statistics.median(took[1:]),
            "worst": max(took[1:]), "CPU": 1e3 * (cpu() - before) / times, "kB": len(body) / 1e3,
        }  # fmt: skip
    return found


if __name__ == "__main__":
    main()
