"""A preflight is a question: it starts nothing, and tells no more than accepting or declining."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.errors import DataError, PolicyDeclined, SignatureInvalid
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.job import Booster, WarmStart
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import LevelDecision
from hedgerow.client_agent.admission import (
    MOST_A_MINUTE,
    PreflightAnswers,
    _hessians,
    check_start,
)
from hedgerow.client_agent.opened import TableOpenings
from hedgerow.client_agent.policy import Policy
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.rpc.federation import Preflight
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.acceptance import Acceptance, Declined, PreflightAnswer
from hedgerow.services.wire.job_view import CheckState
from hedgerow.services.wire.signed_job import PREFLIGHT_LABEL, SignedJob, open_job, sign_job
from tests.adversary.people import People
from tests.adversary.test_signed_jobs import ALL, Victim, spec
from tests.federation.histograms import job_of, run, silos_of
from tests.federation.memory import MemoryLink


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path / "pki")


@pytest.fixture
def victim(people: People, tmp_path: Path) -> Iterator[Victim]:
    made = Victim(people, tmp_path / "silo", operators=["ann"])
    yield made
    made.state.close()


@pytest.fixture
def ann(people: People) -> FileIdentity:
    return people.identity(Role.OPERATOR, "ann")


def question(identity: FileIdentity, job: bytes | None = None) -> SignedJob:
    return sign_job(spec() if job is None else job, identity, 0.01, PREFLIGHT_LABEL)


def states(answer: PreflightAnswer | None) -> dict[str, str]:
    assert answer is not None
    return {check.name: check.state.value for check in answer.checks}


def why(answer: PreflightAnswer | None) -> list[str]:
    assert answer is not None
    return [check.detail for check in answer.checks if check.state is CheckState.FAILED]


def regression(objective: str, booster: str) -> bytes:
    """Return a job of three silos."""
    text = 'strategy = "histogram"\ntask = "regression"\nlabel = "y"\nsilos = ["a", "b", "c"]\n'
    return job_file.parse(
        f'{text}min_silos = 3\n[booster]\nobjective = "{objective}"\n{booster}\n[histogram]\n'
    )


def answered(
    victim: Victim, ann: FileIdentity, asked: bytes, features: Any, labels: Any, **more: Any
) -> list[str]:
    """Return why a silo with these rows would decline a job."""
    own = victim.parts.load(job_wire.decode(asked))
    table = replace(own, features=features.astype(np.float32), y=labels, **more)
    victim.parts = replace(victim.parts, load=lambda _: table)
    return why(PreflightAnswers(victim.parts).answer(Preflight(question(ann, asked), ALL)))


def test_it_says_what_accepting_the_same_job_would_say(victim: Victim, ann: FileIdentity) -> None:
    found = PreflightAnswers(victim.parts).answer(Preflight(question(ann), ALL))
    assert found is not None
    assert set(states(found).values()) == {"passed"}
    accepted = victim.assign(sign_job(spec(), ann))
    assert isinstance(accepted, Acceptance)
    assert (found.schema, found.n_samples) == (accepted.schema, accepted.n_samples)


def test_it_says_that_a_job_lacks_companions_before_anyone_accepts(
    victim: Victim, ann: FileIdentity
) -> None:
    earlier = (*ALL, Silo("d"))
    sums = victim.parts.opened.of_job(job_wire.decode(spec()), "earlier", (earlier,))
    sums.agree(dict.fromkeys(earlier, ()), victim.parts.silo)
    sums.bind()
    found = PreflightAnswers(victim.parts).answer(Preflight(question(ann), ALL))
    assert states(found)["policy"] == "failed"
    (told,) = why(found)
    assert "it lacks companions: d (with a, b, c); max_close_sums of the job allows 0" in told


def test_a_table_that_has_been_explored_says_so_before_anyone_accepts(
    victim: Victim, ann: FileIdentity
) -> None:
    look = job_file.parse('strategy = "explore"\nmin_silos = 3\nsilos = ["a", "b", "c"]\n')
    found = PreflightAnswers(victim.parts).answer(Preflight(question(ann, look), ALL))
    (told,) = why(found)
    assert told.endswith(
        "explore sends counts in step 'release'; add 'counts' to may_send to allow it"
    )
    allowed = Policy(operators=("ann",), may_send=("schema", "keys", "masked", "counts"))  # type: ignore[arg-type]
    opened = TableOpenings(victim.state.records("opened"), "t", 0, 1)
    victim.parts = replace(victim.parts, policy=allowed, opened=opened)
    found = PreflightAnswers(victim.parts).answer(Preflight(question(ann, look), ALL))
    assert "failed" not in states(found).values()
    opened.note_told(job_wire.decode(look), "earlier", ())
    found = PreflightAnswers(victim.parts).answer(Preflight(question(ann, look), ALL))
    declined = victim.assign(sign_job(look, ann))
    assert isinstance(declined, Declined)
    assert why(found) == [declined.reason]
    assert "max_explorations: 1 explore jobs have told counts" in declined.reason


@pytest.mark.parametrize(("weights", "told"), [("one", True), ("heavy", True), ("equal", False)])
def test_a_column_of_weights_leaves_no_few_rows_in_the_sums(
    victim: Victim, ann: FileIdentity, weights: str, told: bool
) -> None:
    """Of an indicator of one person as the weight, the root's sum is this person's gradient."""
    n = 1_000
    column = {"one": np.zeros(n), "heavy": np.full(n, 1e-3), "equal": np.ones(n)}[weights]
    column[7] = 1.0
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, 2)).astype(np.float32)
    labels = (rng.random(n) < 0.5).astype(np.float32)
    table = replace(victim.parts.load(job_wire.decode(spec())), features=features, y=labels)
    victim.parts = replace(victim.parts, load=lambda _: replace(table, weight=column))
    found = PreflightAnswers(victim.parts).answer(Preflight(question(ann), ALL))
    assert [("policy rule min_cell: the column of weights" in one) for one in why(found)] == (
        [True] if told else []
    )


@pytest.mark.parametrize(
    ("task", "objective", "one", "others", "told"),
    [
        ("regression", "reg:gamma", -40.0, 0.0, True),  # its gradient is -label * e^40
        ("regression", "reg:gamma", -200.0, 0.0, True),
        ("regression", "reg:gamma", -1.0, 0.0, False),
        ("regression", "reg:squarederror", -40.0, 0.0, False),
        ("binary", "binary:logistic", 0.0, 30.0, True),  # hessians are of its bins alone
        ("binary", "binary:logistic", 0.0, 2.0, False),
    ],
)
def test_base_margins_leave_no_few_rows_in_the_sums(
    victim: Victim, ann: FileIdentity, task: str, objective: str, one: float, others: float,
    told: bool,
) -> None:  # fmt: skip
    """Of a column in which one person's number is far off, the root's sum is of this person."""
    rng = np.random.default_rng(0)
    labels = (rng.random(1_000) < 0.5).astype(np.float64) if task == "binary" else rng.random(1_000)
    margins = np.full((1_000, 1), others, np.float32)
    margins[7] = one
    text = f'strategy = "histogram"\ntask = "{task}"\nlabel = "y"\nsilos = ["a", "b", "c"]\n'
    text += f'min_silos = 3\n[booster]\nobjective = "{objective}"\n'
    asked = job_file.parse(text + '[histogram]\nbase_margin = ["months"]\n')
    if one == -40.0 and told:
        job = job_wire.decode(asked)
        g = objective_of(objective, job.task, job.booster).pairs(margins, labels)[:, 0]
        assert np.float32(-g.astype(np.float64).sum() / np.exp(40.0)) == np.float32(labels[7])
    features = rng.normal(size=(1_000, 2))
    found = answered(victim, ann, asked, features, labels, base_margin=margins)
    assert [("policy rule min_cell: the column of base margins" in one) for one in found] == (
        [True] if told else []
    )


@pytest.mark.parametrize(
    ("objective", "booster", "told"),
    [
        ("reg:pseudohubererror", "base_score = 9\nhuber_slope = 1e-3", True),
        ("reg:pseudohubererror", "huber_slope = 1e-6", True),
        ("reg:pseudohubererror", "", False),
        ("fair", "base_score = 9\nfair_c = 1e-3", True),
        ("log_cosh", "base_score = 19", True),  # far from all, and from the one least
        ("log_cosh", "base_score = 0.5", False),
        ("reg:squaredlogerror", "base_score = 10", True),
        ("reg:squaredlogerror", "", False),
        ("reg:gamma", "base_score = 9", False),
    ],
)
def test_a_loss_begins_beside_no_single_label(
    victim: Victim, ann: FileIdentity, objective: str, booster: str, told: bool
) -> None:
    """One person's number is 9, all others' below 1: the root's hessians are of this person."""
    rng = np.random.default_rng(0)
    labels = rng.random(1_000)
    labels[7] = 800.0 if objective == "reg:squaredlogerror" else 9.0
    asked = regression(objective, booster)
    job = job_wire.decode(asked)
    if told and job.booster.base_score is not None:
        loss = objective_of(objective, job.task, job.booster)
        begin = np.full((1_000, 1), loss.margin_of(job.booster.base_score), np.float32)
        h = loss.pairs(begin, labels)[:, 1].astype(np.float64)
        assert h[7] > 0.9 * h.sum()
    found = answered(victim, ann, asked, rng.normal(size=(1_000, 2)), labels)
    rule = f"min_cell: {objective} where it begins (base_score, slope) leaves fewer than 10 rows"
    assert [rule in one for one in found] == ([True] if told else [])


