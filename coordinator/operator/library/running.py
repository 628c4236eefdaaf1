"""Runs: a job on this machine, and what a finished one left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hedgerow.boosting.errors import DataError, DataWarning, FederationError, ResultWarning
from hedgerow.boosting.job import is_feature
from hedgerow.coordinator.operator.library import frames
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.frames import Frame, Tabular
from hedgerow.coordinator.operator.library.jobs import Job, JobLike
from hedgerow.services.wire.job_view import FinishedRound, Score

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.coordinator.operator.drifting import ColumnDrift
    from hedgerow.coordinator.operator.library.score_card import ScoreCard
    from hedgerow.coordinator.operator.library.scoring import Model


on_end: list[Callable[[Run], object]] = []
"""Called with each run of this process when it ends (:func:`hedgerow.mlflow.autolog`)."""


class RunFailed(FederationError):
    """A job that did not succeed; ``run`` is what it left."""

    def __init__(self, message: str, run: Run | None = None) -> None:
        super().__init__(message)
        self.run = run


class Run:
    """A finished job: scores, bytes, model.

    Parameters
    ----------
    folder : path
        Its run folder.
    temporary : bool
        Whether the folder goes when this object does.

    Raises
    ------
    FederationError
        The folder is none of a run.
    """

    @checked
    def __init__(self, folder: str | os.PathLike[str], *, temporary: bool = False) -> None:
        from hedgerow.coordinator.operator.library.models import report_of

        self.folder = Path(folder)
        self.document: dict[str, Any] = report_of(self.folder)
        if temporary:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @classmethod
    def ended(cls, folder: Path, *, temporary: bool, shown: bool = False) -> Run:
        """Return the run of a job that this process has waited for, and tell ``on_end`` of it.

        What is unusual in it is warned of where it was not ``shown``.
        """
        run = cls(folder, temporary=temporary)
        for told in () if shown else run.document.get("warnings", ()):
            warnings.warn(told, ResultWarning, stacklevel=4)
        for tell in on_end:
            tell(run)
        return run

    def complete(self) -> Run:
        """Return this run; raises :class:`RunFailed` where it lacks what its job asked for."""
        if self.document.get("lacks"):
            raise RunFailed("; ".join(self.document["warnings"]), self)
        return self

    def __fspath__(self) -> str:
        """Return the folder's path, so that a run is taken wherever its folder is."""
        return str(self.folder)

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.document.get("name") or self.document["strategy"])

    @property
    def state(self) -> str:
        """``SUCCEEDED``, ``FAILED`` or ``CANCELLED``."""
        return str(self.document["state"])

    @property
    def job(self) -> Job:
        """The job as it ran."""
        return Job.load(self.folder / "job.toml")

    @property
    def metrics(self) -> Frame:
        """Scores by round: a column for each data set and metric, such as ``test.auc``."""
        rounds = self.document["rounds"]
        scored = dict.fromkeys(
            (data, name)
            for each in rounds
            for data, scores in sorted(each["metrics"].items())
            for name in scores
        )
        columns = {key: [each[key] for each in rounds] for key in ("round", "seconds")}
        for data, name in scored:
            columns[f"{data}.{name}"] = [each["metrics"].get(data, {}).get(name) for each in rounds]
        for key in ("bytes_up", "bytes_down"):
            columns[key] = [each[key] for each in rounds]
        return Frame(columns, f"{self.name}: rounds")

    @property
    def plan(self) -> Frame:
        """What one silo was expected to move over the whole job, by step."""
        steps = (self.document.get("plan") or {}).get("steps", {})
        columns: dict[str, list[Any]] = {"step": list(steps)}
        for key in ("exchanges", "up", "down"):
            columns[key] = [step[key] for step in steps.values()]
        return Frame(columns, f"{self.name}: plan of one silo")

    @property
    def bytes(self) -> Frame:
        """What each silo moved, by step; ``up`` is from the silo."""
        moved = [
            {"silo": silo, "step": step, **traffic}
            for silo, own in self.document["bytes"]["by_silo"].items()
            for step, traffic in own["by_step"].items()
        ]
        names = ("silo", "step", "calls", "messages", "up", "down")
        return Frame({n: [row[n] for row in moved] for n in names}, "bytes moved")

    @property
    def model(self) -> Model:
        """The model that all silos have in common.

        Raises
        ------
        FederationError
            There is none: each silo has its own (see :attr:`models`), or the run has failed.
        """
        from hedgerow.coordinator.operator.library.models import load

        return load(self.folder)

    @property
    def statistics(self) -> dict[str, Any]:
        """The statistics of a job of strategy ``explore``; raises DataError of another one."""
        from hedgerow.boosting.selection import statistics_of

        return statistics_of(self.folder)

    def drift(self, table: Any, beside: Any = None) -> Frame:
        """Return how far a table's rows are from those of before, by column.

        Parameters
        ----------
        table : frame, Arrow table, mapping of arrays or path
        beside : table, path or dict, optional
            Of a run with a model, the rows of before: a table, such as the silo's own that the
            model was trained on, what :meth:`reference` returned, or the folder of an ``explore``
            job's run. An ``explore`` job has counted them itself.

        Returns
        -------
        Frame
            A row for each column: ``psi``, the population stability index; ``by_chance``, what it
            stays below for two samples of one population, 95 of 100 times; ``ks``; ``cell``, whose
            share has changed most, ``then`` and ``now``; ``unknown``, rows of new categories. Of a
            model those columns that it uses, by its own bins, and ``(score)``.

        Raises
        ------
        DataError
            Nothing to compare with, or the table lacks a column.
        """
        from hedgerow.coordinator.operator import drifting

        rows = drifting.document(self.drifted(table, "table", beside), 1.0)["columns"]
        return Frame({name: [row[name] for row in rows] for name in rows[0]}, "drift")

    def drifted(self, table: Any, what: str, beside: Any = None) -> tuple[ColumnDrift, ...]:
        """Return what :meth:`drift` does of a table of this name, as objects."""
        from hedgerow.coordinator.operator import drifting, exploring
        from hedgerow.coordinator.operator.library import reference
        from hedgerow.services.wire import job as job_wire

        if self.document["strategy"] != "explore":
            if beside is None:
                raise DataError(drifting.NOTHING_BESIDE)
            told = reference.beside(self.model, beside)
            return reference.drift(self.model, told, table, what)
        if beside is not None:
            raise DataError("beside: expected none, for an explore job has counts itself")
        statistics, spec = exploring.read(self.folder)
        arrow, where = frames.read(table, what)
        rows = drifting.rows_of(arrow, job_wire.decode(spec), where)
        return drifting.drift(statistics, rows, where)

    def reference(self, table: Any) -> dict[str, Any]:
        """Return a table's counts by the model's bins, to compare later ones with (:meth:`drift`).

        ``hedgerow reference`` writes them as a file. They are counts of these rows, small ones
        too: they stay with whom the table is of.
        """
        from hedgerow.coordinator.operator.library import reference

        return reference.reference(self.model, reference.rows_of(self.model, table, "table"))

    @property
    def models(self) -> dict[str, Model]:
        """Each silo's own model, where the strategy makes one for each; else nothing."""
        from hedgerow.coordinator.operator.library.models import load, owners

        return {silo: load(self.folder, silo) for silo in owners(self.folder)}

    def score_card(
        self, points_to_double: float = 20.0, base: float = 600.0, odds: float = 1.0
    ) -> ScoreCard:
        """Return the model as points by column and bin; see ``Model.score_card``."""
        return self.model.score_card(points_to_double, base, odds)

    def verify(self, ca: str | os.PathLike[str], ledgers: Mapping[str, Any] | None = None) -> Frame:
        """Return what is right, wrong or missing of this run beside what its silos have signed.

        Parameters
        ----------
        ca : path
            The federation's CA certificates, ``ca.crt``.
        ledgers : mapping, optional
            By silo, the path of its ledger, which must have the line that its statement ends with.

        Returns
        -------
        Frame
            A row for each part: ``part``, ``state`` and what is to be ``said`` of it.
        """
        from hedgerow.coordinator.operator.verifying import findings
        from hedgerow.services.identity.certificates import read

        files = {silo: Path(path) for silo, path in (ledgers or {}).items()}
        found = [asdict(one) for one in findings(self.folder, read(Path(ca)), files)]
        return Frame({name: [one[name] for one in found] for name in found[0]}, "verify")

    def report(self, out: str | os.PathLike[str] | None = None, title: str = "") -> Path:
        """Write the report as one HTML file and return its path; ``report.html`` by default."""
        from hedgerow.coordinator.operator.report import page_of
        from hedgerow.crypto.durable import write_atomically

        target = Path(out) if out is not None else self.folder / "report.html"
        write_atomically(target, page_of((self.folder,), title).encode(), mode=0o644)
        return target

    def retraining(self, *, first: int | None = None, without: str = "") -> Job:
        """Return the job that trains the model again without rows or a silo, as `hedgerow retrain`.

        It goes on from what was trained before they mattered, with ``model=run``.

        Parameters
        ----------
        first : int, optional
            Round, from 1, in which rows first mattered that are gone from their table now.
        without : str
            Name of the silo, in place of ``first``.
        """
        from hedgerow.coordinator.operator.library.retraining import retraining

        found = retraining(self.folder, first=first, without=without)
        for change in found.changes:
            warnings.warn(change, DataWarning, stacklevel=2)
        return found.job

    def audit(
        self,
        silos: Mapping[str, Tabular] | None = None,
        test: Tabular | None = None,
        limits: Mapping[str, float] | None = None,
        *,
        group: Iterable[str] = (),
        explored: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Audit the model, write ``audit.json`` and return it, as ``hedgerow audit`` does.

        Parameters
        ----------
        silos : Mapping
            Tables that silos trained on; one silo's own is enough.
        test : table
            Rows with labels that no silo trained on.
        limits : Mapping, optional
            Such as ``{"membership_auc_max": 0.55}``; ``passed`` tells whether all hold.
        group : iterable of str
            Columns of ``test`` whose groups are told apart, such as sex.
        explored : Exploration or path, optional
            Of all silos' :meth:`group_table`, for groups of all silos' rows; ``silos`` and ``test``
            may be left out then.
        """
        from hedgerow.coordinator.operator.library.audit import audit

        return audit(
            self.folder, silos or {}, test, group=group, explored=explored, limits=limits or {}
        )

    def group_table(self, test: Tabular, group: Iterable[str]) -> Any:
        """Return a silo's table of predictions by group, for an explore job over all silos.

        Parameters
        ----------
        test : table
            Rows with labels, best such as no silo trained on.
        group : iterable of str
            Columns of the table, such as sex; ``COLUMN=A,B`` names the groups of one that is no
            text feature of the model.

        Returns
        -------
        pyarrow.Table
            See docs/audit.md.
        """
        from hedgerow.coordinator.operator.library.audit.explored import group_table

        return group_table(self.folder, test, group)

    def summary(self) -> str:
        """Return the last scores and what was moved, as the command line closes with."""
        from hedgerow.coordinator.operator.progress import summary

        return "\n".join(summary(self.document))

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.state.lower()}, {self.folder}>"

    def _repr_html_(self) -> str:
        """Return summary and scores, for notebooks."""
        lines = "<br>".join(escape(line) for line in self.summary().splitlines())
        return f"<p><b>{escape(self.name)}</b> {lines}</p>{self.metrics._repr_html_()}"


@checked
def local(
    job: JobLike,
    silos: Mapping[str, Tabular],
    test: Tabular | Mapping[str, Tabular] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    threads: int = 0,
    model: str | os.PathLike[str] | None = None,
    validation: Mapping[str, Tabular] | None = None,
    may_send: Iterable[str] = (),
    ids: Mapping[str, str] | None = None,
    quiet: bool = False,
    watch: Callable[[FinishedRound], object] | None = None,
) -> Run:
    """Run a job on this machine as ``hedgerow local`` does: real processes, mTLS, every byte.

    Parameters
    ----------
    job : Job, mapping or path
    silos : Mapping
        Each silo's table: a path, or a frame of any library. Frames are written to a temporary
        folder that only this user can read.
    test : table, optional
        Evaluation rows; of a vertical job a table for each party.
    out : path, optional
        Run folder to write. A temporary one, which goes with the run, where it is not given.
    overwrite : bool
        Whether the result of an earlier run in the folder may go; it is refused if not.
    threads : int
        Of each silo's training; 0 shares the cores out.
    model : Run or path, optional
        The run whose model the job goes on from; of a vertical job the one that ``warm_start`` or
        ``predict_from`` means.
    validation : Mapping, optional
        Of a job with ``validation_tables``, each silo's table of validation rows.
    may_send : iterable of str
        ``("hashes",)`` for ``simfl``, whose silos send hashes of every row in clear.
    ids : Mapping, optional
        Of a vertical job, by party, the column that names its rows where that is not ``_id``.
    quiet : bool
        Whether to print no progress.
    watch : callable, optional
        Called with each finished round, which has ``round`` (from zero), ``seconds``, ``metrics``
        by data set and name, ``bytes_up``, ``bytes_down`` and ``silos``. Where it returns true,
        the job is cancelled, and the run comes back without a model, in the state CANCELLED.

    Raises
    ------
    InvalidJob
        The job cannot run, or not with these silos.
    RunFailed
        The job did not succeed, and ``watch`` did not stop it; or it lacks an interval that it
        asked for.
    """
    found = Job.of(job)
    by_party = _by_party(test, silos)
    found.on(silos, has_test=test is not None and by_party is None).parameters.check_tables()
    silos = {
        name: table if isinstance(table, str | os.PathLike) else frames.arrow_of(table, name)
        for name, table in silos.items()
    }
    folder = Path(tempfile.mkdtemp(prefix="hedgerow-run-")) if out is None else Path(out)
    with tempfile.TemporaryDirectory(prefix="hedgerow-data-") as data:
        inputs = Path(data)
        arguments = [
            f"--silo={name}={frames.as_file(table, inputs, name)}" for name, table in silos.items()
        ]
        _warn_of_integers(found.parameters, silos, set((ids or {}).values()))
        if by_party is not None:
            arguments += [
                f"--test={name}={frames.as_file(table, inputs, f'test-{name}')}"
                for name, table in by_party.items()
            ]
        elif test is not None:
            shared = frames.as_file(cast("Tabular", test), inputs, "test")
            arguments.append(f"--test={shared}")
        arguments += [
            f"--validation={name}={frames.as_file(table, inputs, f'validation-{name}')}"
            for name, table in (validation or {}).items()
        ]
        if model is not None:
            arguments.append(f"--model={os.fspath(model)}")
        arguments += [f"--may-send={one}" for one in may_send]
        arguments += [f"--id={party}={column}" for party, column in (ids or {}).items()]
        if overwrite:
            arguments.append("--overwrite")
        found.save(inputs / "job.toml")
        stopped: list[FinishedRound] = []

        def passed_on(done: FinishedRound) -> bool:
            assert watch is not None
            if not stopped and watch(done):
                stopped.append(done)
                return True
            return False

        code, said = in_own_process(
            inputs / "job.toml",
            arguments,
            folder,
            threads,
            quiet=quiet,
            watch=None if watch is None else passed_on,
        )
    if code not in (0, 1) or error_of(said) or not (folder / "report.json").is_file():
        raise RunFailed((error_of(said) or said).removeprefix("--"))
    run = Run.ended(folder, temporary=out is None, shown=not quiet)
    if code and not (stopped and run.state == "CANCELLED"):
        run.complete()
        unfit = run.document.get("unfit", {}).items()  # what an agent keeps from other parties
        why = "; ".join(f"{silo}: {why}" for silo, why in unfit) or str(run.document["detail"])
        raise RunFailed(why or run.state.lower(), run)
    return run


def error_of(said: str) -> str:
    """Return the error in the last words of a command under ``--json``; empty: they are none."""
    try:
        return str(json.loads(said)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _by_party(test: object, silos: Mapping[str, Tabular]) -> dict[str, Tabular] | None:
    """Return the parties' test tables where a test is one for each, and not one table."""
    if isinstance(test, Mapping) and test and set(test) <= set(silos):
        return dict(test)
    return None


def _warn_of_integers(job: JobParameters, silos: Mapping[str, Tabular], ids: set[str]) -> None:
    """Warn of what float32 makes of large integers in tables at hand; of files `check` does."""
    from hedgerow.boosting.tables.prepared import PreparedTable

    for name, table in silos.items():
        if not isinstance(table, str | os.PathLike):
            own = PreparedTable(table, name, job.columns, is_whole=False)
            names = [n for n in own.column_names if is_feature(n, job.label) and n not in ids]
            features = [n for n in names if not job.features or n in job.features]
            frames.warn_of_integers(own, name, features)


def in_own_process(
    job: Path,
    arguments: Iterable[str],
    out: Path,
    threads: int,
    *,
    quiet: bool = False,
    watch: Callable[[FinishedRound], bool] | None = None,
) -> tuple[int, str]:
    """Run ``hedgerow local`` in a process of its own; return its exit code and last words.

    It forks coordinator and agents, which a process with threads, such as a notebook's, must not.
    """
    asked = ["local", str(job), *arguments, f"--out={out}", f"--threads={threads}"]
    return command_in_process(asked, quiet=quiet, watch=watch)


def command_in_process(
    arguments: Iterable[str],
    *,
    quiet: bool,
    under_way: set[subprocess.Popen[str]] | None = None,
    watch: Callable[[FinishedRound], bool] | None = None,
) -> tuple[int, str]:
    """Run a command of ``hedgerow`` in a process of its own; return exit code and last words.

    While it runs, the process is in ``under_way``. With ``watch``, a command that tells finished
    rounds is asked to end once it returns true.
    """
    from hedgerow.boosting.tables.delimited import csv_options

    command = [sys.executable, "-m", "hedgerow", *arguments, *csv_options(), "--json"]
    last = ""
    # Notebooks force colours, with which rich would draw its bar again on every line.
    environment = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if watch is not None:
            command.append(f"--rounds-to={theirs.fileno()}")
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
            pass_fds=() if watch is None else (theirs.fileno(),),
        ) as process:  # fmt: skip
            theirs.close()
            under_way = under_way if under_way is not None else set()
            under_way.add(process)

            def show() -> None:
                nonlocal last
                assert process.stderr is not None
                for line in process.stderr:
                    last = line.strip() or last
                    if not quiet:
                        print(line, end="", file=sys.stderr)

            try:
                if watch is None:
                    show()
                    return process.wait(), last
                shown = threading.Thread(target=show, daemon=True)
                shown.start()
                _watch(ours, watch)
                shown.join()
                return process.wait(), last
            except BaseException:
                process.send_signal(signal.SIGINT)
                process.wait()
                raise
            finally:
                under_way.discard(process)


def _watch(channel: socket.socket, watch: Callable[[FinishedRound], bool]) -> None:
    """Call ``watch`` with the rounds that a command tells, until it has told all of them."""
    with channel.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            told = json.loads(line)
            told |= {"scores": tuple(Score(**one) for one in told["scores"]),
                     "silos": tuple(told["silos"])}  # fmt: skip
            if watch(FinishedRound(**told)):
                with suppress(OSError):  # it has ended meanwhile
                    stream.write("stop\n")
                    stream.flush()
