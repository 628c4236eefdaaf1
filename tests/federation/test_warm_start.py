"""Jobs that go on from an earlier run's model: the same trees as of one longer run; refusals."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Columns, Dataset, Feature
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.errors import FederationError, InvalidJob, ModelRejected
from hedgerow.boosting.job import Booster, WarmStart
from hedgerow.boosting.ports import JobParameters, strategy_of
from hedgerow.boosting.strategies import NAMES
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.histogram import rows
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.boosting.trees.agreed import fingerprints
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.warm_start import KnownStart
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import fetch
from hedgerow.coordinator.operator.library.jobs import Job, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.running import Run
from hedgerow.coordinator.operator.library.simulating import simulate
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.environment import STARTING, JobEnvironment
from hedgerow.coordinator.server.store import Store
from hedgerow.coordinator.server.storing import JobStoring
from hedgerow.services.process import ledgers
from hedgerow.services.rpc.errors import Damaged
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobView, PlanView
from tests.boosting.trees.ensembles import KINDS, Kind, dataset, matrix
from tests.coordinator.server.bench import opened, until
from tests.federation.memory import Fault, KeyedIdentity, Outcome, run_in_memory
from tests.federation.processes import federation, write_table

BINARY, REGRESSION, POISSON, CLASSES = KINDS[:4]


def silos(kind: Kind, *sizes: int) -> dict[str, Dataset]:
    return {f"silo-{i}": dataset(kind, n, seed=i) for i, n in enumerate(sizes)}


def job(kind: Kind, strategy: Any, **given: Any) -> JobParameters:
    booster = Booster(objective=kind.objective, max_depth=3, max_bin=16, **given)
    return JobParameters(
        "test", strategy, task=kind.task, seed=5, booster=booster, max_close_sums=9
    )


def model(outcome: Outcome) -> bytes:
    assert outcome.error is None, outcome.error
    assert not outcome.errors, outcome.errors
    assert outcome.artefact is not None
    return outcome.artefact.files["model.ubj"]


def after(asked: JobParameters, raw: bytes, data: Mapping[str, Dataset]) -> JobParameters:
    schema = next(iter(data.values())).schema
    told = WarmStart("earlier", hashlib.sha256(raw).hexdigest(), schema.digest)
    return replace(asked, warm_start=told)


def run(asked: JobParameters, data: Mapping[str, Dataset], **given: Any) -> Outcome:
    return run_in_memory(asked, data, through_wire=True, identities=KeyedIdentity, **given)


def resumed(asked: JobParameters, first: bytes, data: Mapping[str, Dataset], **given: Any) -> bytes:
    return model(run(after(asked, first, data), data, starting_model=first, **given))


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (REGRESSION, Histogram(2)),
        (BINARY, Histogram(2, secure=False, validation=0.2)),
        (CLASSES, Histogram(2, secure=False, binning="recursive")),
        (POISSON, Histogram(2, secure=False)),
        (BINARY, Bagging(2, scrub="all")),
        (REGRESSION, Bagging(2, trees_per_round=2, scrub="none")),
    ],
    ids=lambda one: one.name,
)
def test_two_rounds_and_one_more_are_three_rounds_to_the_byte(kind: Kind, strategy: Any) -> None:
    data = silos(kind, 60, 40, 50)
    first = model(run(job(kind, strategy), data))
    both = resumed(job(kind, replace(strategy, rounds=1)), first, data)
    assert both == model(run(job(kind, replace(strategy, rounds=3)), data))


def test_a_run_of_similar_rows_goes_on_to_a_stock_model_of_old_and_new_trees() -> None:
    data = silos(BINARY, 60, 50)
    first = model(run(job(BINARY, SimFL(2, hashes=4)), data))
    both = load(resumed(job(BINARY, SimFL(3, hashes=4)), first, data))
    old = load(first)
    assert both.version == 5
    assert fingerprints(both.slice(2).trees) == fingerprints(old.trees)
    assert both.round_ends == (1, 2, 3, 4, 5)
    found = xgb.Booster(model_file=None)
    found.load_model(bytearray(both.save()))
    scored = matrix(data["silo-0"])
    assert np.isfinite(found.predict(scored, validate_features=False)).all()


def test_a_histogram_run_goes_on_from_trees_with_other_thresholds() -> None:
    """The start's margins are of the rows' own values, not of a value in each one's bin."""
    data = silos(BINARY, 90, 70, 80)
    first = model(run(job(BINARY, Bagging(2)), data))
    other = job(BINARY, Histogram(2, secure=False))
    both = resumed(replace(other, booster=replace(other.booster, max_bin=4)), first, data)
    test = dataset(BINARY, 50, seed=9)
    scored = run(
        after(other, first, data), data, starting_model=first, test=test, stop_after_rounds=2
    )
    assert load(both).version == load(first).version + 2
    assert scored.rounds[0].metrics["test"] != {}