FAR = "base_score = -1\nmax_delta_step = 10\neta = 1\n"


@pytest.mark.parametrize(
    ("objective", "booster", "far", "told"),
    [
        ("reg:pseudohubererror", f"{FAR}huber_slope = 1e-2", 9.0, True),
        ("reg:pseudohubererror", "huber_slope = 1e-2", 9.0, True),
        ("reg:pseudohubererror", "max_delta_step = 10", 9.0, True),
        ("reg:pseudohubererror", f"{FAR}huber_slope = 1e-1", 0.5, False),
        ("reg:pseudohubererror", "", 9.0, False),
        ("fair", f"{FAR}fair_c = 1e-2", 9.0, True),
        ("log_cosh", FAR, 30.0, True),
        ("log_cosh", FAR, 0.5, False),
        ("reg:squarederror", FAR, 9.0, False),
    ],
)
def test_no_job_brings_margins_beside_a_single_label(
    victim: Victim, ann: FileIdentity, objective: str, booster: str, far: float, told: bool
) -> None:
    """Margins begin far from all labels alike, and one step of known length is to one of them."""
    rng = np.random.default_rng(0)
    labels = rng.random(1_000)
    labels[7] = far
    asked = regression(objective, booster)
    found = answered(victim, ann, asked, rng.normal(size=(1_000, 2)), labels)
    rule = f"policy rule min_cell: {objective}, in rounds to which this job can bring it"
    assert [rule in one for one in found] == ([True] if told else [])


