"""``hedgerow local``: a whole federation on this machine, for one job.

The real coordinator, and one agent and one crypto process a silo, talk mTLS on loopback under a
throw-away CA. All of them are forked from this process, which has imported what they need and has
not used gRPC yet: eleven interpreters that each import everything would cost more than a small
job. However this command ends, its processes, ports and keys are gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import click
from rich.console import Console

from hedgerow.boosting.errors import UNFIT, FederationError, InvalidJob
from hedgerow.boosting.exchange import Discloses
from hedgerow.boosting.ports import JobParameters, Result, Vertical, strategy_of
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.coordinator.operator.commands.options import (
    PATH,
    RUN,
    ids_option,
    may_send,
    parse_ids,
    parse_pairs,
    run_out,
    silo_tables,
)
from hedgerow.coordinator.operator.family import Family
from hedgerow.services.process.imports import staying
from hedgerow.services.process.terminal import command, tell, wants_json
from hedgerow.services.wire.job_view import JobView


class _Interrupted(BaseException):
    """Ctrl-C or SIGTERM."""


@command()
@click.argument("job", type=PATH)
@silo_tables
@click.option(
    "--validation",
    "validations",
    multiple=True,
    metavar="SILO=FILE",
    help="Validation rows of a job with validation_tables; once for each silo.",
)
@ids_option
@run_out
@may_send
@click.option(
    "--threads",
    type=int,
    default=0,
    help="Threads of each silo's training; 0 shares the cores out.",
)
@click.option(
    "--model",
    type=RUN,
    help="Run folder of the model that the job goes on from, or that a vertical one predicts with.",
)
@click.option("--rounds-to", type=int, hidden=True)
def local(
    job: Path,
    silos: tuple[str, ...],
    tests: tuple[str, ...],
    validations: tuple[str, ...],
    ids: tuple[str, ...],
    out: Path,
    overwrite: bool,
    may_send: tuple[str, ...],
    threads: int,
    model: Path | None,
    rounds_to: int | None,
) -> None:
    """Run a job on this machine: coordinator, agents and crypto processes over mTLS."""
    console = Console(stderr=wants_json(), emoji=False)
    validation = parse_pairs(validations, "--validation")
    tables = parse_pairs(silos, "--silo")
    report = run(
        job, tables, tests, out, console, threads, model, validation,
        overwrite=overwrite, may_send=may_send, ids=parse_ids(ids, tables),
        watcher=None if rounds_to is None else socket.socket(fileno=rounds_to),
    )  # fmt: skip

    def show() -> None:
        from hedgerow.coordinator.operator.progress import outcome, summary

        for line in summary(report):
            click.echo(line)
        if report["detail"]:
            click.echo(outcome(report["detail"], [s["detail"] for s in report["silos"]]), err=True)
        click.echo(f"run folder: {out}")

    tell(report, show)
    from hedgerow.coordinator.operator.run_folder import as_asked

    sys.exit(0 if as_asked(report) else 1)


def run(
    job: Path | bytes,
    silos: dict[str, str],
    tests: tuple[str, ...],
    out: Path,
    console: Console,
    threads: int = 0,
    model: Path | None = None,
    validation: Mapping[str, str] = MappingProxyType({}),
    *,
    overwrite: bool = False,
    may_send: Iterable[str] = (),
    ids: Mapping[str, str] = MappingProxyType({}),
    watcher: socket.socket | None = None,
) -> dict[str, Any]:
    """Run a job to its end and return its report; the run folder is written.

    Parameters
    ----------
    job : Path or bytes
        A job file, or a serialised JobSpec.
    model : Path, optional
        Run folder of the model, or of the parts of a vertical model, that the job starts from.
    validation : Mapping
        Each silo's table of validation rows, where the job has them.
    overwrite : bool
        Whether the result of an earlier run in the folder may go.
    may_send : iterable of str
        Classes that silos send in this run beside those that need no word here: ``hashes``.
    ids : Mapping
        By party, the column that names its rows where that is not ``_id``.
    watcher : socket, optional
        Of a process that is told finished rounds and may ask to end the job.

    Raises
    ------
    FederationError
        The job or a table cannot be used, or a process did not start.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from hedgerow.coordinator.operator import run_folder
    from hedgerow.coordinator.operator.library.jobs import Job

    party_tests, test = _tests(tests, silos)
    found = Job.from_spec(job) if isinstance(job, bytes) else Job.load(job)
    found = found.on(silos, has_test=bool(test), all_needed=True)
    if model is not None and not found.parameters.vertical:
        found = found.starting_from(model)
    found.check_start(model)
    raw, parameters = found.spec, found.parameters
    _check_validation(parameters, silos, validation)
    if (test or party_tests) and parameters.strategy.result is Result.TABLE:
        raise InvalidJob(f"--test: a job of {parameters.strategy.name} has no model to score")
    shown = ({"test": test} if test else {}) | party_tests
    if test and parameters.strategy.result is Result.PERSONAL:
        party_tests = dict.fromkeys(silos, test)
    if model is not None and model.resolve() == out.resolve():
        raise InvalidJob("--out: expected another folder than --model, whose run is kept")
    run_folder.claim(out, overwrite=overwrite)
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix="hedgerow-"))
    family = Family(out / "logs")
    if family.logs.exists():
        shutil.rmtree(family.logs)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Interrupted

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        n_threads = threads or max((os.cpu_count() or 1) // len(silos), 1)
        if model is not None and parameters.vertical:
            _bring_parts(model, parameters, folder, silos)
        own = {silo: {"test": path} for silo, path in party_tests.items()}
        for silo, path in validation.items():
            own.setdefault(silo, {})["validation"] = path
        began = parameters.warm_start
        file = parameters.strategy.starts_with
        models = {began.run: str((model / file).resolve())} if began and model else {}
        address = _start(
            family, folder, silos, test, own, n_threads, models, parameters, may_send, ids
        )
        plan = None
        if parameters.vertical or began:
            plan = _plan_of_silos(raw, silos, model if began else None, ids)
        report = _job(family, folder, raw, address, out, console, sorted(silos), plan, watcher)
        if parameters.vertical and report["state"] == "SUCCEEDED":
            report = _note_common(out, silos, report)
    except _Interrupted:
        raise click.exceptions.Exit(130) from None
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        family.stop()
        _keep_ledgers(folder, out, silos)  # complete now: an agent's last lines come as it ends
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    if report["state"] == "SUCCEEDED" and report["model"] and shown:
        _evaluate(out, shown, console, ids)
    return report


def _check_validation(
    job: JobParameters, silos: Iterable[str], validation: Mapping[str, str]
) -> None:
    """Refuse validation tables that the job does not use, and a job that lacks some."""
    wanted = set(silos) if job.validates else ()
    if foreign := sorted(set(validation) - set(silos)):
        raise InvalidJob(f"--validation: {foreign[0]} is no silo of the job")
    if validation and not wanted:
        raise InvalidJob(
            "--validation: only a job with validation_tables = true has validation tables"
        )
    if missing := sorted(set(wanted) - set(validation)):
        raise InvalidJob(
            "validation_tables: expected rows of each silo (--validation SILO=FILE), received none "
            f"for {', '.join(missing)}"
        )


def _evaluate(out: Path, tests: dict[str, str], console: Console, ids: Mapping[str, str]) -> None:
    """Write what the report shows of the model's quality."""
    from hedgerow.coordinator.operator.library import evaluation

    try:
        evaluation.keep(out, tests, ids)
    except FederationError as error:
        console.print(f"no evaluation for the report: {error}", markup=False, soft_wrap=True)


def _plan_of_silos(
    spec: bytes, silos: dict[str, str], model: Path | None, ids: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return what the result does not tell: the plan of parties, or with a starting model."""
    from hedgerow.coordinator.operator.library.jobs import plan_here
    from hedgerow.coordinator.operator.run_folder import plan_by_silo

    try:
        return plan_by_silo(plan_here(spec, silos, model=model, ids=ids))
    except FederationError:  # the job itself tells what is wrong with a table
        return None


def _keep_ledgers(folder: Path, out: Path, silos: Iterable[str]) -> None:
    from hedgerow.services.process import ledgers

    for silo in silos:
        ledger = folder / f"state-{silo}" / "ledger.jsonl"
        if ledger.exists():
            ledgers.copy(ledger, out / f"ledger-{silo}.jsonl")


def _note_common(out: Path, silos: Mapping[str, str], report: Mapping[str, Any]) -> dict[str, Any]:
    """Put into report.json how many rows all parties of a vertical job have in common."""
    from hedgerow.coordinator.operator import run_folder
    from hedgerow.coordinator.operator.library import frames

    rows = {silo: frames.read(path, silo, whole=False)[0].num_rows for silo, path in silos.items()}
    parts = [json.loads(part.read_text()) for part in out.glob("silos/*/part.json")]
    if not parts:
        return dict(report)
    common = parts[0]["alignment"]["rows"]
    told = [
        f"{rows[silo] - common:,} of {rows[silo]:,} rows of {silo} are left out: the others lack "
        "their ids"
        for silo in sorted(rows)
        if common < rows[silo] / 2
    ]
    alignment = {"common": common, "rows": rows}
    return run_folder.amend(out, alignment=alignment, warnings=[*report["warnings"], *told])


def _bring_parts(model: Path, job: JobParameters, folder: Path, silos: dict[str, str]) -> None:
    """Give each agent its party's part of an earlier run, under the name the job has for it."""
    layout = job.strategy.layout
    name = layout.starts_from(job.parameters) if isinstance(layout, Vertical) else ""
    if not name:
        raise InvalidJob("--model: the job starts from no model, set warm_start or predict_from")
    for silo in silos:
        part = model / "silos" / silo / "part.json"
        if not part.is_file():
            raise InvalidJob(f"{model}: there is no part of silo {silo}")
        state = folder / f"state-{silo}"
        for made in (state, state / "jobs", state / "jobs" / name):
            made.mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(part, state / "jobs" / name / "part.json")


@contextlib.contextmanager
def _told(
    watcher: socket.socket | None, cancel: Callable[[], object]
) -> Iterator[Callable[[JobView], None]]:
    """Give a function that tells another process of new rounds, until that one asks to end."""
    if watcher is None:
        yield lambda view: None
        return
    told = 0

    def tell(view: JobView) -> None:
        nonlocal told
        for done in view.rounds:
            if done.round >= told:
                told = done.round + 1
                with contextlib.suppress(OSError):
                    watcher.sendall(json.dumps(asdict(done)).encode() + b"\n")

    def listen() -> None:
        with contextlib.suppress(OSError, FederationError):
            if watcher.recv(64):
                cancel()

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield tell
    finally:
        with contextlib.suppress(OSError):
            watcher.shutdown(socket.SHUT_RDWR)  # forked processes hold it, too


class _Guard:
    """Tells of processes that end, and ends the job when too few agents are left for it."""

    def __init__(self, family: Family, silos: list[str], min_silos: int, console: Console) -> None:
        self._family, self._silos, self._min = family, silos, min_silos
        self._console = console
        self.coordinator_died = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, cancel: Callable[[], object]) -> None:
        """Look every half second; ``cancel`` ends the job."""
        self._thread = threading.Thread(target=self._run, args=(cancel,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self, cancel: Callable[[], object]) -> None:
        while not self._stopped.wait(0.5):
            ended = self._family.dead()
            for name, code in ended.items():
                words = self._family.last_words(name)
                self._console.print(f"{name} ended with code {code}: {words}", markup=False)
            if not ended:
                continue
            alive = sum(f"agent-{silo}" in self._family.members for silo in self._silos)
            if "coordinator" in ended:
                self.coordinator_died = True
                signal.raise_signal(signal.SIGTERM)
                return
            if alive < self._min:
                self._console.print(f"the job needs {self._min} silos, {alive} are left")
                with contextlib.suppress(FederationError):
                    cancel()
                return


def _tests(tests: tuple[str, ...], silos: dict[str, str]) -> tuple[dict[str, str], str]:
    """Tell the parties' own test tables from the federation's."""
    own = [test for test in tests if "=" in test and test.partition("=")[0] in silos]
    common = [test for test in tests if test not in own]
    if len(common) > 1:
        raise InvalidJob(
            f"--test: expected one FILE for all, and one SILO=FILE for each silo, received "
            f"{' and '.join(common)} for all"
        )
    for path in common:
        if "://" not in path and not Path(path).is_file():
            raise InvalidJob(f"--test: no file {path}")
    return parse_pairs(own, "--test"), "".join(common)


def _start(
    family: Family,
    folder: Path,
    silos: dict[str, str],
    test: str,
    own: Mapping[str, Mapping[str, str]],
    n_threads: int,
    models: Mapping[str, str],
    job: JobParameters,
    may_send: Iterable[str],
    ids: Mapping[str, str],
) -> str:
    """Fork all processes and return the coordinator's address."""
    from hedgerow.services.identity.authority import throwaway

    throwaway(folder, sorted(silos), time.time())
    with staying():
        mains = {
            name: importlib.import_module(f"hedgerow.{name}.__main__").main
            for name in ("coordinator", "client_agent", "crypto")
        }
        _warm(job.strategy.name)
    gc.collect()
    gc.freeze()  # or each collection in a process would copy pages that it shares with the others

    def fork(name: str, program: str, config: dict[str, Any]) -> Path:
        ready = folder / f"{name}.ready"
        path = folder / f"{name}.toml"
        path.write_text(_toml({**config, "ready_file": str(ready)}))
        arguments = ["--config", str(path)]
        family.fork(name, lambda: mains[program](arguments, standalone_mode=False))
        return ready

    def absolute(path: str) -> str:
        return path if "://" in path else os.path.realpath(path)

    ready = fork(
        "coordinator",
        "coordinator",
        {
            "listen": "127.0.0.1:0",
            "identity": str(folder / "coordinator"),
            "database": f"sqlite:///{folder / 'state.db'}",
            "artefacts": str(folder / "artefacts"),
            "metrics": "127.0.0.1:0",
            "silos": sorted(silos),
            "evaluation": {"test": absolute(test)} if test else {},
            "models": models,
        },
    )
    crypto_ready = {
        silo: fork(
            f"crypto-{silo}",
            "crypto",
            {
                "listen": "127.0.0.1:0",
                "identity": str(folder / "crypto" / silo),
                "silo": silo,
                "state": str(folder / f"keys-{silo}"),
                "metrics": "127.0.0.1:0",
            },
        )
        for silo in sorted(silos)
    }
    address = f"127.0.0.1:{family.wait_for('coordinator', ready)['port']}"
    for silo, path in silos.items():
        port = family.wait_for(f"crypto-{silo}", crypto_ready[silo])["port"]
        config: dict[str, Any] = {
            "coordinator": address,
            "identity": str(folder / "silo" / silo),
            "state": str(folder / f"state-{silo}"),
            "metrics": "127.0.0.1:0",
            "crypto": f"127.0.0.1:{port}",
            "threads": n_threads,
            "calibrate": False,
            "data": {"path": absolute(path), "id": ids.get(silo, "_id")},
            # All silos' tables are on this machine: there is nobody to keep them from. A job that
            # no silo's own policy takes is none to try without a word either.
            "policy": {
                "may_send": [each.value for each in Discloses if each is not Discloses.HASHES]
                + list(may_send),
                "categorical": ["*"],
                "max_bin": 65535,
                "max_categories": 2**31 - 1,
                "min_bin_rows": 1,
                "min_cell": 1,
                "max_ids_ratio": 1e9,
                "max_ids_asked": 1e9,
                "max_common": 1.0,
                "max_close_sums": 100_000,
                "min_changed_rows": 1,
                "missing_codes": "any",
                "max_binnings": 100_000,
                "max_label_binnings": 100_000,
                "min_colluders": 0,
                "start_models": "any",
                "custom_loss": True,
                "strategies": [job.strategy.name],
                "metrics": list(job.metrics),
            },
        }
        for kind, file in own.get(silo, {}).items():
            config[kind] = {"path": absolute(file), "id": ids.get(silo, "_id")}
        fork(f"agent-{silo}", "client_agent", config)
    return address


def _warm(strategy: str) -> None:
    """Import what every process will need, or every silo's, so that forks share it."""
    import numpy as np

    from hedgerow.boosting.engine.sorting import sorted_keys
    from hedgerow.crypto.arithmetic.engine import available_kernels

    halves = strategy_of(strategy).parameters.__module__.rpartition(".")[0]
    rooms: Iterable[pkgutil.ModuleInfo] = ()
    if not STRATEGIES.is_foreign(strategy):
        rooms = pkgutil.iter_modules(importlib.import_module(halves).__path__, f"{halves}.")
    for module in (
        "encodings.idna",
        "grpc._channel",
        "xgboost",
        "pyarrow.compute",
        "pyarrow.parquet",
        "hedgerow.services.rpc.link",
        "hedgerow.boosting.trees.ensemble",
        *(room.name for room in rooms),
    ):
        importlib.import_module(module)
    available_kernels()
    # What the first kernel loads.
    sorted_keys(np.zeros(1, np.float32))


def _toml(table: dict[str, Any]) -> str:
    """Return flat settings with tables of texts as TOML; JSON's scalars are TOML's."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items())]
    return "\n".join(lines) + "\n"


def _job(
    family: Family,
    folder: Path,
    spec: bytes,
    address: str,
    out: Path,
    console: Console,
    silos: list[str],
    plan: dict[str, Any] | None,
    watcher: socket.socket | None,
) -> dict[str, Any]:
    """Submit the job, show it, and write the run folder."""
    from hedgerow.coordinator.operator import run_folder
    from hedgerow.coordinator.operator.library.clients import client_for, fetch
    from hedgerow.coordinator.operator.progress import JobProgress
    from hedgerow.services.wire import job as job_wire

    client = client_for(address, folder / "operator", None)
    job_id = client.create(spec)
    guard = _Guard(family, silos, job_wire.decode(spec).min_silos, console)
    guard.start(lambda: client.cancel(job_id))
    try:
        with (
            JobProgress(console) as progress,
            _told(watcher, lambda: client.cancel(job_id)) as tell,
        ):
            for view in client.watch(job_id):
                progress.show(view)
                tell(view)
        guard.stop()
    except _Interrupted:
        guard.stop()
        if guard.coordinator_died:
            raise FederationError("the coordinator has died") from None
        console.print("cancelling …")
        client.cancel(job_id)
        fetch(client, job_id, out, plan)
        raise
    view = fetch(client, job_id, out, plan)
    unfit = {}
    for silo in silos:
        # An agent keeps what is wrong with a table from the other parties of a vertical job.
        details = [each.detail for each in view.silos if each.name == silo]
        if UNFIT in details or f"{silo}: {UNFIT}" in view.detail:
            said = (
                family.last_words(f"agent-{silo}", f"] {end}") for end in ("failed", "declined")
            )
            why = next((line.partition("why=")[2] for line in said if "why=" in line), UNFIT)
            unfit[silo] = why
            console.print(f"silo {silo}: {why}", markup=False, soft_wrap=True)
        kept = folder / f"state-{silo}" / "jobs" / job_id
        shared = view.model and (kept / view.model).is_file()
        common = {"report.json", *((*view.artefacts, "job.toml") if shared else ())}
        for file in sorted(p for p in kept.glob("*") if p.is_file() and p.name not in common):
            target = out / "silos" / silo / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    return run_folder.amend(out, unfit=unfit) if unfit else run_folder.amend(out)
