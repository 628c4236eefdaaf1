"""Searches that go on from an earlier run: from its structures, which no silo need trust."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import hedgerow
from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import DataError, FederationError, ModelRejected
from hedgerow.boosting.job import WarmStart
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.fedga.checkpoint import structures_of
from hedgerow.boosting.trees.genetics import keys, resized
from hedgerow.coordinator.operator.library.jobs import Job, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from tests.federation.memory import run_in_memory
from tests.federation.processes import write_table
from tests.federation.test_fedga import QUICK, job_of, last_generation, silos_of


def after(asked: JobParameters, raw: bytes, schema: Schema) -> JobParameters:
    told = WarmStart("earlier", hashlib.sha256(raw).hexdigest(), schema.digest)
    return replace(asked, warm_start=told)


@pytest.mark.parametrize("task", [Task.BINARY, Task.REGRESSION])
def test_a_job_that_goes_on_begins_with_the_structures_of_the_earlier_run(task: Task) -> None:
    silos, quiet = silos_of(task), replace(QUICK, epsilon_rows=math.inf)
    schema = silos["silo-0"].schema
    first = run_in_memory(job_of(task, quiet), silos)
    assert first.artefact is not None
    raw, before = first.artefact.files["structures.json"], last_generation(first)
    more = after(job_of(task, replace(quiet, generations=1)), raw, schema)
    found = last_generation(run_in_memory(more, silos, through_wire=True, starting_model=raw))
    room = quiet.population - len(silos)
    scored = [found.known[key] for key in keys(before.population[:room])]
    # The same rows give the same structures the same scores, so the best is never lost.
    assert scored == before.fitness[:room].tolist()
    assert found.best >= before.best
    narrow = replace(quiet, generations=2, min_depth=2, max_depth=2)
    ended = run_in_memory(after(job_of(task, narrow), raw, schema), silos, starting_model=raw)
    assert set(keys(resized(before.population[:room], 2))) <= set(last_generation(ended).known)
    begun = run_in_memory(more, silos, starting_model=raw[:-1])
    assert isinstance(begun.error, ModelRejected)
    other = replace(schema, features=(*schema.features[:-1], Feature("another")))
    for document in (b"{}", b"[]", raw.replace(b'"x0"', b'"y0"'), raw.replace(b'"x0",', b"")):
        with pytest.raises(DataError, match=r"expected structures\.json of a search"):
            structures_of(document, schema, 3)
    with pytest.raises(ModelRejected, match="other columns"):
        warm_start.check_bytes(more, other, raw, "the coordinator")


def test_a_search_goes_on_from_a_run_folder_and_silos_are_sent_nothing_more(tmp_path: Path) -> None:
    cohort = {f"s{i}": write_table(tmp_path / f"s{i}.parquet", 300, i) for i in range(3)}
    asked = Job("fedga", generations=2, population=12, max_depth=3, epsilon_rows=1e4)
    job = asked.on(cohort, has_test=False)
    tables = {name: table_of(asked.parameters, name, path) for name, path in cohort.items()}
    federate(job, tables, Conditions()).write(tmp_path / "run")
    raw = (tmp_path / "run" / "structures.json").read_bytes()
    more = job.starting_from(tmp_path / "run")
    assert more.parameters.warm_start == WarmStart(
        json.loads((tmp_path / "run" / "report.json").read_text())["job"],
        hashlib.sha256(raw).hexdigest(), tables["s0"].schema.digest,
    )  # fmt: skip
    result = federate(more, tables, Conditions(starting_model=raw))
    assert {step.method for step in result.view.steps} == {"ExchangeScores"}
    assert "structures of an earlier run" in result.view.reveals
    planned = hedgerow.plan(asked, cohort, model=tmp_path / "run")
    anew = hedgerow.plan(asked, cohort)
    assert planned.view.steps == anew.view.steps
    assert "begins with structures of run" in " ".join(planned.view.notes)
    with pytest.raises(FederationError, match="SHA-256"):
        federate(more, tables, Conditions(starting_model=b"{}"))
