"""What silos say before a job is a job, and what operators see of a federation: real processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hedgerow.boosting.errors import InvalidJob, LimitReached
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.coordinator.server.preflights import MOST_A_MINUTE, MOST_AT_ONCE, WINDOW_SECONDS
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import PreflightState, PreflightView
from tests.federation.processes import Federation, federation, wait_until, write_table
from tests.federation.test_commands import ask
from tests.federation.test_commands import job_file as written

JOB = 'strategy = "{strategy}"\nmin_silos = 3\n{extra}\n[{strategy}]\nrounds = {rounds}\n'


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three silos that are fit, one of them with a crypto process, and two that are not.

    s2 has no PyTorch.
    """
    folder = tmp_path_factory.mktemp("preflight")
    with federation(folder, 5, start=False, lease_seconds=4.0) as made:
        words = np.array(["no", "yes", "maybe"])[np.arange(400) % 3]
        write_table(folder / "s4.parquet", 400, 4, label=words)
        doses = np.array(["0.5", "1.5", "2.5"])[np.arange(400) % 3]
        for k in range(4):
            write_table(folder / f"s{k}.parquet", 400, k, dose=doses)
        made.start_coordinator()
        made.start_agent("s0", crypto=made.start_crypto("s0"))
        made.start_agent(
            "s1", policy={"announce": True, "max_rounds": 5000, "peers": ["s0", "s1", "s2"]}
        )
        lacks = folder / "lacks"
        lacks.mkdir()
        (lacks / "sitecustomize.py").write_text(
            "from hedgerow.services.process.imports import without\nwithout('torch')\n"
        )
        made.own["agent-s2"] = {"PYTHONPATH": f"{lacks}:{os.environ.get('PYTHONPATH', '')}"}
        made.start_agent("s2")
        made.start_agent("s3", policy={"operators": ["oscar"]})
        made.start_agent("s4")
        wait_until(lambda: len(made.client.silos()) == 5, 60, "all have registered")
        yield made


def spec(strategy: str = "bagging", extra: str = "", rounds: int = 3) -> bytes:
    return job_file.parse(JOB.format(strategy=strategy, extra=extra, rounds=rounds))


def seen(found: PreflightView) -> dict[str, dict[str, str]]:
    return {one.silo: {c.name: c.state.value for c in one.checks} for one in found.silos}


def test_each_silo_says_what_hinders_it(fed: Federation) -> None:
    found = fed.client.preflight(spec(extra='silos = ["s0", "s1", "s2", "s3", "s4"]'))
    table = seen(found)
    assert set(table["s0"].values()) == set(table["s2"].values()) == {"passed"}
    assert (table["s1"]["policy"], table["s1"]["columns"]) == ("failed", "omitted")
    assert (table["s3"]["policy"], table["s3"]["columns"]) == ("failed", "omitted")
    assert (table["s4"]["columns"], table["s4"]["label"]) == ("passed", "failed")
    assert found.refusal == (
        "the job needs 3 silos, 2 of the federation's could run it; s1 cannot take part; "
        "s3 cannot take part; s4 cannot take part"
    )
    many = JOB.format(strategy="bagging", extra="", rounds=3).replace("= 3\n", "= 6\n", 1)
    assert fed.client.preflight(job_file.parse(many)).refusal == (
        "the job needs 6 silos, the federation has 5 that it could ask (s0, s1, s2, s3, s4): more "
        "must join, or min_silos be lower"
    )
    fit = fed.client.preflight(spec(extra='silos = ["s0", "s1", "s2"]'))
    assert fit.refusal == ""
    assert all(one.fit for one in fit.silos)
    assert fit.plan.steps
    assert fit.plan.notes[-2:] == (
        "column 'dose': numbers such as '0.5' are text, so that each is a category: store them as "
        "numbers",
        "all silos learn the categories of dose (3)",
    )
    away = fed.client.preflight(spec(extra='silos = ["s0", "s1", "s2", "s9"]'))
    assert [one.silo for one in away.silos if one.state is PreflightState.AWAY] == ["s9"]


def test_a_job_that_cannot_run_is_not_submitted(fed: Federation, tmp_path: Path) -> None:
    job = written(tmp_path, extra='silos = ["s0", "s2", "s4"]\n')
    done = ask(fed, "submit", job)
    assert done.returncode == 2
    assert "not submitted: the job needs 3 silos, 2 of the federation's" in done.stderr
    assert "Traceback" not in done.stderr
    planned = json.loads(ask(fed, "plan", job, "--json").stdout)
    assert planned["preflight"][2]["checks"]["label"] == "failed"
    assert not list(fed.client.list())


@pytest.mark.parametrize("strategy", ["histogram", "fedxgbllr"])
def test_a_secure_job_of_two_silos_is_refused_by_name(fed: Federation, strategy: str) -> None:
    extra = 'silos = ["s0", "s2"]'
    text = JOB.format(strategy=strategy, extra=extra, rounds=3) + "secure = true\n"
    for least in ("min_silos = 3", "min_silos = 2"):
        given = job_file.parse(text.replace("min_silos = 3", least))
        with pytest.raises(InvalidJob, match=rf"\[{strategy}\] secure: "):
            fed.client.create(given)


