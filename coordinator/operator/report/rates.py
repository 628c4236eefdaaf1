"""Figures of what FedXGBllr learnt: the weight of each silo's trees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import altair as alt

from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.strategies.fedxgbllr import stacked_model
from hedgerow.boosting.strategies.fedxgbllr.parameters import NETWORKS
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import ENSEMBLE, HEAD, MANIFEST, SiloRates
from hedgerow.boosting.trees import loading
from hedgerow.coordinator.operator.report.drawing import (
    PALETTE,
    PLAIN,
    Columns,
    Figure,
    axis_of_counts,
    of_number,
    of_text,
    tips,
    values,
)
from hedgerow.coordinator.operator.report.runs import FinishedRun, RunUnusable


@dataclass(frozen=True, slots=True)
class TreeRate:
    """A tree's learnt rate."""

    silo: str
    step: int
    """Boosting step in its silo, from 1."""
    output: int
    """Class that the tree adds to; 0 where there is one output."""
    rate: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Learnt rates of a run."""

    silos: tuple[SiloRates, ...]
    trees: tuple[TreeRate, ...]
    n_outputs: int
    plain: float
    """Rate of every tree in the plain mean of the silos' ensembles."""
    combiner: str
    """Its name in the job file. In :data:`NETWORKS` a tree has no rate of its own."""


def rates_of(run: FinishedRun) -> Rates | None:
    """Return what a run learnt about its silos' trees, or None for runs of other strategies.

    Raises
    ------
    RunUnusable
        A file of the result is damaged, or they do not belong together.
    """
    paths = {name: run.folder / name for name in (MANIFEST, HEAD, ENSEMBLE)}
    if run.report.strategy != "fedxgbllr" or not all(p.is_file() for p in paths.values()):
        return None
    files = {name: path.read_bytes() for name, path in paths.items()}
    try:
        silos = stacked_model.learnt_rates(files)
        rates = stacked_model.rates_by_tree(files)
        trees = loading.load(files[ENSEMBLE]).trees
        combiner = str(json.loads(files[MANIFEST]).get("combiner", ""))
    except (FederationError, ValueError, AttributeError) as error:
        raise RunUnusable(f"{run.folder}: the learnt rates cannot be read: {error}") from error
    owners = [silo.silo for silo in silos for _ in range(silo.trees)]
    if not silos or len(owners) != len(trees) or rates.shape[1:] != (len(trees),):
        raise RunUnusable(f"{run.folder}: {MANIFEST}, {HEAD} and {ENSEMBLE} do not fit together")
    steps: dict[tuple[str, int], int] = {}
    found = []
    for k, (silo, tree) in enumerate(zip(owners, trees, strict=True)):
        if tree.group >= len(rates):
            raise RunUnusable(f"{run.folder}: {HEAD} has no rate for output {tree.group}")
        steps[silo, tree.group] = steps.get((silo, tree.group), 0) + 1
        rate = float(rates[tree.group, k])
        found.append(TreeRate(silo, steps[silo, tree.group], tree.group, rate))
    return Rates(silos, tuple(found), len(rates), 1.0 / len(silos), combiner)


def rates(runs: Sequence[FinishedRun]) -> tuple[Figure, ...]:
    """Return plots of the learnt rates by silo and by tree, of runs that have them."""
    found = [(run, learnt) for run in runs if (learnt := rates_of(run)) is not None]
    return (_by_silo(found), _by_tree(found)) if found else ()


