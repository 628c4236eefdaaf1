"""Keys of a job chosen by trying them: a grid, random draws, or successive halving.

Every trial is a federation in memory (:mod:`memory`) over the same tables, which are read once.
Each silo holds rows back; trials train on the others and are scored on those, so that test rows
stay unseen. Candidates are scikit-learn's ``ParameterGrid`` or ``ParameterSampler``.

Reveals
-------
The tables are on this machine, so nothing travels. Where a key is chosen by a score, the score of
the chosen trial is slightly too good, and a differentially private job has spent its budget once
in each trial: its guarantee is about the last run alone.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task, merge, stacked
from hedgerow.boosting.errors import FederationError, InvalidJob
from hedgerow.boosting.ports import JobParameters, Result
from hedgerow.boosting.queries import query_starts
from hedgerow.coordinator.operator.library import candidates, frames
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.candidates import ROWS, Candidate, Settings
from hedgerow.coordinator.operator.library.frames import Frame, Tabular
from hedgerow.coordinator.operator.library.jobs import Job, JobLike, nested, plan_tables, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.running import RunFailed
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.wire import job_file

SEARCH_FILE = "search.json"
BEST_FILE = "best.toml"


class Search:
    """A finished search: what was tried, with which scores, and the best job.

    Parameters
    ----------
    folder : path
        Its folder, with ``search.json`` and ``best.toml``.

    Raises
    ------
    FederationError
        The folder is none of a search.
    """

    @checked
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            text = (self.folder / SEARCH_FILE).read_text()
        except OSError as error:
            raise FederationError(f"{folder} is no search: it has no {SEARCH_FILE}") from error
        self.document: dict[str, Any] = json.loads(text)

    @property
    def best(self) -> Job:
        """The job with the best score; train it on all rows."""
        return Job.load(self.folder / BEST_FILE)

    @property
    def score(self) -> float:
        """Its score on the rows that were held back."""
        return float(self.document["best"]["score"])

    @property
    def ranked(self) -> list[dict[str, Any]]:
        """The trials as the document has them, best first; those with less of the resource last."""
        sign = -1.0 if self.document["higher_is_better"] else 1.0

        def place(trial: dict[str, Any]) -> tuple[float, float]:
            score = trial["score"]
            return -trial["share"], math.inf if score is None else sign * score

        return sorted(self.document["trials"], key=place)

    @property
    def trials(self) -> Frame:
        """The trials, best first: a column for each key."""
        tried = self.ranked
        keys = dict.fromkeys(key for trial in tried for key in trial["settings"])
        columns = {key: [_cell(trial["settings"].get(key)) for trial in tried] for key in keys}
        for name in ("share", "score", "rounds", "bytes_up", "bytes_down", "seconds", "detail"):
            columns[name] = [trial[name] for trial in tried]
        return Frame(columns, f"{len(tried)} trials by {self.document['metric']}")

    def __repr__(self) -> str:
        return f"<Search: {len(self.trials)} trials, {self.document['metric']} {self.score:.6g}>"

    def _repr_html_(self) -> str:
        """Return the trials, for notebooks."""
        return self.trials._repr_html_()


@checked
def search(
    job: JobLike,
    silos: Mapping[str, Tabular],
    keys: Mapping[str, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    workers: int = 0,
    planned: Callable[[Mapping[str, Any]], None] = lambda plan: None,
    watch: Callable[[Mapping[str, Any]], None] = lambda trial: None,
    **settings: Any,
) -> Search:
    """Try values of a job's keys over silos' tables of this machine and write the best job.

    Parameters
    ----------
    job : Job, mapping or path
        A job file may have the table ``[search]``; arguments come before it.
    silos : Mapping
        Each silo's table.
    keys : Mapping, optional
        By dotted job key, such as ``"booster.eta"``: a list of values, or
        ``{"low": 0.01, "high": 0.3, "log": True}``.
    out : path, optional
        Folder of the result. The trials that it has of an earlier call, over the same tables, are
        not run again.
    workers : int
        Silos that compute at the same time; 0 for one a core.
    planned : callable
        Called before the first trial with the number of trials and about how many bytes they would
        move in a real federation; those that end early move less.
    watch : callable
        Called with each finished trial.
    **settings
        ``method``, ``trials``, ``metric``, ``holdout``, ``factor``, ``resource``; see
        :class:`Settings`.

    Raises
    ------
    InvalidJob
        A key is unknown, a value or a combination is refused; nothing has run then.
    FederationError
        No trial succeeded, or scikit-learn is not installed.
    """
    base, table = _opened(job)
    found, space = candidates.read({**table, **(keys or {}), **settings})
    run = _Search(base, silos, found, space, workers)
    planned(run.plan)
    folder = Path(tempfile.mkdtemp(prefix="hedgerow-search-")) if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    run.run(folder, watch)
    return Search(folder)


def _opened(job: JobLike) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job file's values, and its ``[search]`` table apart from them."""
    if isinstance(job, str | os.PathLike):
        base = job_file.values(Path(job))
        table = base.pop(job_file.SEARCH, {})
    elif isinstance(job, Mapping):
        base = nested({key: value for key, value in job.items() if key != job_file.SEARCH})
        table = job.get(job_file.SEARCH, {})
    else:
        base, table = tomllib.loads(Job.of(job).toml), {}
    if not isinstance(table, dict):
        raise InvalidJob(f"search: expected a table, received {table!r}")
    return base, table