def test_the_root_after_such_a_step_is_one_row_s() -> None:
    """The attack without admission: three silos, whose leaves are facts, open it."""
    schema = Schema((Feature("u"), Feature("v")), "y", Task.REGRESSION, 0)
    rng = np.random.default_rng(0)
    labels = rng.random(600)
    labels[7] = 9.0
    data = Dataset(schema, rng.normal(size=(600, 2)).astype(np.float32), labels)
    roots: dict[int, int] = {}

    class Link(MemoryLink):
        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if isinstance(reply, LevelDecision) and reply.totals is not None and at.level == 0:
                roots[at.round] = int(reply.totals.sums[1])
            return reply

    booster = Booster(
        max_depth=1, max_bin=16, min_child_weight=0.0, lambda_=0.0, eta=1.0, base_score=-1.0,
        objective="reg:pseudohubererror", huber_slope=1e-2, max_delta_step=10.0,
    )  # fmt: skip
    job = job_of(Histogram(rounds=2), Task.REGRESSION, booster, min_silos=3)
    job = replace(job, max_close_sums=9)
    outcome = run(job, silos_of(data, (200, 200, 200)), make_link=Link)
    assert outcome.error is None, outcome.error
    assert roots[1] == 1 << 24, "the hessian of a row at its own label, and of no other one"
    assert roots[0] < roots[1] / 1_000


