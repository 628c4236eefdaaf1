import math
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hedgerow.boosting.errors import InvalidJob, JobStopped, LimitReached
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.store import Store
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire.job_view import (
    FinishedRound,
    JobSilo,
    JobState,
    SentPayloads,
    SiloState,
    StepTotal,
    scores_of,
)
from hedgerow.services.wire.signed_job import (
    ITS_SILOS,
    JobStatement,
    OpenedJob,
    SignedJob,
    SignedSite,
)
from tests.coordinator.server.bench import opened


@pytest.fixture
def store(url) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


def add_job(store, job_id="job-0001", created=100.0, operator="operator-a", **changes):
    job = opened(job_id, spec=b"\x00\xffspec", operator=operator, **changes)
    return store.create_job(job, "adult", created)


def test_a_job_comes_back_as_it_was_stored(store):
    add_job(store)
    job = store.job("job-0001")
    assert (job.name, job.operator, job.spec) == ("adult", "operator-a", b"\x00\xffspec")
    assert (job.state, job.attempt, job.created, job.ended) == (JobState.PENDING, 0, 100.0, 0.0)
    assert store.job("job-0002") is None


def test_state_outlives_the_store(store, url):
    add_job(store)
    store.start_attempt("job-0001", ["b", "a"], 101.0)
    store.close()
    again = Store(url)
    assert again.job("job-0001").state is JobState.RUNNING
    assert again.roster("job-0001", 1) == ("a", "b")
    assert again.start_attempt("job-0001", ["a"], 102.0) == 2
    again.close()


def test_a_job_that_is_submitted_again_stays_one(store):
    assert add_job(store, "job-0001")
    store.start_attempt("job-0001", ["a"], 101.0)
    assert not add_job(store, "job-0001")
    assert store.job("job-0001").attempt == 1
    with pytest.raises(InvalidJob, match="another job has the nonce of job job-0001"):
        add_job(store, "job-0001", not_after=3e9)
    assert add_job(store, "job-0002")


def test_an_operators_jobs_are_listed_alone(store):
    add_job(store, "job-0001", created=1.0)
    add_job(store, "job-0002", created=2.0, operator="operator-b")
    assert [job.job_id for job in store.jobs(operator="operator-b")] == ["job-0002"]
    assert [job.job_id for job in store.jobs()] == ["job-0002", "job-0001"]


def test_jobs_are_listed_newest_first_in_pages(store):
    for k, at in enumerate((1.0, 2.0, 2.0, 2.0, 3.0)):
        add_job(store, f"job-000{k}", created=at)
    add_job(store, "job-0005", created=2.0, operator="operator-b")
    found = []
    while page := store.jobs(2, found[-1] if found else "", "operator-a"):
        found += [job.job_id for job in page]
    assert found == ["job-0004", "job-0001", "job-0002", "job-0003", "job-0000"]
    assert [job.job_id for job in store.jobs(2, "job-0003")] == ["job-0005", "job-0000"]


def test_a_page_begins_behind_a_job_of_the_same_operator_only(store):
    add_job(store, "job-0001")
    assert store.jobs(after="job-0002") is None
    assert store.jobs(after="job-0001", operator="operator-b") is None


def test_silos_of_several_jobs_are_read_at_once(store):
    silos = [JobSilo(name, 10, SiloState.PRESENT, "") for name in ("a", "b")]
    for k, own in ((1, silos), (2, silos[:1]), (3, [])):
        add_job(store, f"job-000{k}")
        store.set_job_silos(f"job-000{k}", reversed(own))
    ids = ["job-0003", "job-0001"]
    assert store.silos_of(ids) == {"job-0003": (), "job-0001": tuple(silos)}


def test_unfinished_jobs_of_scripts_are_counted_for_each_of_their_silos(store):
    def create(turn, *silos):
        sites = tuple(SignedSite(silo, b"n" * 16) for silo in silos)
        own = JobStatement("fed", b"", b"", 2e9, 1, sites, turn).of_sites
        opened = OpenedJob(SignedJob(own.serialise(), b"", b""), own, ITS_SILOS)
        assert store.create_job(opened, "joint", 1.0, 2)
        return own.job_id

    first, second = create(1, "a", "b"), create(2, "a", "b")
    with pytest.raises(LimitReached, match=rf"b has 2 unfinished jobs, .* ({first}|{second}), "):
        create(1, "b", "c")
    create(1, "c", "d")
    store.set_state(first, JobState.CANCELLED, "", 9.0)
    create(1, "b", "c")