@pytest.mark.parametrize("strategy", [Histogram(4), Bagging(4, scrub="all")], ids=lambda s: s.name)
def test_a_restarted_coordinator_and_a_late_silo_end_with_the_same_model(strategy: Any) -> None:
    data = silos(BINARY, 90, 70, 80, 60)
    first = model(run(job(BINARY, replace(strategy, rounds=2)), data))
    asked = after(job(BINARY, strategy), first, data)
    undisturbed = model(run(asked, data, starting_model=first))
    stored: dict[str, dict[str, bytes]] = {silo: {} for silo in data}
    begun = run(asked, data, starting_model=first, memories=stored, stop_after_rounds=2)
    ended = run(
        asked, data, starting_model=first, memories=stored, checkpoint=begun.rounds[-1].checkpoint,
        first_round=2, attempt=2,
    )  # fmt: skip
    assert model(ended) == undisturbed
    memories = {silo: {"kept:earlier/model.ubj": first} for silo in data}
    joined = run(asked, data, starting_model=first, memories=memories, joins_after={"silo-3": 1})
    found, old = load(model(joined)), load(first)
    assert len(found.round_ends) == 6
    assert fingerprints(found.trees[: old.version]) == fingerprints(old.trees)


def test_a_silo_takes_the_model_that_it_has_kept() -> None:
    data = silos(BINARY, 60, 50, 40)
    first = model(run(job(BINARY, Histogram(2)), data))
    asked = after(job(BINARY, Histogram(1)), first, data)
    memories = {silo: {"kept:earlier/model.ubj": first} for silo in data}
    never = tuple(Fault(silo, "starting") for silo in data)
    ended = run(asked, data, starting_model=first, memories=memories, faults=never)
    assert load(model(ended)).version == 3


def test_early_stopping_counts_the_new_rounds_and_keeps_all_old_trees() -> None:
    data = silos(BINARY, 90, 70, 80)
    stopping = Bagging(8, validation=0.3, early_stopping_rounds=1)
    first = model(run(job(BINARY, Bagging(4)), data))
    ended = run(after(job(BINARY, stopping, eta=3.0), first, data), data, starting_model=first)
    found, old, best = load(model(ended)), load(first), ended.rounds[-1].best_round
    assert len(ended.rounds) < 8
    assert fingerprints(found.trees[: old.version]) == fingerprints(old.trees)
    assert len(found.round_ends) == 4 + best + 1


def test_what_does_not_fit_the_job_is_refused_in_words() -> None:
    data = silos(BINARY, 60, 50, 40)
    first = model(run(job(BINARY, Histogram(2)), data))
    asked = after(job(BINARY, Histogram(1)), first, data)
    cases: list[tuple[JobParameters, bytes, str]] = [
        (asked, first[:-1], "SHA-256"),
        (asked, b"", "received none"),
        (replace(asked, booster=replace(asked.booster, base_score=0.3)), first, "base_score"),
        (replace(asked, booster=replace(asked.booster, objective="reg:logistic")), first, "reg:lo"),
        (after(asked, b"no model", data), b"no model", "XGBoost model"),
    ]
    for wrong, raw, words in cases:
        with pytest.raises(FederationError, match=words):
            warm_start.opened(wrong, data["silo-0"].schema, raw, "the coordinator")
    schema = data["silo-0"].schema
    other = replace(schema, features=(*schema.features[:-1], Feature("another")))
    with pytest.raises(ModelRejected, match="other columns"):
        warm_start.opened(asked, other, first, "the coordinator")


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_that_cannot_go_on_says_why(name: str) -> None:
    told = 'active = "a"' if name == "secureboost" else "epsilon = 1.0" if name == "dp_tree" else ""
    digest = "ab" * 32
    spec = job_file.parse(
        f'strategy = "{name}"\n[{name}]\n{told}\n'
        f'[warm_start]\nrun = "r"\nmodel = "{digest}"\nschema = "{digest}"\n'
    )
    why = strategy_of(name).starts_anew
    assert bool(why) == (name not in ("bagging", "fedga", "histogram", "simfl"))
    if why:
        with pytest.raises(InvalidJob, match="starts from nothing"):
            job_wire.decode(spec)
    else:
        assert job_wire.decode(spec).warm_start == WarmStart("r", digest, digest)