def test_a_start_from_a_model_leaves_no_few_rows_in_the_sums(victim: Victim) -> None:
    """Two persons alike but for the label stay where they were; all others have been explained."""
    schema = Schema((Feature("u"), Feature("v")), "y", Task.BINARY, 2)
    labels = np.repeat([0.0, 1.0], 300)
    x = np.stack([labels, labels], axis=1).astype(np.float32)
    x[[7, 307]] = 1.0, 0.0
    booster = Booster(max_depth=2, max_bin=16, min_child_weight=0.0, lambda_=0.0, eta=1.0)
    job = job_of(Histogram(rounds=10), Task.BINARY, booster, min_silos=3)
    job = replace(job, max_close_sums=9)
    for told in (True, False):
        if not told:
            labels[::10] = 1 - labels[::10]  # of many rows whose labels are not explained
        data = Dataset(schema, x, labels)
        silos = {f"silo-{k}": data.take(np.arange(k, 600, 3)) for k in range(3)}
        outcome = run(job, silos)
        assert outcome.artefact is not None, outcome.error
        raw = outcome.artefact.files["model.ubj"]
        victim.state.keep(f"run-{told:d}", "model.ubj", raw)
        start = WarmStart(f"run-{told:d}", sha256(raw).hexdigest(), schema.digest)
        check_start(victim.parts, job, schema, silos["silo-1"])
        with pytest.raises(PolicyDeclined, match="the model from") if told else nullcontext():
            check_start(victim.parts, replace(job, warm_start=start), schema, silos["silo-1"])
    stock = replace(job, booster=replace(job.booster, objective="reg:of-stock-xgboost"))
    assert not list(_hessians(stock, data, np.zeros((600, 1), np.float32))), "is no reason either"


@pytest.mark.parametrize("who", ["bob", "ann"])
def test_whom_the_policy_does_not_name_learns_nothing_of_the_table(
    people: People, victim: Victim, who: str
) -> None:
    asker = people.identity(Role.OPERATOR, who)
    unfit = job_file.parse(
        'strategy = "bagging"\nmin_silos = 2\nsilos = ["a", "b", "c"]\nfeatures = ["secret"]\n'
    )

    def load(job: JobParameters) -> object:
        victim.loaded += 1
        raise DataError("there is no feature 'secret'")

    victim.parts = replace(victim.parts, load=load)  # type: ignore[arg-type]
    found = PreflightAnswers(victim.parts).answer(Preflight(question(asker, unfit), ALL))
    declined = victim.assign(sign_job(unfit, asker))
    assert found is not None
    assert found.schema is None
    assert isinstance(declined, Declined)
    assert why(found) == [declined.reason]
    assert victim.loaded == (0 if who == "bob" else 2)
    expected = ("failed", "omitted") if who == "bob" else ("passed", "failed")
    assert (states(found)["policy"], states(found)["columns"]) == expected
    assert states(found)["label"] == "omitted"


def test_it_starts_no_job_and_a_job_is_no_question(
    victim: Victim, people: People, ann: FileIdentity
) -> None:
    asked = question(ann)
    given = victim.assign(asked)
    assert isinstance(given, Declined)
    assert "the signature is not that of the job's operator" in given.reason
    coordinator = people.identity(Role.COORDINATOR, "c")
    with pytest.raises(SignatureInvalid, match="the signature is not that of"):
        open_job(asked, coordinator)
    preflights = PreflightAnswers(victim.parts)
    assert preflights.answer(Preflight(sign_job(spec(), ann), ALL)) is None
    assert preflights.answer(Preflight(question(coordinator), ALL)) is None
    assert victim.loaded == 0
    assert preflights.answer(Preflight(asked, ALL)) is not None
    assert not victim.parts.accepted.open


def test_a_coordinator_that_repeats_a_question_costs_a_silo_little(
    victim: Victim, ann: FileIdentity
) -> None:
    now = [0.0]
    preflights, asked = (
        PreflightAnswers(victim.parts, lambda: now[0]),
        Preflight(question(ann), ALL),
    )
    for _ in range(MOST_A_MINUTE):
        assert "failed" not in states(preflights.answer(asked)).values()
    late = preflights.answer(asked)
    assert states(late)["job"] == "failed"
    assert "ask again later" in why(late)[0]
    assert victim.loaded == MOST_A_MINUTE
    now[0] = 60.0
    assert "failed" not in states(preflights.answer(asked)).values()


def test_other_silos_than_the_job_allows_are_refused(victim: Victim, ann: FileIdentity) -> None:
    found = PreflightAnswers(victim.parts).answer(Preflight(question(ann), (*ALL, "mallory")))  # type: ignore[arg-type]
    assert why(found) == ["the coordinator added silo mallory, which the job does not allow"]


def test_which_features_and_peers_a_silo_trusts_is_not_announced() -> None:
    policy = Policy.model_validate(
        {"features": ["hiv"], "peers": ["a"], "operators": ["ann"], "max_depth": 3,
         "may_send": ["keys", "masked"], "strategies": ["histogram"]}
    )  # fmt: skip
    assert policy.announced == ()
    assert policy.model_copy(update={"announce": True}).announced == (
        "features", "max_depth = 3", 'may_send = ["keys", "masked"]', "operators", "peers",
    )  # fmt: skip
