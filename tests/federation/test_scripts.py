"""``hedgerow.join``: the same script in every silo, and a job that all of them sign."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import hedgerow
from tests.federation.processes import write_table
from tests.federation.scripts import JOB, Scripts

pytestmark = pytest.mark.process
SILOS = ("north", "south", "west")


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Scripts]:
    tables = {
        silo: write_table(tmp_path / f"{silo}.parquet", 120, seed)
        for seed, silo in enumerate(SILOS)
    }
    made = Scripts(tmp_path, tables, audit=str(tmp_path / "audit.jsonl"))
    made.start_coordinator()
    try:
        yield made
    finally:
        made.stop()


def test_three_scripts_train_the_model_of_hedgerow_local(fed: Scripts) -> None:
    scripts = [fed.script(silo, JOB, JOB | {"rounds": 1}) for silo in SILOS]
    models = set()
    for rank, script in enumerate(scripts):
        assert script.line("joined") == f"{rank} north south west"
        assert "train" in script.line("round 2")
        assert script.line("ended") == "SUCCEEDED"
        models.add(script.line("model"))
        assert script.line("ended") == "SUCCEEDED"
        assert script.process.wait(30) == 0
    assert models == {fed.local(JOB).hex()}
    with pytest.raises(hedgerow.FederationError, match="has no job"):  # an operator's are others
        fed.client.get(next(iter(fed.jobs())))
    assert set(fed.jobs().values()) == {"all its silos"}


def test_scripts_that_differ_are_refused_with_the_key_and_both_values(fed: Scripts) -> None:
    scripts = [fed.script(silo, JOB) for silo in SILOS[:2]]
    scripts.append(fed.script("west", JOB | {"max_depth": 4}))
    for script in scripts:
        said = script.line("refused")
        assert "the scripts differ in booster.max_depth: " in said
        assert "west says 4" in said
        assert " says 3" in said
        assert script.process.wait(30) == 3
    assert not fed.jobs()


def test_a_site_that_never_comes_is_named_after_the_time_given(fed: Scripts) -> None:
    scripts = [fed.script(silo, join={"wait": 4.0}) for silo in SILOS[:2]]
    for script in scripts:
        said = script.line("refused NotAllHere")
        assert said.startswith("waited 4 s for ")
    scripts = [fed.script(silo, join={"wait": 8.0}) for silo in SILOS[:2]]
    scripts.append(fed.script("west", JOB | {"rounds": 0}))
    assert "rounds" in scripts.pop().line("refused")
    for script in scripts:
        assert "west has not signed job 1 of this script" in script.line("refused NotAllHere")


def test_sites_that_do_not_go_together_are_named(fed: Scripts) -> None:
    scripts = [fed.script(silo, join={"rank": 1, "wait": 30.0}) for silo in SILOS[:2]]
    said = "".join(script.rest() for script in scripts)
    assert re.search("rank: (north|south) says 1, as (north|south) has said before", said)
    assert re.search("NotAllHere waited 30 s for 2 more: here is (north|south)\n", said)
    (alone,) = [fed.script(silo, join={"world_size": 1}) for silo in SILOS[:1]]
    assert "world_size: expected a number from 2 to 1500" in alone.rest()
    given = {silo: {"world_size": n, "wait": 4.0} for n, silo in enumerate(SILOS[:2], 3)}
    apart = {silo: fed.script(silo, join=join) for silo, join in given.items()}
    for silo, script in apart.items():
        assert script.line("refused NotAllHere").endswith(f"here is {silo}")


def test_two_sites_cannot_hide_a_sum_from_each_other(fed: Scripts) -> None:
    policy = {"may_send": ["keys", "schema", "masked", "scores", "counts"]}
    for job, ended in ((JOB, "sums are over 3 silos or more"), (JOB | {"secure": False}, "ended")):
        scripts = [fed.script(s, job, join={"world_size": 2}, policy=policy) for s in SILOS[:2]]
        for script in scripts:
            assert ended in script.rest()


def test_a_script_that_was_killed_joins_the_round_that_is_open(fed: Scripts) -> None:
    job = JOB | {"rounds": 30, "max_depth": 4}
    first = JOB | {"rounds": 1}
    scripts = {silo: fed.script(silo, first, job) for silo in SILOS}
    scripts["west"].line("ended")
    scripts["west"].line("round 2")
    scripts["west"].process.kill()
    scripts["west"].process.wait()
    scripts["west"] = fed.script("west", first, job)
    models = set()
    for script in scripts.values():
        assert script.line("ended") == "SUCCEEDED"
        models.add(script.rest().rpartition("model ")[2].strip())
    assert models == {fed.local(job).hex()}
    assert len(fed.jobs()) == 2


def test_an_interrupted_script_leaves_and_the_others_name_it(fed: Scripts) -> None:
    job = JOB | {"rounds": 400, "start_timeout_seconds": 4.0, "max_attempts": 1}
    scripts = {silo: fed.script(silo, job) for silo in SILOS}
    scripts["west"].line("round 1")
    scripts["west"].process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in scripts["west"].rest()
    assert scripts["west"].process.returncode == 3
    for silo in SILOS[:2]:
        said = scripts[silo].line("refused RunFailed")
        assert "west" in said


def test_a_script_with_an_error_of_its_own_leaves_and_begins_anew(fed: Scripts) -> None:
    """With the statement of before, the next run would get what the first job has left."""
    job = JOB | {"max_attempts": 1, "start_timeout_seconds": 10.0}
    scripts = [fed.script(silo, job | {"rounds": 400}) for silo in SILOS[:2]]
    failing = fed.script("west", job | {"rounds": 400}, fail_at=1)
    failing.rest()
    assert failing.process.returncode == 1
    for script in scripts:
        assert "west" in script.line("refused RunFailed")
        script.rest()
    again = [fed.script(silo, job | {"rounds": 400}, stop_at=0) for silo in SILOS]
    for script in again:
        assert script.line("ended") == "CANCELLED"
        assert script.process.wait(30) == 0
    assert len(fed.jobs()) == 2


def test_scripts_that_all_want_it_end_a_job(fed: Scripts) -> None:
    scripts = [fed.script(silo, JOB | {"rounds": 400}, stop_at=1) for silo in SILOS]
    for script in scripts:
        assert script.line("ended") == "CANCELLED"
        assert script.process.wait(30) == 0
    trail = [json.loads(line) for line in (fed.folder / "audit.jsonl").read_text().splitlines()]
    for action in ("job-submit", "job-cancel"):
        (line,) = (line for line in trail if line["event.action"] == action)
        assert line["user.name"] == "all its silos"
        assert line["hedgerow.silos"] == list(SILOS)


def test_jobs_go_on_after_the_coordinator_was_killed_in_one(fed: Scripts) -> None:
    job = JOB | {"rounds": 12, "start_timeout_seconds": 60.0}
    scripts = [fed.script(silo, job, job, pause=0.3) for silo in SILOS]
    scripts[0].line("round 3")
    fed.kill("coordinator")
    fed.start_coordinator()
    models = set()
    for script in scripts:
        for _ in range(2):
            assert script.line("ended") == "SUCCEEDED"
            models.add(script.line("model "))
        assert script.process.wait(30) == 0
    assert len(models) == 1
    assert len(fed.jobs()) == 2