def test_structures_have_no_rounds_whose_draws_go_on() -> None:
    told = WarmStart("r", "0" * 64, "0" * 64, rounds_before=2)
    with pytest.raises(InvalidJob, match=r"rounds_before: expected 0 for fedga"):
        warm_start.check(replace(job(BINARY, FedGA()), warm_start=told))


def test_names_and_digests_that_cannot_be_are_refused() -> None:
    for key, value in (("run", "../x"), ("model", "12"), ("schema", "G" * 64)):
        with pytest.raises(InvalidJob, match=rf"\[warm_start\] {key}"):
            replace(WarmStart("r", "0" * 64, "0" * 64), **{key: value}).check()
    blind = Histogram(2, blind_coordinator=True, binning="recursive")
    asked = replace(job(BINARY, blind), warm_start=WarmStart("r", "0" * 64, "0" * 64))
    with pytest.raises(InvalidJob, match="blind_coordinator"):
        blind.validate(asked)


JOB = """
name = "{name}"
strategy = "histogram"
min_silos = 3
silos = ["s0", "s1", "s2"]
[histogram]
rounds = {rounds}
[booster]
max_depth = 3
max_bin = 16
"""


def test_agents_go_on_from_what_they_have_kept_and_others_only_where_their_policy_says_so(
    tmp_path: Path,
) -> None:
    with federation(tmp_path) as fed:
        first = fed.submit(JOB.format(name="first", rounds=2))
        assert fed.end(first).state == "SUCCEEDED"
        fetch(fed.client, first, tmp_path / "run")
        asked = Job.from_toml(JOB.format(name="more", rounds=1)).starting_from(tmp_path / "run")
        for planned in (fed.client.plan(asked.spec), fed.client.preflight(asked.spec).plan):
            assert "ExchangeTrees" not in {step.method for step in planned.steps}
        view = fed.end(fed.client.create(asked.spec))
        assert view.state == "SUCCEEDED", view.detail
        moves_as_planned(view, planned)
        both = fed.client.download(view.job_id)[1]
        told = ledgers.read(fed.folder / "state-agent-s0" / "ledger.jsonl")
        assert "starting" not in {entry.step for entry in told}
        fetch(fed.client, view.job_id, tmp_path / "both")
        shown = Run(tmp_path / "both")
        assert f"goes on from the model of run {first}" in shown.summary()
        assert first in shown.report().read_text()
        assert "goes on from the model of an earlier run" in fed.client.plan(asked.spec).reveals

        (fed.folder / "state-agent-s1" / "jobs" / first / "model.ubj").unlink()
        view = fed.end(fed.client.create(asked.spec))
        why = {silo.name: silo.detail for silo in view.silos}["s1"]
        assert "policy rule start_models: this silo has not checked and kept that model" in why
        fed.kill("agent-s1", signal.SIGTERM)
        fed.start_agent("s1", policy={"start_models": "any"})
        view = fed.end(fed.client.create(asked.spec))
        assert view.state == "SUCCEEDED", view.detail
        assert fed.client.download(view.job_id)[1] == both
        assert "starting" in {
            entry.step for entry in ledgers.read(fed.folder / "state-agent-s1" / "ledger.jsonl")
        }

        for key, value in (("run", "nowhere"), ("model", "0" * 64), ("rounds_before", 99)):
            spec = job_wire.parse(asked.spec)
            setattr(spec.warm_start, key, value)
            for refuse in (fed.client.create, fed.client.plan, fed.client.preflight):
                with pytest.raises(InvalidJob, match=rf"\[warm_start\] {key}"):
                    refuse(spec.SerializeToString())
    with closing(Store(f"sqlite:///{tmp_path / 'state.db'}")) as store:
        here = environment(store, tmp_path)
        stored = (tmp_path / "run" / "model.ubj").read_bytes()
        here.keep_start(opened("own-copy", operator=view.operator), asked.parameters)
        assert here.starting_model("own-copy", asked.parameters) == stored
        with pytest.raises(InvalidJob, match="a job of yours"):
            here.keep_start(opened("job-0002", operator="another"), asked.parameters)


