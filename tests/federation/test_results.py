"""The common model in the silos, and its scores on each silo's own test rows."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.api.federation.v1 import federation_service_pb2 as pb
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import DataError, FederationError, LimitReached, ModelRejected
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.client_agent.config import Source
from hedgerow.client_agent.results import SCHEMA, check_schema, check_signed
from hedgerow.client_agent.sources import SourceRows
from hedgerow.client_agent.state import StateFolder
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.console.seen import downloaded
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.peers import Identities
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process import ledgers
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file, results
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.results import (
    JobResult,
    ResultSignature,
    packed,
    pieces,
    read_result,
    result_message,
)
from tests import oracles
from tests.federation.memory import KeyedIdentity, run_in_memory
from tests.federation.processes import Federation, federation, wait_until, write_table

JOB = """
name = "results"
strategy = "bagging"
seed = 3
min_silos = 2
silos = ["s0", "s1", "s2"]
metrics = ["auc", "logloss"]
keep_model = {keep}
[bagging]
rounds = {rounds}
evaluate = "none"
[booster]
max_depth = 3
"""
STRATEGIES = {
    "bagging": Bagging(rounds=3),
    "histogram": Histogram(rounds=2),
    "fedxgbllr": FedXGBllr(trees=6, rounds=2, epochs=1, validation=0.2),
    "dp_tree": DPTree(epsilon=1e9, depth=2),
    "simfl": SimFL(rounds=4),
    "private_boost": PrivateBoost(trees=6, depth=3, trees_per_exchange=2),
    "explore": Explore(),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_silo_takes_no_model_but_the_one_that_it_has_helped_to_train(name: str) -> None:
    def run(seed: int) -> Any:
        own = name in ("bagging", "histogram", "simfl")
        whole = oracles.generated(Task.BINARY, 600, seed=seed)
        declared = ColumnRules(
            ranges=tuple((f.name, (-3, 3)) for f in whole.schema.features if f.categories is None),
            levels=tuple((f.name, f.categories) for f in whole.schema.features if f.categories),
        )
        job = JobParameters(
            "job", STRATEGIES[name], seed=seed, min_silos=3,
            booster=Booster(max_depth=3, max_bin=16) if own else Booster(),
            columns=declared if name == "private_boost" else ColumnRules(),
        )  # fmt: skip
        parts = np.array_split(np.arange(600), 3)
        data = {f"s{k}": whole.take(rows) for k, rows in enumerate(parts)}
        outcome = run_in_memory(job, data, identities=KeyedIdentity)
        assert outcome.error is None, outcome.error
        return outcome

    mine, other = run(1), run(2)
    assert len(mine.checks) == 3
    for check in mine.checks.values():
        check(mine.artefact.files)
        assert read_result(pieces(pb.FetchResultResponse, mine.artefact.files)) == JobResult(
            mine.artefact.files
        )
        with pytest.raises(ModelRejected):
            check(other.artefact.files)
        with pytest.raises((ModelRejected, DataError)):
            check(dict.fromkeys(mine.artefact.files, b"{"))


def signed_by(
    identity: Any, silo: str, result: JobResult, job_id: str, digest: bytes
) -> ResultSignature:
    signature = identity.sign(result_message(job_id, digest, result.digest))
    return ResultSignature(silo, result.digest, signature, identity.certificate)


def test_a_silo_that_was_away_counts_what_other_silos_of_the_job_have_signed(
    tmp_path: Path,
) -> None:
    made = throwaway(tmp_path, ["s0", "s1", "s2", "stranger"], time.time())
    name = {s: made[f"silo/{s}"] for s in ("s0", "s1", "s2", "stranger")}
    identity = {s: Identities(p, RevokedCertificates(p))() for s, p in name.items()}
    digest, files = bytes(32), {"model.ubj": b"model"}
    good = JobResult(files)
    words = {s: signed_by(one, s, good, "job", digest) for s, one in identity.items()}

    def check(*signatures: ResultSignature, **given: Any) -> None:
        result = JobResult(given.get("files", files), signatures)
        others = {"s0", "s1"}
        check_signed(identity["s2"], others, 2, "job", given.get("digest", digest), result)

    check(words["s0"], words["s1"])
    forged = replace(words["s0"], silo="s1")
    for wrong in ((words["s0"],), (words["s0"], words["stranger"]), (words["s0"], words["s2"]),
                  (words["s0"], forged), (words["s0"], words["s0"])):  # fmt: skip
        with pytest.raises(ModelRejected, match="signatures of 2 other silos, received 1"):
            check(*wrong)
    with pytest.raises(ModelRejected, match="received 0"):
        check(words["s0"], words["s1"], files={"model.ubj": b"another"})
    with pytest.raises(ModelRejected, match="received 0"):
        check(words["s0"], words["s1"], digest=bytes(31) + b"x")


@pytest.mark.parametrize(
    "name",
    ["../../key.json", "/tmp/x.json", "memory/schema", "memory", ".x.json", "..", "a\0.json",
     "x.json\n", "a" * 255 + ".json", "a\\b.json", "model"],
)  # fmt: skip
def test_a_coordinator_writes_nowhere_but_in_the_folder_of_its_job(
    name: str, tmp_path: Path
) -> None:
    lied = {"model.ubj": b"true", name: b"a record"}
    with pytest.raises(ModelRejected, match="coordinator's result: expected files with a name"):
        read_result(pieces(pb.FetchResultResponse, lied))
    with pytest.raises(ModelRejected, match="job 1: expected files with a name"):
        run_folder.write(tmp_path / "operator", cast(Any, SimpleNamespace(job_id="1")), lied)
    view = cast(Any, SimpleNamespace(job_id="1", artefacts=tuple(lied)))
    with pytest.raises(ModelRejected, match="job 1: expected files with a name"):
        downloaded(cast(Any, None), view, tmp_path)  # nothing is asked for
    if "/" in name or name.startswith("."):
        state = StateFolder(tmp_path / "silo")
        with pytest.raises(FederationError, match="no path"):
            state.keep("1", name, b"")
        state.close()
    assert not (tmp_path / "operator").exists()
    assert not (tmp_path / "silo" / "jobs").exists()


def test_a_result_without_end_is_refused_though_no_message_has_bytes() -> None:
    empty = pb.FetchResultResponse()
    with pytest.raises(LimitReached, match="a result: expected at most"):
        read_result(empty for _ in range(1 << 23))


def test_a_silo_takes_no_schema_but_the_agreed_one() -> None:
    agreed = Schema((Feature("x", ("a", "b")),), "y", Task.BINARY, 2, ("no", "yes"))
    told = {SCHEMA: schema_wire.dump(agreed)}
    check_schema("1", JobResult(told), agreed.digest)
    swapped = schema_wire.dump(replace(agreed, classes=("yes", "no")))
    for lie in ({}, {SCHEMA: b"{"}, {SCHEMA: swapped}):
        with pytest.raises(ModelRejected, match="another schema than the job"):
            check_schema("1", JobResult(lie), agreed.digest)


def folder_of(fed: Federation, silo: str, job_id: str) -> Path:
    return fed.folder / f"state-agent-{silo}" / "jobs" / job_id


def own_scores(fed: Federation, silo: str, job_id: str) -> Any:
    """Return what ``hedgerow scores`` tells a silo of a job."""
    state = str(fed.folder / f"state-agent-{silo}")
    told = CliRunner().invoke(main, ["scores", state, "--job", job_id, "--json"])
    ((entry,),) = (one["scores"] for one in json.loads(told.stdout))
    return entry


def test_silos_keep_the_model_and_the_scores_of_their_own_test_rows(tmp_path: Path) -> None:
    said = {"may_send": ["schema", "keys", "masked", "trees", "scores"]}
    with federation(tmp_path, start=False) as fed:
        fed.start_coordinator()
        table = write_table(tmp_path / "own-test.parquet", 200, 77)
        fed.start_agent("s0", test={"path": str(table)}, policy=said)
        fed.start_agent("s1", hold_back=0.25)
        fed.start_agent("s2", hold_back=0.25)
        job_id = fed.submit(JOB.format(rounds=3, keep="true"))
        view = fed.end(job_id)
        assert view.state == "SUCCEEDED", view.detail
        scores = view.rounds[-1].metrics
        assert set(scores) == {"test@s0"}, "only a policy that says so sends some"
        model = hedgerow.load(folder_of(fed, "s0", job_id))
        rows = pq.read_table(table)
        y = rows["label"].to_numpy().astype(float)
        margins = model.margins(model.coded(rows, "test rows"))
        exact = metrics.evaluate(("auc", "logloss"), y, margins, objective="binary:logistic")
        assert scores["test@s0"] == {name: float(f"{v:.4g}") for name, v in exact.items()}
        assert own_scores(fed, "s0", job_id) == {"test": pytest.approx(exact)}
        assert own_scores(fed, "s1", job_id).keys() == {"test"}
        common = fed.client.download(job_id)[1]
        for silo in fed.silos:
            kept = folder_of(fed, silo, job_id)
            assert (kept / "model.ubj").read_bytes() == common
            assert hedgerow.load(kept).predict(fed.silos[silo]).shape == (400,)
            told = ledgers.read(fed.folder / f"state-agent-{silo}" / "ledger.jsonl")
            assert "ReportOutcome" in {entry.call for entry in told if entry.is_control}
        # The job's word: nothing stays in a silo, and the test rows are scored all the same.
        job_id = fed.submit(JOB.format(rounds=2, keep="false"))
        view = fed.end(job_id)
        assert "test@s0" in view.rounds[-1].metrics
        assert own_scores(fed, "s2", job_id)["test"].keys() == {"auc", "logloss"}
        assert not any((folder_of(fed, silo, job_id) / "model.ubj").exists() for silo in fed.silos)


def test_a_silo_that_was_away_at_the_end_fetches_the_model_when_it_is_back(tmp_path: Path) -> None:
    with federation(tmp_path, lease_seconds=2.0) as fed:
        job_id = fed.submit(JOB.format(rounds=40, keep="true"))
        fed.wait(job_id, lambda view: len(view.rounds) >= 2)
        fed.kill("agent-s2")
        assert fed.end(job_id).state == "SUCCEEDED"
        model = folder_of(fed, "s2", job_id) / "model.ubj"
        assert not model.exists()
        fed.start_agent("s2")
        wait_until(lambda: (model.parent / "schema.json").exists(), 60, "s2 has the model")
        assert model.read_bytes() == fed.client.download(job_id)[1]
        assert hedgerow.load(model.parent).predict(fed.silos["s2"]).shape == (400,)


def test_rows_held_back_are_the_same_in_every_job_and_in_no_training(tmp_path: Path) -> None:
    table = Source(path=str(write_table(tmp_path / "rows.parquet", 100, 1)))
    job = job_wire.decode(job_file.parse(JOB.format(rounds=2, keep="true")))
    rows = SourceRows(table, None, 0.25, "s0", b"secret")
    train = rows.train(job)
    test = rows.test(job, train.digest)
    assert test is not None
    again = rows.test(replace(job, seed=9), train.digest)
    assert again is not None
    np.testing.assert_array_equal(test.X, again.X)
    assert (train.n_samples, test.n_samples) == (75, 25)
    assert not {row.tobytes() for row in train.X} & {row.tobytes() for row in test.X}
    other = replace(rows, secret=b"another").test(job, train.digest)
    assert other is not None
    assert not np.array_equal(other.X, test.X)
    assert SourceRows(table, table, 0.25, "s0", b"secret").train(job).n_samples == 100


def test_a_result_s_bytes_and_its_unfolded_bytes_have_a_limit_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {"model.ubj": np.random.default_rng(0).bytes(4_000) * 100}
    sent = list(pieces(pb.FetchResultResponse, files, packed(files)))
    monkeypatch.setattr(results, "MAX_RESULT_BYTES", 400_000)
    assert read_result(sent) == JobResult(files)
    for limit in (399_999, sent[0].ByteSize()):
        monkeypatch.setattr(results, "MAX_RESULT_BYTES", limit)
        with pytest.raises(LimitReached, match=f"expected at most {limit} bytes"):
            read_result(sent)


def test_a_compressed_result_is_the_same_and_has_the_length_that_it_says() -> None:
    result = JobResult({"model.ubj": b"tree" * 100_000, "empty.json": b""})
    sent = list(pieces(pb.FetchResultResponse, result.files, packed(result.files)))
    assert sum(one.ByteSize() for one in sent) < 1000
    assert read_result(sent) == result
    for length in (0, 399_999, 1 << 40):
        sent[0].unfolded_bytes = length
        with pytest.raises((ModelRejected, LimitReached)):
            read_result(sent)
    sent[0].unfolded_bytes = 400_000
    sent[0].data = sent[0].data[:-8]
    with pytest.raises(ModelRejected, match="cannot be decompressed"):
        read_result(sent)
