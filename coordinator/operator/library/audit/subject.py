"""What an audit is of: a finished run, and tables with labels under its model's schema."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.bagging.participation import rates

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.coordinator.operator.library.frames import Tabular
    from hedgerow.coordinator.operator.library.scoring import Model

Floats = NDArray[np.float64]


class AuditRefused(FederationError):
    """What was asked cannot be audited; says why."""


@dataclass(frozen=True, slots=True)
class Audited:
    """A finished run and the tables it is audited with, under the model's schema."""

    folder: Path
    report: Mapping[str, Any]
    job: JobParameters
    model: Model
    silos: dict[str, Dataset]
    test: Dataset
    test_table: Any
    """The table that ``test`` is from, with its other columns."""
    seed: int = 0

    @property
    def trees_of(self) -> Mapping[str, tuple[int, ...]]:
        """Positions of each silo's trees in a bagging model.

        Raises
        ------
        AuditRefused
            The strategy is another one, or not every silo has trees in every round.
        """
        strategy = self.report["strategy"]
        if strategy != "bagging":
            raise AuditRefused(
                f"the trees of a {strategy} job are of the rows of all silos together: "
                "expected a bagging job, whose trees are of one silo each"
            )
        ensemble = self.model.ensemble
        if self.report.get("warm_start"):
            raise AuditRefused(
                "the run went on from another one's model, whose trees' silos it does not know: "
                "expected a run from nothing"
            )
        names = sorted(silo["name"] for silo in self.report["silos"] if silo["rows"])
        found: dict[str, list[int]] = {name: [] for name in names}
        begun = 0
        ends = ensemble.round_ends
        for r, end in enumerate(ends):
            present = sorted(self.report["rounds"][r]["silos"]) if r < len(self.report["rounds"]) \
                else []  # fmt: skip
            if present != names or (end - begun) % len(names):
                raise AuditRefused(
                    f"round {r + 1} has trees of {', '.join(present) or 'nobody'}: expected trees "
                    f"of all {len(names)} silos in every round"
                )
            each = (end - begun) // len(names)
            for k, name in enumerate(names):
                first, last = begun + k * each, begun + (k + 1) * each
                start = ensemble.steps[first - 1] if first else 0
                found[name] += range(start, ensemble.steps[last - 1])
            begun = end
        return {name: tuple(trees) for name, trees in found.items()}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the run's model file, which an audit is of."""
        return digest_of_run(self.folder)

    @property
    def rates(self) -> dict[str, float]:
        """Learning rate of each silo of a bagging run, all of which take part.

        Raises
        ------
        AuditRefused
            It follows from gains, which shared trees do not have.
        """
        own = self.job.parameters
        assert isinstance(own, Bagging)
        if own.lr_mode == "gain":
            raise AuditRefused(
                'lr_mode "gain" shares the step out by gains, which shared trees do not have: '
                "expected another one"
            )
        rows = {Silo(one["name"]): one["rows"] for one in self.report["silos"] if one["rows"]}
        return {str(k): v for k, v in rates(own.lr_mode, own.step(self.job), rows).items()}

    def share(self, silo: str) -> float:
        """Return a silo's part of all rows, as the coordinator knows it."""
        rows = {one["name"]: one["rows"] for one in self.report["silos"]}
        return float(rows[silo] / sum(rows.values()))

    def added_by(self, trees: tuple[int, ...], rows: Dataset) -> Floats:
        """Return what some trees add to the margins of rows."""
        from hedgerow.coordinator.operator.library.baselines import matrix_of

        own = self.model.ensemble
        part = replace(
            own, trees=tuple(own.trees[k] for k in trees), steps=(), round_ends=(), attributes={}
        )
        n_outputs = own.about.n_outputs * own.about.num_parallel_tree
        part = replace(part, steps=tuple(range(n_outputs, len(trees) + 1, n_outputs)))
        matrix = matrix_of(replace(rows, weight=None, base_margin=None))
        added = part.margins(matrix) - own.base_margins(rows.n_samples)
        return np.asarray(added, dtype=np.float64)


def auditable(folder: Path) -> tuple[Model, JobParameters]:
    """Return the model of a run, and its job; raises AuditRefused for one that has no audit."""
    from hedgerow.coordinator.operator.library import models
    from hedgerow.services.wire import job as job_wire
    from hedgerow.services.wire import job_file

    model = models.load(folder)
    if model.parties:
        raise AuditRefused(
            f"{folder}: expected a horizontal run, received a vertical one, whose model is in "
            "parts that no party has alone"
        )
    job = job_wire.decode(job_file.load(folder / "job.toml"))
    if job.task is Task.RANKING:
        raise AuditRefused(
            "expected a run of classes or numbers, received a ranking: its labels order rows"
        )
    if job.task is Task.SURVIVAL:
        raise AuditRefused(
            "expected a run of classes or numbers, received one of survival: its labels are bounds"
        )
    if len(job.labels) > 1:
        raise AuditRefused(f"expected a run of one label, received one of {len(job.labels)}")
    return model, job


def digest_of_run(folder: Path) -> str:
    """Return the SHA-256 (hex) of the file of a run's model."""
    from hedgerow.coordinator.operator.library import models

    return hashlib.sha256((folder / models.report_of(folder)["model"]).read_bytes()).hexdigest()


def opened(folder: Path, silos: Mapping[str, Tabular], test: Tabular, *, seed: int = 0) -> Audited:
    """Read a run folder and tables with labels.

    Parameters
    ----------
    silos : Mapping
        Tables that silos trained on, by name; one silo's own is enough.
    test : table
        Rows of the same population that no silo trained on.

    Raises
    ------
    FederationError
        The run has no model that all silos share, a silo is none of the run's, or a table cannot
        be used.
    """
    from hedgerow.coordinator.operator.library import frames, models

    model, job = auditable(folder)
    report = models.report_of(folder)
    known = {one["name"]: one["rows"] for one in report["silos"]}
    if not silos:
        raise AuditRefused("expected the table of a silo at least, as NAME=FILE")
    tables = {}
    for name, given in silos.items():
        if name not in known:
            raise AuditRefused(
                f"silo {name}: expected a silo of the run ({', '.join(known)}), received {name!r}"
            )
        tables[name] = labelled(model, *frames.read(given, name, model.names))
    table, where = frames.read(test, "test", model.names)
    return Audited(folder, report, job, model, tables, labelled(model, table, where), table, seed)


def labelled(model: Model, table: Any, where: str) -> Dataset:
    """Return a table under a model's schema; raises DataError where rows have no known labels."""
    rows = model.coded(table, where, model.label)
    if rows.is_empty:
        raise DataError(f"{where}: expected rows with labels, received none")
    if not np.isfinite(rows.labels).all():
        raise DataError(f"{where}: a row of the table has no known label")
    return rows