def moves_as_planned(view: JobView, planned: PlanView) -> None:
    """Check each silo's exchanges by kind, and that its bytes each way are within a tenth.

    But for the counts that find cut points: how many there are depends on the values.
    """
    told = [step for step in planned.steps if step.method != "ExchangeSketches"]
    moved = [step for step in view.steps if step.method != "ExchangeSketches"]
    calls = {(step.silo, step.method): step.calls for step in moved}
    assert {(step.silo, step.method): step.exchanges for step in told} == calls
    for silo, way in product(view.silos, (attrgetter("bytes_up"), attrgetter("bytes_down"))):
        n_planned, n_bytes = (
            sum(way(step) for step in steps if step.silo == silo.name) for steps in (told, moved)
        )
        assert n_planned == pytest.approx(n_bytes, rel=0.1), (told, moved)


def test_the_plan_of_silos_that_lack_the_model_has_it_and_no_agreement_on_a_start(
    tmp_path: Path,
) -> None:
    cohort = {f"s{i}": write_table(tmp_path / f"s{i}.parquet", 4000, i) for i in range(3)}
    asked = Job("histogram", rounds=2, max_depth=4, task="regression")
    tables = {name: table_of(asked.parameters, name, path) for name, path in cohort.items()}
    federate(asked.on(cohort, has_test=False), tables, Conditions()).write(tmp_path / "run")
    more = asked.starting_from(tmp_path / "run").on(cohort, has_test=False)
    raw = (tmp_path / "run" / "model.ubj").read_bytes()
    view = federate(more, tables, Conditions(starting_model=raw)).view
    planned = hedgerow.plan(asked, cohort, model=Run(tmp_path / "run"))
    moves_as_planned(view, planned.view)
    anew = hedgerow.plan(asked, cohort).view
    options = [f"--silo={name}={path}" for name, path in cohort.items()]
    asked.save(tmp_path / "job.toml")
    words = ["plan", str(tmp_path / "job.toml"), *options, "--model", str(tmp_path / "run")]
    told = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert told["bytes"]["up"] == sum(s.bytes_up for s in planned.view.steps)
    assert told["bytes"]["up"] < sum(s.bytes_up for s in anew.steps)
    assert f"its {len(raw):,} bytes are in ExchangeTrees" in " ".join(told["notes"])
    assert "goes on from the model of an earlier run" in told["reveals"]
    assert told["seconds"] > 0


def environment(store: Store, folder: Path, **models: str) -> JobEnvironment:
    return JobEnvironment(
        store=store, artefacts=Artefacts(str(folder / "artefacts")), metrics=Metrics(),
        registered=dict, allowed=frozenset, evaluation=lambda *_: None, now=time.time,
        verify=lambda *_: None, open_job=lambda *_: opened(), models=models,
    )  # fmt: skip


def test_a_job_ends_with_the_model_that_it_began_with_whatever_becomes_of_that_file(
    tmp_path: Path,
) -> None:
    data = silos(BINARY, 60, 50, 40)
    first = model(run(job(BINARY, Bagging(2)), data))
    asked = after(job(BINARY, Bagging(1)), first, data)
    done = run(asked, data, starting_model=first)
    file, new = tmp_path / "model.ubj", opened("job-0001")
    with closing(Store(f"sqlite:///{tmp_path / 'state.db'}")) as store:
        here = environment(store, tmp_path, earlier=str(file))
        with pytest.raises(InvalidJob, match="cannot be read"):
            here.keep_start(new, asked)
        file.write_bytes(first)
        here.keep_start(new, asked)
        store.create_job(new, "job", 1.0)
        file.write_bytes(b"another")
        here.keep_start(new, asked)  # its caller did not hear the first answer
        with pytest.raises(InvalidJob, match=r"\[warm_start\] model"):
            here.keep_start(opened("job-0002"), asked)
        assert here.starting_model("job-0001", asked) == first
        storing, last = JobStoring("job-0001", asked, here), done.rounds[-1]
        asyncio.run(storing.save_result(data["silo-0"].schema, last.checkpoint, last.best_round))
        assert here.artefacts.read("job-0001", "model.ubj") == model(done)
        here.artefacts.write("job-0001", STARTING, b"another")
        with pytest.raises(Damaged, match=r"starting\.ubj of job job-0001 is damaged"):
            here.starting_model("job-0001", asked)


