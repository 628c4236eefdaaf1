"""Explore jobs in Python: statistics of all silos' tables together, as frames."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from typing import Any, cast

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.selection import SELECT, Selection
from hedgerow.coordinator.operator import drifting, exploring
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.frames import Frame, Tabular
from hedgerow.coordinator.operator.library.jobs import Job
from hedgerow.coordinator.operator.library.running import Run, local

_QUANTILES = {"5 %": "0.05", "25 %": "0.25", "50 %": "0.5", "75 %": "0.75", "95 %": "0.95"}


class Exploration:
    """The statistics of a finished explore job as frames; what is not told is None, or no row.

    Parameters
    ----------
    run : Run or path
        Its run folder.

    Attributes
    ----------
    statistics : dict
        All of it, as in ``statistics.json``.

    Raises
    ------
    FederationError
        The folder is none of such a run.
    """

    def __init__(self, run: Run | str | os.PathLike[str]) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        self.statistics = self.run.statistics

    def __fspath__(self) -> str:
        """Return the folder's path, so that it is taken wherever a run is."""
        return str(self.run.folder)

    @property
    def columns(self) -> Frame:
        """A row for each column, the label first where it is a number."""
        rows = []
        for one in self._all_columns():
            told = one.get("quantiles", {})
            near = {key: told.get(at, {}).get("value") for key, at in _QUANTILES.items()}
            rows.append({
                **{key: one[key] for key in ("name", "kind", "rows", "missing")},
                **{key: one.get(key) for key in ("distinct", "distinct_at_least")},
                **{key: one.get(key) for key in ("mean", "deviation", "skewness")}, **near,
                "iv": one.get("against_label", {}).get("iv"),
            })  # fmt: skip
        return _framed(rows, f"{self.statistics['rows']:,} rows of all silos")

    @property
    def cells(self) -> Frame:
        """Rows of each column by bin or category, ``share`` of all rows."""
        n = self.statistics["rows"]
        rows = [
            {"column": one["name"], "cell": cell["name"], "rows": cell["rows"],
             "share": cell["rows"] / n}
            for one in self._all_columns() for cell in one["cells"]
        ]  # fmt: skip
        return _framed(rows, "cells", "column", "cell", "rows", "share")

    @property
    def correlations(self) -> Frame:
        """Pairs of columns, those that go most with each other first.

        ``kind`` is ``pearson``, ``spearman`` or ``cramers_v``.
        """
        found = self.statistics
        rows = [
            {"first": a, "second": b, "kind": kind, "r": r}
            for kind in ("pearson", "spearman", "cramers_v")
            for a, row in found[kind].items() for b, r in row.items() if r is not None
        ]  # fmt: skip
        rows.sort(key=lambda row: -abs(cast("float", row["r"])))
        return _framed(rows, "correlations", "first", "second", "kind", "r")

    @property
    def information_value(self) -> Frame:
        """Columns by how far the label's classes differ over their bins, those most first."""
        keys = ("iv", "chi_square", "degrees_of_freedom", "gain")
        rows = [
            {"column": one["name"], **{key: own.get(key) for key in keys},
             "monotone_iv": own.get("monotone", {}).get("iv")}
            for one in self.statistics["columns"] if (own := one.get("against_label"))
        ]  # fmt: skip
        rows.sort(key=lambda row: -cast("float", row["iv"]))
        return _framed(rows, "information value", "column", *keys, "monotone_iv")

    @property
    def groups(self) -> Frame:
        """Rows by class in each group of a column's cells, and its weight of evidence."""
        rows = [
            {"column": one["name"], "group": group["name"], "rows": group["rows"],
             **{f"rows of {name}": n for name, n in group["by_class"].items()},
             "weight_of_evidence": group.get("weight_of_evidence")}
            for one in self.statistics["columns"]
            for group in one.get("against_label", {}).get("groups", ())
        ]  # fmt: skip
        return _framed(rows, "rows by class", "column", "group", "rows", "weight_of_evidence")

    @property
    def spellings(self) -> Frame:
        """Names of categories that may be the same, and what to do about them."""
        rows = [
            {"where": one["where"], "names": ", ".join(map(repr, one["names"])),
             "differ": one["differ"], "proposal": exploring.proposal(one)}
            for one in self.statistics.get("spellings", ())
        ]  # fmt: skip
        return _framed(rows, "may be the same", "where", "names", "differ", "proposal")

    def differences(self, silos: Mapping[str, Tabular], *, max_psi: float = 0.2) -> Frame:
        """Return how far the rows of these tables are from those of all silos together.

        The tables are read here, and nothing of them is sent: a silo asks about its own one.

        Parameters
        ----------
        silos : Mapping
            Table by the name that the frame is to have.
        max_psi : float
            Index above which the ``verdict`` is "drifted"; "changed" from half of it on.

        Returns
        -------
        Frame
            A row for each silo and column, as of ``run.drift``, those that differ most first.
        """
        rows = []
        for silo, table in silos.items():
            found = self.run.drifted(table, silo)
            own = drifting.document(found, max_psi)["columns"]
            for one, row in zip(found, own, strict=True):
                rows.append({"silo": silo, **row, "verdict": one.verdict(max_psi)})
        rows.sort(key=lambda row: -row["psi"])
        return _framed(rows, "silos beside all of them", "silo", "column", "psi", "verdict")

    @checked
    def selected(self, select: str = SELECT) -> list[str]:
        """Return the features of a rule as of ``hedgerow explore --select``."""
        return list(Selection.parse(select).of(self.statistics))

    @checked
    def training_job(self, select: str = SELECT) -> Job:
        """Return a histogram job that trains on the selected features.

        Raises
        ------
        InvalidJob
            No column is selected.
        """
        found, spec = exploring.read(self.run.folder)
        chosen = Selection.parse(select).of(found)
        return Job.from_toml(exploring.job_file(found, spec, chosen, select))

    def _all_columns(self) -> list[dict[str, Any]]:
        found = self.statistics
        label = found["label"]
        return [*([label["column"]] if "column" in label else []), *found["columns"]]

    def __repr__(self) -> str:
        rows, folder = self.statistics["rows"], self.run.folder
        return f"<Exploration {self.run.name}: {rows:,} rows, {folder}>"

    def _repr_html_(self) -> str:
        """Return columns, information values and correlations, for notebooks."""
        label = self.statistics["label"]
        classes = ", ".join(f"{one['name']}: {one['rows']:,}" for one in label["classes"])
        about = f"{self.run.name}: label {label['name']} {classes}"
        shown = (self.columns, self.information_value, self.correlations, self.spellings)
        return f"<p>{escape(about)}</p>" + "".join(one._repr_html_() for one in shown if len(one))


