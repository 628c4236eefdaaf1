"""A federation in one process over one table that is dealt to silos."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.ports import Result
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.library import evaluation, frames
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.frames import Tabular
from hedgerow.coordinator.operator.library.jobs import Job, JobLike, plan_tables, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.running import Run
from hedgerow.coordinator.operator.library.schedules import Absences, AwaySilos, LateSilos
from hedgerow.coordinator.operator.tables import cut
from hedgerow.services.rpc.in_memory import LineSpeed
from hedgerow.services.wire.job_view import FinishedRound


@checked
def split(
    data: Tabular,
    silos: int | None = None,
    *,
    scheme: str = "iid",
    parties: str = "",
    test: float = 0.0,
    stratify: bool = False,
    group: str = "",
    seed: int = 0,
    label: str = "label",
) -> dict[str, Any]:
    """Return the tables of silos or parties, and of test rows, that one table is cut into.

    Parameters
    ----------
    silos : int, optional
        How many; the scheme ``column:NAME`` has a silo for each value without it.
    scheme : str
        ``iid``: shuffled, equally many. ``linear``, ``square``: silo k gets a share of k + 1 or its
        square. ``dirichlet:ALPHA``, also called ``label-skew:ALPHA``: of each label a silo gets a
        random share. ``column:NAME``: a value a silo.
    parties : str
        Of a vertical job, in place of ``silos``: ``bank:label,f0;insurer:f1,f2``.
    test : float
        Share of rows that are in no silo, below 1. The same rows for any number of silos.
    stratify : bool
        Give the test part, and the silos of ``iid``, ``linear`` and ``square``, each label's share,
        of a number with more than 20 values each tenth's, to within two rows.
    group : str
        Column whose values are dealt in place of rows, so that all rows of one are in one silo.

    Returns
    -------
    dict of str to pyarrow.Table
        ``silo-0`` and so on and ``test``, or the parties and ``test-PARTY``: the rows of
        ``hedgerow split``.

    Raises
    ------
    FederationError
        The table cannot be split so.
    """
    table, _ = frames.read(_one_table(data), "the table")
    pieces = cut(
        table, silos, scheme, parties or None, test, seed, label, stratify=stratify, group=group
    )
    return {piece.name: piece.table for piece in pieces}


def _one_table(data: Tabular) -> Tabular:
    if isinstance(data, Mapping) and any(
        isinstance(one, str | os.PathLike | Mapping) or hasattr(one, "columns")
        for one in data.values()
    ):
        raise InvalidJob(
            "data: expected one table, which is dealt to silos; received tables by name, over "
            "which hedgerow.local runs a job"
        )
    return data


@checked
def simulate(
    job: JobLike,
    data: Tabular,
    silos: int | None = None,
    *,
    scheme: str = "iid",
    parties: str = "",
    test: float = 0.2,
    stratify: bool = False,
    seed: int = 0,
    away: AwaySilos = 0.0,
    late: LateSilos | None = None,
    crypto: bool = True,
    workers: int = 0,
    links: Sequence[str] = (),
    model: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    watch: Callable[[FinishedRound], object] = lambda finished: None,
) -> Run:
    """Deal a table to silos and run a job over them in this process.

    The run is that of ``hedgerow split`` and ``hedgerow local``: same model, same bytes, but
    where silos draw over their rows.

    Parameters
    ----------
    silos : int, optional
        How many; the scheme ``column:NAME`` has a silo for each value without it.
    scheme : str
        See :func:`split`.
    parties : str
        Of a vertical job, in place of ``silos``: ``bank:label,f0;insurer:f1,f2``.
    test : float
        Share of rows that are held out to score the model.
    stratify : bool
        See :func:`split`.
    seed : int
        Of the split and of who is away.
    away : Mapping or float
        Silos that are away, by round, which count from zero; or the share of silos that are away in
        a round, at random. Nobody is away in the first round, which opens the job.
    late : Mapping, optional
        By round, the seconds by which silos are late with their first offer of the round, such as
        ``{3: {"silo-7": 30.0}}``. Seconds of rounds are simulated then. A silo that is later than
        the job's ``step_timeout_seconds`` misses the round, for which the others wait that long.
    crypto : bool
        Whether masks and encryption are those of the job; else what a job may leave out is left
        out.
    workers : int
        Silos that compute at the same time; 0 for one a core. A hundred silos or more are dealt to
        as many processes.
    links : sequence of str
        Lines ``MILLISECONDS:MBIT`` of round trip and of bandwidth each way, dealt to the silos in
        turn. With them a round's seconds are simulated: what it would take were every silo alone on
        its machine, waiting for the slowest.
    model : Run or path, optional
        The run whose model the job goes on from.
    out : path, optional
        Run folder to write. A temporary one, which goes with the run, where it is not given.
    overwrite : bool
        Whether the result of an earlier run in the folder may go; it is refused if not.
    watch : callable
        Called with each finished round; where it returns true, training ends with the model so
        far. See :func:`hedgerow.local`.

    Raises
    ------
    FederationError
        The table cannot be split so, or the job cannot run with the silos.
    RunFailed
        The job did not succeed, or lacks an interval that it asked for.
    """
    found, starting = Job.of(job), b""
    if model is not None:
        found = found.starting_from(model)
        starting = (Path(model) / found.parameters.strategy.starts_with).read_bytes()
    parameters = found.parameters
    table, where = frames.read(_one_table(data), "the table")
    if parameters.strategy.result is Result.TABLE:
        test = 0.0  # nothing is scored
    if parameters.vertical != bool(parties):
        raise InvalidJob("parties: a vertical job needs them, and no other job has any")
    named = {new: old for old, new in parameters.columns.rename}  # the table's, before
    label, group = (named.get(n, n) for n in (parameters.label, parameters.columns.qid))
    pieces = cut(
        table, silos, scheme, parties or None, test, seed, label, stratify=stratify, group=group
    )
    held = {piece.name: piece.table for piece in pieces if piece.name.startswith("test")}
    dealt = {piece.name: piece.table for piece in pieces if piece.name not in held}
    found = found.on(dealt, has_test="test" in held)
    parameters = found.parameters
    tables = {name: table_of(parameters, name, own) for name, own in dealt.items()}
    shared = table_of(parameters, "test", held["test"]) if "test" in held else None
    own = {
        name.removeprefix("test-"): table_of(parameters, name.removeprefix("test-"), part)
        for name, part in held.items()
        if name != "test"
    }
    features = {name for one in tables.values() for name in one.schema.names}
    frames.warn_of_integers(table, where, [n for n in table.column_names if n in features])
    schedule = Absences(away, late or {}, parameters.step_timeout_seconds, seed)
    schedule.check(tables, lambda: plan_tables(parameters, tables, grows=False).rounds)
    lines = tuple(map(LineSpeed.parse, links))
    conditions = Conditions(
        crypto=crypto,
        workers=workers,
        away=schedule.is_away,
        late=schedule.lateness if late else None,
        lines=lines,
        watch=watch,
        starting_model=starting,
    )
    folder = Path(tempfile.mkdtemp(prefix="hedgerow-run-")) if out is None else Path(out)
    found.check_start(starting)
    run_folder.claim(folder, overwrite=overwrite)
    result = federate(found, tables, conditions, shared, own)
    result.write(folder)
    if held:
        evaluation.keep(folder, {name.removeprefix("test-"): part for name, part in held.items()})
    return Run.ended(folder, temporary=out is None).complete()