class _Search:
    """One search; everything that can be refused is refused when it is made."""

    def __init__(
        self,
        base: dict[str, Any],
        silos: Mapping[str, Tabular],
        settings: Settings,
        space: Mapping[str, Any],
        workers: int,
    ) -> None:
        self._base, self._settings, self._workers = base, settings, workers
        seed = Job.from_spec(job_file.of_table(base)).parameters.seed
        self._rows = HeldBack(silos, settings.holdout, seed)
        self._bytes: dict[tuple[bytes, float], tuple[int, int]] = {}
        self._most = self._most_of_resource(space)
        self._candidates = candidates.candidates(settings, space, seed)
        jobs = [self._job(candidate, 1.0) for candidate in self._candidates]
        first = jobs[0].parameters
        if not settings.metric and not first.metrics:
            raise InvalidJob("[search] metric: expected one, for the job has no metrics either")
        self.metric = metrics.canonical(settings.metric, first.task) or first.metrics[0]
        self._higher = metrics.higher_is_better(self.metric)
        self.plan = self._planned()

    def run(self, folder: Path, watch: Callable[[Mapping[str, Any]], None]) -> None:
        """Run the trials that the folder does not have, and write the best job."""
        path, kept = folder / SEARCH_FILE, _kept(folder / SEARCH_FILE)
        done: list[dict[str, Any]] = []
        ranked = list(range(len(self._candidates)))

        def write() -> None:
            scored = [t for t in done if t["score"] is not None]
            most = max((t["share"] for t in scored), default=0.0)
            finals = [t for t in scored if t["share"] == most]
            best = min(finals, key=lambda t: self._loss(t["score"]), default=None)
            now = {trial["digest"] for trial in done}
            others = [trial for digest, trial in kept.items() if digest not in now]
            document = {
                "schema": 1, "metric": self.metric, "higher_is_better": self._higher,
                "method": self._settings.method,
                "holdout": self._settings.holdout, "planned": self.plan, "best": best,
                "trials": done, "earlier": others,
            }  # fmt: skip
            write_atomically(path, json.dumps(document, indent=1).encode(), 0o644)

        for n, share in self._settings.rungs(len(self._candidates)):
            losses: dict[int, float] = {}
            for k in ranked[:n]:
                job = self._job(self._candidates[k], share)
                digest = self._digest(job, share)
                trial = kept.get(digest)
                if trial is None or trial["score"] is None:
                    trial = self._trial(job, share)
                trial |= {"digest": digest, "settings": self._candidates[k], "share": share}
                done.append(trial)
                losses[k] = self._loss(trial["score"])
                write()
                watch(trial)
            ranked = sorted((k for k in losses if math.isfinite(losses[k])), key=losses.__getitem__)
            if not ranked:
                raise FederationError(f"no trial succeeded: {done[-1]['detail']}")
        best = json.loads(path.read_text())["best"]
        self._made(best["settings"]).save(folder / BEST_FILE)

    def _loss(self, score: float | None) -> float:
        if score is None:
            return math.inf
        return -score if self._higher else score

    def _made(self, candidate: Candidate) -> Job:
        """Return the job of a candidate, as it is to be run on all rows."""
        return Job.from_spec(job_file.of_table(_with(self._base, candidate)))

    def _job(self, candidate: Candidate, share: float) -> Job:
        """Return the job of a trial."""
        values = _with(self._base, candidate)
        if self._most is not None:
            amount = max(1, round(self._most * share))
            values = _with(values, {self._settings.resource: amount})
        asked, named = self._settings.metric, values.get("metrics", [])
        if asked and asked not in named:
            values = {**values, "metrics": [*named, asked]}
        return self._rows.job(Job.from_spec(job_file.of_table(values)))

    def _most_of_resource(self, space: Mapping[str, Any]) -> int | None:
        """Return the job's value of the key that halving shares out; None where it is rows."""
        key = self._settings.resource
        if self._settings.method != "halving" or key == ROWS:
            return None
        value: Any = self._base
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if key in space or not isinstance(value, int) or isinstance(value, bool):
            raise InvalidJob(
                f"[search] resource: expected {ROWS}, or a key that has a whole number in the job "
                f"and is not tried itself, received {key!r}"
            )
        return value

    def _rows_of(self, share: float) -> float:
        return share if self._most is None else 1.0

    def _planned(self) -> dict[str, Any]:
        """Return the trials, and about how many bytes they would move between organisations."""
        trials, up, down = 0, 0, 0
        for n, share in self._settings.rungs(len(self._candidates)):
            moved = [self._moved(self._job(one, share), share) for one in self._candidates]
            dearest = sorted(moved, key=sum, reverse=True)[:n]
            trials += n
            up += sum(own[0] for own in dearest)
            down += sum(own[1] for own in dearest)
        return {"trials": trials, "bytes_up": up, "bytes_down": down}

    def _moved(self, job: Job, share: float) -> tuple[int, int]:
        trial = job.spec, self._rows_of(share)
        if trial not in self._bytes:
            parameters = job.parameters
            steps = plan_tables(parameters, self._rows.training(parameters, trial[1])).steps
            self._bytes[trial] = sum(s.bytes_up for s in steps), sum(s.bytes_down for s in steps)
        return self._bytes[trial]

    def _digest(self, job: Job, share: float) -> str:
        """Name a trial by all that its score depends on."""
        facts = [job.spec.hex(), self._rows_of(share), self._settings.holdout,
                 self._rows.digest(job.parameters)]  # fmt: skip
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _trial(self, job: Job, share: float) -> dict[str, Any]:
        parameters, up_down = job.parameters, self._moved(job, share)
        training = self._rows.training(parameters, self._rows_of(share))
        shared, own = self._rows.held(parameters)
        conditions = Conditions(crypto=False, codecs=False, workers=self._workers)
        found = {"score": None, "rounds": 0, "seconds": 0.0, "detail": "",
                 "bytes_up": up_down[0], "bytes_down": up_down[1]}  # fmt: skip
        try:
            view = federate(job, training, conditions, shared, own).view
        except RunFailed as error:
            return found | {"detail": str(error)}
        scored = view.rounds[min(view.best_round, len(view.rounds) - 1)].metrics
        score = scored.get("test", {}).get(self.metric, math.nan)
        found |= {
            "rounds": len(view.rounds),
            "seconds": round(sum(r.seconds for r in view.rounds), 3),
        }
        if not math.isfinite(score):
            return found | {"detail": f"{self.metric} of the rows held back is not defined"}
        return found | {"score": score}