def test_a_watcher_reads_at_once_who_is_missing(fed: Federation) -> None:
    job_id = fed.client.create(spec(extra='silos = ["s0", "s1", "s2", "s9"]'))
    view = fed.wait(job_id, lambda view: bool(view.detail))
    assert view.attempt == 1
    assert "for s" in view.detail
    assert "s9: answers to the job (no agent of s9 is there)" in view.detail
    awaited = {one.name: one.awaited for one in fed.client.silos()}
    assert "s9" not in awaited  # it is on no roster and has never been here
    fed.client.cancel(job_id)


def test_a_crypto_process_that_dies_is_named_by_the_job_and_in_the_list_of_silos(
    fed: Federation,
) -> None:
    def crypto() -> dict[str, bool | None]:
        return {one.name: one.crypto_answers for one in fed.client.silos() if one.alive}

    wait_until(lambda: crypto()["s0"] is True, 20, "the crypto process answers")
    assert crypto()["s2"] is None
    job_id = fed.client.create(spec("histogram", 'silos = ["s0", "s1", "s2"]', rounds=2000))
    fed.wait(job_id, lambda view: len(view.rounds) > 0 or view.ended)
    fed.kill("crypto-s0")
    text = "the crypto process of s0 does not answer"
    fed.wait(job_id, lambda view: text in view.detail or view.ended)
    assert text in fed.client.get(job_id).detail
    assert crypto()["s0"] is False

    def checked() -> dict[str, str]:  # a busy machine may not answer in time
        found = fed.client.preflight(spec(extra='silos = ["s0", "s1", "s2"]'))
        return seen(found)["s0"]

    wait_until(lambda: bool(checked()), 60, "s0 answers")
    assert checked()["crypto"] == "failed"
    fed.client.cancel(job_id)
    fed.start_crypto("s0")
    wait_until(lambda: crypto()["s0"] is True, 20, "the crypto process answers again")


def test_a_silo_without_pytorch_declines_a_network_and_names_image_and_extra(
    fed: Federation,
) -> None:
    pytest.importorskip("torch")
    asked = 'silos = ["s0", "s1", "s2"]\n'
    found = fed.client.preflight(spec("fedxgbllr", asked))
    assert [one.silo for one in found.silos if not one.fit] == ["s2"]
    (said,) = (c.detail for one in found.silos for c in one.checks if c.state.value == "failed")
    assert said.startswith("combiner 'cnn' trains a network, for which this silo's agent has no")
    assert "hedgerow/agent-torch" in said
    assert "hedgerow[torch]" in said
    job = JOB.format(strategy="fedxgbllr", extra=asked, rounds=3)
    ended = fed.end(fed.submit(job))
    assert said in ended.detail
    text = job + 'combiner = "leaves"\n'
    assert fed.client.preflight(job_file.parse(text)).refusal == ""


def test_silos_are_listed_with_what_they_announce(fed: Federation) -> None:
    silos = {one.name: one for one in fed.client.silos()}
    assert set(silos) == {"s0", "s1", "s2", "s3", "s4"}
    one = silos["s1"]
    assert one.alive
    assert one.policy == ("max_rounds = 5000", "peers")
    assert (one.row_count_class, one.n_columns) == (512, 6)
    assert one.certificate_end is not None
    assert one.last_seen is not None


def test_the_command_line_lists_silos_and_says_how_they_are(fed: Federation) -> None:
    done = ask(fed, "silos", "--json")
    rows = {row["silo"]: row for row in json.loads(done.stdout)}
    assert rows["s1"]["rows"] == "at most 512"
    assert {row["state"] for row in rows.values()} == {"connected"}
    done = ask(fed, "status")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "5 of 5 silos are connected")


def test_many_preflights_side_by_side_are_all_answered_and_the_next_one_is_told_when(
    tmp_path: Path,
) -> None:
    with federation(tmp_path, 3, 100) as own, ThreadPoolExecutor(MOST_A_MINUTE) as pool:
        clients = [client_for(own.address, tmp_path / "pki/operator", None) for _ in range(12)]
        asked = [pool.submit(client.preflight, spec()) for client in clients]
        found = [one.result() for one in asked]
        assert len(found) == MOST_A_MINUTE > MOST_AT_ONCE
        assert {one.refusal for one in found} == {""}
        assert all(silo.fit for one in found for silo in one.silos)
        with pytest.raises(LimitReached, match="a minute; the next one is possible in") as refused:
            own.client.preflight(spec(), patience_seconds=0.0)
        assert 0 < int(refused.value.facts["seconds"]) <= WINDOW_SECONDS
        told: list[str] = []
        with pytest.raises(LimitReached):
            own.client.preflight(spec(), patience_seconds=1.0, waits=told.append)
        assert not told, "it would be in vain"


def test_a_silo_with_xgboosts_build_for_cpus_declines_a_job_on_gpus(fed: Federation) -> None:
    asked = 'silos = ["s0", "s1", "s2"]\n[booster]\ndevice = "cuda"\n'
    found = fed.client.preflight(spec(extra=asked))
    said = {c.detail for one in found.silos for c in one.checks if c.state.value == "failed"}
    assert said == {
        "device = 'cuda': this silo's agent has the build of XGBoost for CPUs: install the wheel "
        "xgboost in place of xgboost-cpu there, or leave device out"
    }