def _by_silo(found: list[tuple[FinishedRun, Rates]]) -> Figure:
    many = len(found) > 1
    rows: list[dict[str, Any]] = [
        {
            "run": run.label,
            "silo": f"{run.label}: {silo.silo}" if many else silo.silo,
            "mean": silo.mean, "least": silo.least, "largest": silo.largest,
            "share": silo.share, "trees": silo.trees, "plain": learnt.plain,
        }
        for run, learnt in found
        for silo in learnt.silos
    ]  # fmt: skip
    table = [
        {"run": run.label, "plain": learnt.plain, **asdict(silo)}
        for run, learnt in found
        for silo in learnt.silos
    ]
    title = "The weight of each silo's trees"
    lead = (
        "Dots are the mean learnt rate of a silo's trees, bars from the least to the largest; the "
        "grey tick is the plain mean, where each tree counts one over the number of silos."
    )
    y = alt.Y("silo:N", sort=None, title=None, axis=alt.Axis(labelLimit=280))
    x_title = "learnt rate"
    base = alt.Chart(values(rows)).encode(y=y)
    tooltip = tips(
        "silo:N", "trees:Q", alt.Tooltip("mean:Q", format=".4g"),
        alt.Tooltip("least:Q", format=".4g"), alt.Tooltip("largest:Q", format=".4g"),
        alt.Tooltip("share:Q", format=".1%"),
    )  # fmt: skip
    chart = alt.layer(
        base.mark_rule(strokeWidth=5, opacity=0.45, color=PALETTE[0]).encode(
            x=alt.X("least:Q", title=x_title), x2=alt.X2("largest:Q")
        ),
        base.mark_tick(thickness=3, height=20, color=PLAIN).encode(x=alt.X("plain:Q")),
        base.mark_point(filled=True, size=90, opacity=1, color=PALETTE[0]).encode(
            x=alt.X("mean:Q"), tooltip=tooltip
        ),
    ).properties(width="container", height=max(30 * len(rows), 60))
    columns: Columns = [
        ("run", of_text("run")),
        ("silo", of_text("silo")),
        ("rows", of_number("rows", ",")),
        ("trees", of_number("trees", "d")),
        ("share of the movement", of_number("share", ".1%")),
        ("mean rate", of_number("mean")),
        ("least", of_number("least")),
        ("largest", of_number("largest")),
        ("plain mean", of_number("plain")),
        ("first half to all", of_number("first_half", ".2f")),
    ]
    return Figure.of("rates-by-silo", title, lead, chart, columns, table)


def _by_tree(found: list[tuple[FinishedRun, Rates]]) -> Figure:
    many = len(found) > 1
    several = any(learnt.n_outputs > 1 for _, learnt in found)
    rows = [
        {
            "run": run.label, "silo": tree.silo,
            "series": f"{run.label}: {tree.silo}" if many else tree.silo,
            "step": tree.step, "output": tree.output, "rate": tree.rate, "plain": learnt.plain,
        }
        for run, learnt in found
        for tree in learnt.trees
    ]  # fmt: skip
    order = list(dict.fromkeys(str(row["series"]) for row in rows))
    learnt_rates = [tree.rate for _, learnt in found for tree in learnt.trees]
    alike = max(learnt_rates) - min(learnt_rates) < 1e-12
    n_steps = max(tree.step for _, learnt in found for tree in learnt.trees)
    title = "The rate of each tree"
    lead = (
        "Learnt rates in the order of boosting; XGBoost's own, the same for all trees of a silo, "
        "is in their leaf values. The dashed line is the plain mean."
    )
    if any(learnt.combiner in NETWORKS for _, learnt in found):
        lead += (
            " In a network a tree's rate is the mean derivative of the prediction by the tree's "
            "output, over the silos' rows."
        )
    if several:
        lead += " A dot for each class that a step has a tree for."
    keys = ("series", "step", "output", "rate", "plain")
    base = alt.Chart(values([{key: row[key] for key in keys} for row in rows]))
    dots = base.mark_point(filled=True, size=36, opacity=0.85).encode(
        x=alt.X("step:Q", title="boosting step", axis=axis_of_counts(n_steps)),
        y=alt.Y("rate:Q", title="learnt rate", scale=alt.Scale(zero=alike)),
        color=alt.Color("series:N", sort=order, title=None),
        tooltip=tips(
            alt.Tooltip("series:N", title="silo"), "step:Q",
            *(["output:Q"] if several else []), alt.Tooltip("rate:Q", format=".5g"),
        ),
    )  # fmt: skip
    line = base.mark_rule(strokeDash=[6, 4], color=PLAIN, strokeWidth=1.5).encode(
        y=alt.Y("mean(plain):Q", title="learnt rate")
    )
    chart = alt.layer(line, dots).properties(width="container", height=280)
    columns: Columns = [
        ("run", of_text("run")),
        ("silo", of_text("silo")),
        ("boosting step", of_number("step", "d")),
        *([("class", of_number("output", "d"))] if several else []),
        ("learnt rate", of_number("rate")),
    ]
    return Figure.of("rates-by-tree", title, lead, chart, columns, rows)