class HeldBack:
    """The silos' tables, read once, each cut into rows to train on and rows to score.

    Every row has a number from 0 to 1, drawn by the job's seed: of a vertical job from the row's
    identifier, so that all parties agree. Rows below the share are held back; a smaller share of
    the others begins with the largest numbers, so that halving adds rows.

    Parameters
    ----------
    stratified : bool
        Whether the rows of each class are numbered on their own.
    """

    def __init__(
        self, silos: Mapping[str, Tabular], holdout: float, seed: int, *, stratified: bool = False
    ) -> None:
        self._arrow = {name: frames.read(table, name) for name, table in silos.items()}
        self._holdout, self._seed, self._stratified = holdout, seed, stratified
        self._turn = 0.0
        self._tables: dict[object, dict[str, tuple[Dataset, NDArray[np.float64]]]] = {}
        self._cut: dict[object, dict[str, Dataset]] = {}
        self._digests: dict[object, str] = {}

    def turned(self, by: float) -> HeldBack:
        """Return the same tables, of which rows from the number ``by`` on are held back."""
        other = copy.copy(self)
        other._turn, other._cut = by, {}
        return other

    def job(self, job: Job) -> Job:
        """Return the job for exactly these silos."""
        return job.on(self._arrow, has_test=not _scored_in_silos(job.parameters))

    def training(self, job: JobParameters, share: float) -> dict[str, Dataset]:
        """Return each silo's rows to train on."""
        least = 1.0 - (1.0 - self._holdout) * share
        return self._where((share,), job, lambda order: order >= least - 1e-12)

    def held(self, job: JobParameters) -> tuple[Dataset | None, dict[str, Dataset]]:
        """Return the rows to score: of all silos together, or each silo's own."""
        own = self.held_in_silos(job)
        if _scored_in_silos(job):
            return None, own
        return self.together(job, own), {}

    def held_in_silos(self, job: JobParameters) -> dict[str, Dataset]:
        """Return each silo's rows that are held back."""
        return self._where((), job, lambda order: order < self._holdout - 1e-12)

    def together(self, job: JobParameters, own: Mapping[str, Dataset]) -> Dataset:
        """Return rows of all silos as one table."""
        key = (*_reading(job), "together", *map(id, own.values()))
        if key not in self._cut:
            empty = {name for name, table in own.items() if table.is_empty}
            schema = merge({n: t.schema for n, t in own.items()}, empty, job.columns.positive)
            self._cut[key] = {"": stacked(own.values(), schema)}
        return self._cut[key][""]

    def digest(self, job: JobParameters) -> str:
        """Return a digest of all tables as the job reads them, and of how they are cut."""
        key = _reading(job)
        if key not in self._digests:
            found = hashlib.sha256(repr((self._seed, sorted(self._arrow))).encode())
            for name in sorted(self._arrow):
                table, order = self._read(job)[name]
                found.update(table.schema.digest.encode())
                y = None if table.y is None else table.labels
                for values in (table.X, y, table.weight, order):
                    found.update(b"-" if values is None else np.ascontiguousarray(values).data)
            self._digests[key] = found.hexdigest()
        return self._digests[key]

    def _where(
        self,
        what: tuple[object, ...],
        job: JobParameters,
        chosen: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
    ) -> dict[str, Dataset]:
        key = (*_reading(job), *what)
        if key not in self._cut:
            self._cut[key] = {
                name: table.take(np.flatnonzero(chosen(self._turned(order))))
                for name, (table, order) in self._read(job).items()
            }
        return self._cut[key]

    def _turned(self, order: NDArray[np.float64]) -> NDArray[np.float64]:
        return (order - self._turn + 2e-12) % 1.0 if self._turn else order

    def _read(self, job: JobParameters) -> dict[str, tuple[Dataset, NDArray[np.float64]]]:
        key = _reading(job)
        if key not in self._tables:
            made = {}
            for name, (arrow, _) in self._arrow.items():
                table = table_of(job, name, arrow)
                made[name] = replace(table, features=table.X), self._order(name, table)
            self._tables[key] = made
        return self._tables[key]

    def _order(self, name: str, table: Dataset) -> NDArray[np.float64]:
        if table.ids is None:
            rng = np.random.default_rng([self._seed, *name.encode()])
            if table.schema.task is Task.RANKING:  # whole queries
                sizes = np.diff(query_starts(table.labels[:, 1]))
                drawn = (rng.permutation(len(sizes)) + 0.5) / max(len(sizes), 1)
                return np.asarray(np.repeat(drawn, sizes))
            order = np.asarray((rng.permutation(table.n_samples) + 0.5) / max(table.n_samples, 1))
            if self._stratified and table.schema.task.of_classes:
                first = table.labels if table.labels.ndim == 1 else table.labels[:, 0]
                for label in np.unique(first):
                    own = np.flatnonzero(first == label)
                    order[own] = (order[own].argsort().argsort() + 0.5) / len(own)
            return order
        salt = self._seed.to_bytes(8, "little")
        digests = b"".join(
            hashlib.blake2b(str(one).encode(), digest_size=8, key=salt).digest()
            for one in table.ids
        )
        return np.frombuffer(digests, np.uint64) / 2.0**64


def _reading(job: JobParameters) -> tuple[object, ...]:
    """Return all of a job that its data set depends on."""
    return job.label, job.task, job.features, job.classes, job.objective, job.columns, job.active


def _scored_in_silos(job: JobParameters) -> bool:
    return job.vertical or job.strategy.result is Result.PERSONAL


def _with(base: dict[str, Any], candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job file's values with others at some dotted keys."""
    values = copy.deepcopy(base)
    for key, value in candidate.items():
        *tables, last = key.split(".")
        inner = values
        for name in tables:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise InvalidJob(f"[search] {key}: {name} is no table of the job")
        inner[last] = value
    return values


def _kept(path: Path) -> dict[str, dict[str, Any]]:
    """Return the trials of an earlier, perhaps interrupted search by digest."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text())
        return {t["digest"]: t for t in (*document["earlier"], *document["trials"])}
    except (ValueError, KeyError, TypeError):
        raise FederationError(
            f"{path} is not the file of a search; remove it, or name another folder"
        ) from None


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value)