@checked
def explore(
    silos: Mapping[str, Tabular],
    label: str = "label",
    *,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    threads: int = 0,
    quiet: bool = False,
    **settings: Any,
) -> Exploration:
    """Run an explore job on this machine, as :func:`hedgerow.local` does.

    Parameters
    ----------
    silos : Mapping
        Each silo's table, of three silos at least.
    label : str
        Column that the others are compared with.
    out, overwrite, threads, quiet
        As of :func:`hedgerow.local`.
    **settings
        Further keys of the job: ``task``, ``bins``, ``min_cell``, ``features``, ``drop``.

    Raises
    ------
    InvalidJob
        The job cannot run, or not with these silos.
    RunFailed
        The job did not succeed.
    """
    job = job_of(label, {"min_silos": len(silos), **settings})
    run = local(job, silos, out=out, overwrite=overwrite, threads=threads, quiet=quiet)
    return Exploration(run)


def job_of(label: str, settings: Mapping[str, Any]) -> Job:
    """Return the explore job of these keys; raises InvalidJob for those of another one."""
    strategy = settings.get("strategy", "explore")
    if strategy != "explore":
        raise InvalidJob(f'strategy: expected "explore", received {strategy!r}')
    return Job(**{"strategy": "explore", "label": label, **settings})


def _framed(rows: list[dict[str, Any]], title: str, *least: str) -> Frame:
    """Return rows as a frame; one that lacks a column has None in it."""
    names = dict.fromkeys([*(key for row in rows for key in row), *least])
    return Frame({name: [row.get(name) for row in rows] for name in names}, title)
