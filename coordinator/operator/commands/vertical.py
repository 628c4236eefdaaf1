"""Parts of a vertical model: what they reveal, and scoring with all of them on this machine."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hedgerow.boosting.errors import FederationError, InvalidJob
from hedgerow.boosting.ports import Vertical, strategy_of
from hedgerow.boosting.strategies.secureboost.model import ACTIVE_REVEALS, PASSIVE_REVEALS
from hedgerow.boosting.tables.indexes import ID
from hedgerow.services.process.terminal import command, listing, tell

MODEL = "model"
"""Name of the earlier model in the scoring job."""


@command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def part(file: Path) -> None:
    """Print what FILE, a party's part of a vertical model, holds and reveals."""
    from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart, load_part

    found = load_part(file.read_bytes())
    importance = found.importance()
    active = isinstance(found, ActivePart)
    if isinstance(found, PassivePart):
        # The number under which contributions of `hedgerow serve` name a feature.
        for name, counts in importance.items():
            counts["number"] = found.anonymous[found.features.index(name)]
    n_trees = len(found.trees) if isinstance(found, ActivePart) else found.n_trees
    document = {
        "party": found.party,
        "role": found.role,
        "model": found.model,
        "digest": found.digest,
        "trees": n_trees,
        "rows": found.alignment.get("rows", 0),
        "importance": importance,
        "reveals": ACTIVE_REVEALS if active else PASSIVE_REVEALS,
    }

    def show() -> None:
        click.echo(f"{found.role} party {found.party}, model {found.model}, {n_trees} trees")
        click.echo(f"digest of the structures: {found.digest}")
        rows = [
            (name, f"{counts['splits']:.0f}", f"{counts['gain' if active else 'number']:.6g}")
            for name, counts in sorted(importance.items(), key=lambda item: -item[1]["splits"])
        ]
        listing(("feature", "divisions", "gain" if active else "number"), rows)
        click.echo(str(document["reveals"]))

    tell(document, show)


def is_vertical(run: Path) -> bool:
    """Whether a path is the folder of a run whose model is in parts."""
    try:
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
        return isinstance(strategy_of(report["strategy"]).layout, Vertical)
    except (InvalidJob, OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def score_together(
    run: Path,
    data: tuple[str, ...],
    names: tuple[str, ...] = (),
    label: str | None = None,
    *,
    ids: Sequence[str] = (),
    labelled: bool = False,
) -> tuple[Any, dict[str, float]]:
    """Return predictions of the rows that all parties have, and scores where there are labels.

    Parameters
    ----------
    run : Path
        Run folder with the parts of all parties.
    data : tuple of str
        PARTY=FILE for each party.
    names : tuple of str
        Metrics; those of the job if none.
    ids : sequence of str
        Of ``--id``: columns of identifiers.
    labelled : bool
        Whether labels are required.

    Returns
    -------
    pyarrow.Table
        As in a prediction job's file, in the order of the active party's table.
    dict
        By metric; empty without labels.

    Raises
    ------
    FederationError
        A part or a table cannot be used, or parts do not belong together.
    """
    from pyarrow import csv

    from hedgerow.coordinator.operator.commands import local, options
    from hedgerow.services.wire import job as job_wire
    from hedgerow.services.wire import job_file

    parties = options.parse_pairs(data, "a vertical model's DATA")
    spec = job_wire.parse(job_file.load(run / "job.toml"))
    own = job_wire.parameters_of(spec)
    own.predict_from, own.rounds = MODEL, 1
    for training_only in ("warm_start", "validation_tables", "early_stopping_rounds", "calibrate",
                          "categories"):  # fmt: skip
        own.ClearField(training_only)
    for of_sets in ("max_cat_to_onehot", "max_cat_threshold"):
        spec.booster.ClearField(of_sets)  # without categories = sets they are refused
    spec.min_silos = len(parties)
    if names:
        del spec.metrics[:]
        spec.metrics.extend(names)
    if label:
        spec.label = label
    active = own.active
    if active not in parties:
        raise InvalidJob(f"the active party {active!r} has no table: expected {active}=FILE")
    with tempfile.TemporaryDirectory(prefix="hedgerow-") as out:
        report = local.run(
            spec.SerializeToString(deterministic=True),
            parties,
            (),
            Path(out),
            Console(stderr=True, quiet=True),
            model=run,
            ids=options.parse_ids(ids, parties),
        )
        if report["state"] != "SUCCEEDED":
            unfit = "; ".join(f"{silo}: {why}" for silo, why in report.get("unfit", {}).items())
            raise FederationError(unfit or report["detail"] or "the parties did not score")
        file = Path(out) / "silos" / active / "predictions.csv"
        texts = csv.ConvertOptions(column_types={ID: "string"})  # as the parties write them
        table = csv.read_csv(io.BytesIO(file.read_bytes()), convert_options=texts)
    scores = dict(report["rounds"][0]["metrics"].get("test", {}))
    if labelled and not scores:
        raise InvalidJob(f"the table of {active} has no column {spec.label or 'label'!r}")
    return table, scores