def test_plans_that_are_asked_at_once_read_one_model_after_another(tmp_path: Path) -> None:
    data = silos(BINARY, 60, 50)
    first = model(run(job(BINARY, Bagging(1)), data))
    asked = after(job(BINARY, Bagging(1)), first, data)
    pipe = tmp_path / "model.ubj"
    os.mkfifo(pipe)  # two readers at once would get one model between them

    async def plans(here: JobEnvironment) -> list[KnownStart | None]:
        given_up = asyncio.create_task(here.known_start(asked, "oscar"))
        file = await asyncio.to_thread(pipe.open, "wb")  # it is being read
        unheard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
        with file:  # nothing is written: not the model that the job names
            given_up.cancel()
            await asyncio.wait({given_up})
            assert here._reading.locked(), "its thread reads on"
        await until(lambda: not here._reading.locked())
        tasks = {asyncio.create_task(here.known_start(asked, "oscar")) for _ in range(3)}
        found = []
        while tasks:
            await asyncio.to_thread(pipe.write_bytes, first)
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            found += [one.result() for one in done]
        gc.collect()
        assert not unheard
        return found

    with closing(Store(f"sqlite:///{tmp_path / 'state.db'}")) as store:
        found = asyncio.run(plans(environment(store, tmp_path, earlier=str(pipe))))
    assert found == 3 * [KnownStart(len(first))]


@pytest.mark.parametrize("kind", [BINARY, CLASSES], ids=lambda one: one.name)
def test_a_histogram_silo_reads_each_column_once_to_start_from_a_model(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 16)
    data = silos(kind, 90, 70, 80)
    first = model(run(job(kind, Bagging(2)), data))
    asked = after(job(kind, Histogram(1, secure=False, validation=0.3)), first, data)
    read: list[int] = []

    def column(table: Dataset, j: int) -> Any:
        read.append(j)
        return np.ascontiguousarray(table.X[:, j])

    def lazy(table: Dataset) -> Dataset:
        readers = [partial(column, table, j) for j in range(table.X.shape[1])]
        return replace(table, features=Columns(table.n_samples, tuple(readers)))

    columns = {silo: lazy(table) for silo, table in data.items()}
    run(replace(asked, warm_start=None), columns)
    anew = len(read)
    found = model(run(asked, columns, starting_model=first))
    once = len(data) * data["silo-0"].X.shape[1]
    assert len(read) - 2 * anew == 2 * once, "of training rows once, and of validation rows once"
    assert found == model(run(asked, data, starting_model=first))


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda one: one.name)
def test_bins_of_a_models_own_thresholds_tell_its_predictions(kind: Kind) -> None:
    data = dataset(kind, 300, seed=1)
    X = data.X
    raw = model(run(job(kind, Bagging(3)), {"silo-0": data, "silo-1": dataset(kind, 90, seed=2)}))
    whole = load(raw)
    X[:5, 0] = [-0.0, 1e38, -1e38, 1e-44, np.nan]
    for most_bins in (1 << 16, 8, 2):
        margins = whole.base_margins(300)
        parts = rows.by_own_cuts(whole, data.schema, most_bins)
        assert len(parts) == 1 or most_bins < 1 << 16
        for part, cuts in parts:
            values = bin_features(X, cuts).values(cuts, slice(0, 300))
            margins = part.margins(matrix(replace(data, features=values)), start=margins)
        np.testing.assert_array_equal(margins, whole.margins(matrix(data)))
    assert len(parts) > 1


def test_a_simulation_goes_on_from_a_run_folder_and_says_what_is_wrong_with_one(
    tmp_path: Path,
) -> None:
    table = write_table(tmp_path / "rows.parquet", 200, 1)
    asked = Job("bagging", rounds=1, max_depth=2)
    first = simulate(asked, table, 2, out=tmp_path / "first")
    more = simulate(asked, table, 2, model=first)
    assert load((more.folder / "model.ubj").read_bytes()).version == 4
    told = json.loads((more.folder / "provenance.json").read_text())
    assert (told["trees"], told["starts_from"]["trees"]) == (4, 2)
    assert "goes on from run" in more.report().read_text()
    assert more.job == more.job.starting_from(first.folder)
    with pytest.raises(InvalidJob, match="names another model"):
        first.job.starting_from(first.folder).starting_from(more.folder)
    with pytest.raises(InvalidJob, match="--model RUN"):
        simulate(more.job, table, 2)
    with pytest.raises(InvalidJob, match=r"with report\.json"):
        asked.starting_from(tmp_path)
    with pytest.raises(InvalidJob, match="starts from nothing"):
        Job("fedxgbllr").starting_from(first.folder)
    with pytest.raises(InvalidJob, match=r"with structures\.json"):
        Job("fedga").starting_from(first.folder)
    (first.folder / "report.json").write_text("[]")
    with pytest.raises(InvalidJob, match="not the folder of a run"):
        asked.starting_from(first.folder)
