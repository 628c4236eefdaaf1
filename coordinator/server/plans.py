"""What a job is expected to cost, from what agents report when they register."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Feature, Schema, unnamed
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters, Vertical
from hedgerow.boosting.work import Forecast, Rates
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire.job_view import PlanView

BytesByExchange = dict[str, tuple[float, float]]
ASSUMED_COLUMNS = 10
"""Of a party of a vertical job whose number is not known: no party tells it before."""
CATEGORIES = 100
"""Most of a feature by a policy that says nothing of it."""
UNKNOWN = Registration("", "", (), 0, 0)
"""Stands for a silo that has not registered: zeros are unknown numbers."""


def plan_of(
    job: JobParameters,
    registered: Mapping[Silo, Registration],
    rates: Mapping[Silo, Rates] | None = None,
    start: warm_start.KnownStart | None = None,
) -> PlanView:
    """Return the plan of a job from classes of rows and numbers of columns.

    Parameters
    ----------
    registered : Mapping
        Silos that hold a lease; all of them take part where the job names none.
    rates : Mapping, optional
        How fast those silos are that have said so.
    start : KnownStart, optional
        The model that the job goes on from.
    """
    silos = tuple(map(Silo, job.silos)) or tuple(registered)
    known = {silo: registered.get(silo, UNKNOWN) for silo in silos}
    n_samples = {silo: one.row_count_class for silo, one in known.items()}
    notes = ["rows are rounded up to a power of two, and all features are taken as numbers"]
    unknown = [silo for silo, n in n_samples.items() if not n]
    if unknown:
        what = "rows" if job.vertical else "rows and columns"
        notes.append(f"{what} are not known before the job of: {', '.join(unknown)}")
    unrated = [silo for silo in silos if not (rates or {}).get(silo)]
    if unrated and len(unrated) < len(silos):
        notes.append(f"taken to be as fast as the slowest of the others: {', '.join(unrated)}")
    told = {silo: ".".join(one.xgboost.split(".")[:2]) for silo, one in known.items()}
    if job.strategy.stock_trees and len({version for version in told.values() if version}) > 1:
        listed = ", ".join(f"{told[silo] or 'not known'} ({silo})" for silo in silos)
        notes.append(
            f"silos' trees are those of their own XGBoost, which differs: {listed}; agree on one, "
            "or the model depends on who grew which tree"
        )
    layout = job.strategy.layout
    found: dict[str, Forecast]
    if isinstance(layout, Vertical):
        schemas = {  # one column names the rows
            silo: Schema(
                unnamed(one.n_columns - 1 if one.n_columns else ASSUMED_COLUMNS),
                "",
                job.task,
                job.classes,
            )
            for silo, one in known.items()
        }
        if blank := [silo for silo, one in known.items() if not one.n_columns]:
            notes.append(
                f"{ASSUMED_COLUMNS} columns are assumed of each of {', '.join(blank)}, which tell "
                "none before the job: histograms and their bytes grow with them"
            )
        parties = n_samples or {layout.active(job.parameters): 0}
        plans = layout.forecasts(job.parameters, job, schemas, parties)
        found = {str(silo): plan for silo, plan in plans.items()}
    else:
        # Labels are columns, too. Silos of a horizontal job move the same.
        n_columns = max((one.n_columns for one in known.values()), default=0) - len(job.labels)
        features = tuple(map(Feature, job.features)) or unnamed(job.columns.n_features(n_columns))
        more = job.columns.more_labels
        schema = Schema(features, job.label, job.task, job.classes, more_labels=more)
        found = warm_start.forecasts(job, schema, n_samples, start)
        if job.strategy.sizes is not None:  # splits of categories take more bytes
            names = tuple(map(str, range(CATEGORIES * max(1, len(silos)))))
            text = tuple(Feature(one.name, names) for one in features or unnamed(1))
            most = warm_start.forecasts(job, replace(schema, features=text), n_samples, start)
            found = {silo: replace(one, notes=most[silo].notes) for silo, one in found.items()}
            notes.append(
                f"at most: of features with {CATEGORIES} categories in each silo, above which "
                "silos decline a job unless their policies say otherwise"
            )
    return PlanView.of(
        {silo: replace(plan, notes=(*plan.notes, *notes)) for silo, plan in found.items()},
        {str(silo): rates[silo] for silo in silos if silo in rates} if rates else {},
        job.active,
    )


def bytes_of_rounds(
    job: JobParameters,
    schema: Schema,
    n_samples: Mapping[Silo, int],
    registered: Mapping[Silo, Registration],
) -> tuple[BytesByExchange, BytesByExchange]:
    """Return a silo's expected bytes (up, down) by exchange, the mean of the silos'.

    Of the first round all of what a job exchanges less often than once a round, such as keys; then
    what each round, the first too, has. Nothing where bytes follow from the size of trees, which
    nobody can tell without tables.
    """
    if job.strategy.sized_calls:
        return {}, {}
    layout = job.strategy.layout
    if isinstance(layout, Vertical):
        schemas = {
            silo: replace(schema, features=unnamed(registered.get(silo, UNKNOWN).n_columns - 1))
            for silo in n_samples
            if silo in registered or silo == job.active
        }
        plans = list(layout.forecasts(job.parameters, job, schemas, n_samples).values())
    else:
        plans = [warm_start.forecast(job, schema, n_samples)]
    once, each = dict[str, tuple[float, float]](), dict[str, tuple[float, float]]()
    for plan in plans:
        for method, (calls, step_up, step_down) in plan.steps.items():
            found, share = each, 1 / max(plan.rounds, 1) / len(plans)
            if calls < plan.rounds:
                found, share = once, 1 / len(plans)
            up, down = found.get(method, (0.0, 0.0))
            found[method] = up + share * step_up, down + share * step_down
    return once, each