def test_unfinished_jobs_are_listed_oldest_first(store):
    for k in range(4):
        add_job(store, f"job-000{k}", created=float(k))
    store.set_state("job-0001", JobState.CANCELLED, "", 9.0)
    store.start_attempt("job-0002", ["a"], 9.0)
    assert [job.job_id for job in store.unfinished_jobs()] == ["job-0000", "job-0002", "job-0003"]


def test_attempts_are_numbered_from_one_even_when_started_at_once(store):
    add_job(store)
    numbers = []
    threads = [
        threading.Thread(target=lambda: numbers.append(store.start_attempt("job-0001", ["a"], 1.0)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 9))


def test_an_ended_job_stays_ended(store):
    add_job(store)
    assert store.set_state("job-0001", JobState.CANCELLED, "by operator", 7.0)
    assert not store.set_state("job-0001", JobState.SUCCEEDED, "", 8.0)
    job = store.job("job-0001")
    assert (job.state, job.detail, job.ended) == (JobState.CANCELLED, "by operator", 7.0)
    with pytest.raises(JobStopped):
        store.start_attempt("job-0001", ["a"], 9.0)


def test_rounds_keep_their_metrics_including_those_without_a_value(store):
    add_job(store)
    metrics = {"test": {"auc": 0.9, "f1": math.nan}, "train": {"rmse": math.inf}}
    done = FinishedRound(0, 1, 0.5, scores_of(metrics), 10, 2**40, ("b", "a"))
    store.add_round("job-0001", done, best_round=0)
    store.add_round("job-0001", FinishedRound(1, 1, 0.25, (), 11, 21, ("a",)))
    first, second = store.rounds("job-0001")
    scored = FinishedRound(2, 1, 0.25, scores_of({"test": {"auc": 0.8}}), 1, 1, ("a",))
    store.add_round("job-0001", scored)
    assert store.rounds("job-0001", 1) == (second, scored)
    assert first.metrics["test"]["auc"] == 0.9
    assert math.isnan(first.metrics["test"]["f1"])
    assert first.metrics["train"] == {"rmse": math.inf}
    assert (first.seconds, first.bytes_up, first.bytes_down) == (0.5, 10, 2**40)
    assert (first.silos, second.silos, second.metrics) == (("a", "b"), ("a",), {})


def test_a_round_done_again_by_a_later_attempt_replaces_its_record(store):
    add_job(store)
    first = FinishedRound(0, 1, 0.5, scores_of({"test": {"auc": 0.5, "f1": 0.1}}), 1, 1, ("a",))
    again = FinishedRound(0, 2, 0.6, scores_of({"test": {"auc": 0.7}}), 2, 2, ("a", "b"))
    store.add_round("job-0001", first)
    store.add_round("job-0001", again, best_round=0)
    (only,) = store.rounds("job-0001")
    assert only == again


def test_what_a_silo_says_that_it_sent_is_kept_for_the_job_s_silos_alone(store):
    add_job(store)
    store.set_job_silos("job-0001", [JobSilo("a", 10, SiloState.PRESENT, "")])
    for n in (5, 2**33):  # a later report replaces an earlier one
        told = [SentPayloads(silo, "ExchangeTrees", 2, n) for silo in ("a", "stranger")]
        store.set_sent("job-0001", told)
    assert store.sent("job-0001") == (SentPayloads("a", "ExchangeTrees", 2, 2**33),)
    store.set_sent("no-such-job", told)
    assert store.sent("no-such-job") == ()


def test_jobs_are_counted_by_state(store):
    for k in range(3):
        add_job(store, f"job-000{k}")
    store.set_state("job-0002", JobState.FAILED, "why", 3.0)
    states = {state: n for state, n in store.states().items() if n}
    assert states == {JobState.PENDING: 2, JobState.FAILED: 1}


def test_byte_totals_are_replaced_by_silo_and_step(store):
    add_job(store)
    one = StepTotal("a", "ExchangeTrees", 1, 2, 3, 2**33, 5)
    store.set_traffic("job-0001", [one, StepTotal("b", "ExchangeTrees", 1, 1, 1, 1, 1)], 3, 4)
    for _ in range(2):  # the first answer was lost
        store.set_traffic("job-0001", [one + one, StepTotal("a", "ExchangeSums", 0, 7)], 33, 44)
    assert store.byte_totals("job-0001") == (
        StepTotal("a", "ExchangeSums", 0, 7),
        StepTotal("a", "ExchangeTrees", 2, 4, 6, 2**34, 10),
        StepTotal("b", "ExchangeTrees", 1, 1, 1, 1, 1),
    )
    job = store.job("job-0001")
    assert (job.control_bytes_up, job.control_bytes_down) == (33, 44)


def test_a_silos_state_and_the_result_are_kept(store):
    add_job(store)
    present = JobSilo("a", 20, SiloState.PRESENT, "")
    lost = JobSilo("b", 10, SiloState.LOST, "silent at the deadline")
    store.set_job_silos("job-0001", [JobSilo("b", 10, SiloState.PRESENT, "")])
    store.set_job_silos("job-0001", [present])
    store.set_job_silos("job-0001", [lost])
    assert store.job_silos("job-0001") == (present, lost)
    store.set_result("job-0001", {"model.ubj": "5a", "metrics.csv": "5b"}, "model.ubj", 3)
    job = store.job("job-0001")
    assert (job.artefacts, job.model, job.best_round) == (
        {"model.ubj": "5a", "metrics.csv": "5b"},
        "model.ubj",
        3,
    )


def test_a_silo_that_registers_again_keeps_its_first_date(store):
    store.register_silos({"b": Registration("i1", "0.1.0", ("histogram", "bagging"), 1024)}, 10.0)
    store.register_silos({"a": Registration("i2", "0.1.0", ("bagging",), 512)}, 11.0)
    store.register_silos({"b": Registration("i3", "0.2.0", ("bagging",), 2048)}, 12.0)
    a, b = store.silos()
    assert (a.name, b.name) == ("a", "b")
    assert (b.instance_id, b.version, b.strategies) == ("i3", "0.2.0", ("bagging",))
    assert (b.row_count_class, b.first_seen, b.last_seen) == (2048, 10.0, 12.0)


def test_signs_of_life_are_of_silos_that_have_registered(store):
    for name in "ab":
        store.register_silos({name: Registration("i1", "0.1.0", ("bagging",), 1024)}, 10.0)
    store.seen({"b": 15.5, "stranger": 16.0})
    assert [(one.name, one.first_seen, one.last_seen) for one in store.silos()] == [
        ("a", 10.0, 10.0), ("b", 10.0, 15.5),
    ]  # fmt: skip


def test_a_failed_write_leaves_nothing_half_done(store):
    add_job(store)
    with pytest.raises(StorageFailed, match="storing byte totals"):
        store.set_traffic(
            "job-0001",
            [StepTotal("a", "ExchangeTrees", 1), StepTotal("a", "ExchangeSums", bytes_up=None)],
            0,
            0,
        )
    assert store.byte_totals("job-0001") == ()


def test_rounds_of_an_unknown_job_are_refused_without_printing_the_statement(store):
    with pytest.raises(StorageFailed) as caught:
        store.add_round("nowhere", FinishedRound(0, 1, 0.5, (), 1, 1, ("a",)))
    assert "INSERT" not in str(caught.value)


def test_sqlite_keeps_a_write_ahead_log(tmp_path):
    store = Store(str(tmp_path / "c.db"))
    with store._reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://localhost/x", "SQLite or PostgreSQL"),
        ("nonsense://x", "cannot be read|SQLite or PostgreSQL"),
        ("postgresql://u@127.0.0.1:1/x", "opening the database failed"),
        ("sqlite:////proc/nothing/here/x.db", "folder cannot be made"),
    ],
)
def test_an_unusable_database_is_told_plainly(url, message):
    with pytest.raises(StorageFailed, match=message):
        Store(url)


@pytest.mark.process
def test_a_full_disk_under_the_database_is_told_and_keeps_earlier_rounds(tmp_path):
    script = """
import resource, sys
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.store import Store
from hedgerow.services.wire.job_view import FinishedRound, Score
from hedgerow.services.wire.signed_job import JobStatement, OpenedJob, SignedJob
store = Store(sys.argv[1])
statement = JobStatement("f", b"nonce.", b"", 2e9, 1)
store.create_job(OpenedJob(SignedJob(statement.serialise(), b"", b""), statement, "o"), "n", 1.0)
j = statement.job_id
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
done = 0
try:
    for k in range(10_000):
        scores = (Score("test", "x" * 5000, 1.0),)
        store.add_round(j, FinishedRound(k, 1, 1.0, scores, 1, 1, ("a",)))
        done += 1
except StorageFailed as error:
    print(done, error)
"""
    path = tmp_path / "c.db"
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=300
    )
    assert ran.stderr == ""
    done, _, message = ran.stdout.partition(" ")
    assert "no room left while storing a round" in message
    store = Store(str(path))
    assert len(store.rounds("bm9uY2Uu")) == int(done) > 3
    store.close()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
