"""Which silos of a job are asked, and when the waiting for them is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hedgerow.boosting.errors import QuorumLost, SchemaMismatch
from hedgerow.boosting.exchange import Silo
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator.server.gathering import (
    RETURN_SECONDS,
    SETTLE_SECONDS,
    CohortFormation,
    JobAttempt,
)
from hedgerow.coordinator.server.waiting import ANSWERS, Waiting, explained
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.acceptance import Acceptance
from tests.coordinator.server.bench import REGISTRATION, SCHEMA, job_of

A, B, C = map(Silo, "abc")
ACCEPTANCE = Acceptance(SCHEMA, 5, b"", b"", b"")


def gathering(attempt: JobAttempt, min_silos: int = 2, patience: float = 60.0) -> CohortFormation:
    return CohortFormation(
        job_wire.decode(job_of(min_silos=min_silos, patience=patience)), attempt, 0.0
    )


def there(*silos: Silo) -> dict[Silo, Registration]:
    return dict.fromkeys(silos, REGISTRATION)


def test_the_first_silo_of_an_open_job_is_asked_only_with_its_company() -> None:
    attempt = JobAttempt(1, set(), 0)
    waiting = gathering(attempt)
    for now in (0.0, SETTLE_SECONDS + 1, 50.0):
        assert not waiting.look(there(A), now)
        assert not attempt.asks(A)
        assert not waiting.over(now)
    assert not waiting.look(there(A, B), 51.0), "another may follow at once"
    assert waiting.look(there(A, B), 51.0 + SETTLE_SECONDS + 0.1)
    assert attempt.candidates == {A, B}
    Policy(min_silos=2).check_cohort(tuple(sorted(attempt.candidates)))


def test_an_open_job_starts_once_no_new_silo_registers_and_all_have_answered() -> None:
    attempt = JobAttempt(1, set(), 0)
    waiting = gathering(attempt)
    waiting.look(there(A, B), 0.0)
    assert waiting.look(there(A, B), 2.0)
    attempt.accepted = {A: ACCEPTANCE, B: ACCEPTANCE}
    assert waiting.over(2.0)
    assert waiting.look(there(A, B, C), 3.0)
    assert not waiting.over(20.0), "c has not answered"
    attempt.accepted[C] = ACCEPTANCE
    assert not waiting.over(3.0 + SETTLE_SECONDS)
    assert waiting.over(3.1 + SETTLE_SECONDS)


def test_silos_whose_policy_does_not_allow_the_strategy_are_not_asked() -> None:
    attempt = JobAttempt(1, set(), 0)
    waiting = gathering(attempt)
    registered = {**there(A, B), C: Registration("i", "0.1.0", ("dp_tree",), 0)}
    waiting.look(registered, 0.0)
    waiting.look(registered, 2.0)
    assert attempt.candidates == {A, B}


def test_a_job_with_a_list_waits_for_all_of_it_and_no_others() -> None:
    attempt = JobAttempt(1, {A, B}, 0)
    waiting = gathering(attempt)
    assert not waiting.look(there(A, B, C), 10.0)
    attempt.accepted[A] = ACCEPTANCE
    assert not waiting.over(10.0)
    attempt.decline(B, "policy")
    assert waiting.over(10.0)


def test_a_later_attempt_with_enough_silos_waits_less_long_for_the_others() -> None:
    for number, patience in ((1, 60.0), (2, 10.0 + RETURN_SECONDS)):
        attempt = JobAttempt(number, {A, B, C}, 0)
        waiting = gathering(attempt)
        attempt.accepted[A] = ACCEPTANCE
        assert not waiting.over(59.9), "two are needed"
        assert waiting.over(60.1)
        attempt.accepted[B] = ACCEPTANCE
        assert not waiting.over(10.0)
        assert not waiting.over(patience)
        assert waiting.over(patience + 0.1)


def test_a_later_attempt_that_has_enough_silos_late_waits_as_long_for_the_others() -> None:
    attempt = JobAttempt(2, {A, B, C}, 0)
    waiting = gathering(attempt)
    waiting.look(there(A, B, C), 0.0)
    attempt.accepted[A] = ACCEPTANCE
    assert not waiting.over(70.0), "b and c are there, and two are needed"
    for late in (70.0, 110.0):
        attempt.accepted[B] = ACCEPTANCE
        assert not waiting.over(late), "c has not had its time"
        attempt.lose(B, "its lease ended")
        assert not waiting.over(late + 1.0), "enough are enough only while they are there"
    attempt.accepted[B] = ACCEPTANCE
    assert not waiting.over(119.0)
    assert not waiting.over(119.0 + 2 * RETURN_SECONDS), "c holds a lease"
    waiting.look(there(A, B), 150.0)
    assert not waiting.over(119.0 + RETURN_SECONDS)
    assert waiting.over(119.1 + RETURN_SECONDS), "c is away"


def test_a_later_attempt_with_too_few_silos_is_not_the_last() -> None:
    attempt = JobAttempt(2, {A, B}, 0, now=lambda: 3723.0)
    waiting = gathering(attempt)
    attempt.accepted[A] = ACCEPTANCE
    with pytest.raises(QuorumLost, match="1 accepted; b has not answered since 01:02:03") as lost:
        waiting.check_quorum()
    assert attempt.unnamed(str(lost.value)) == [], "the error names b already"
    attempt.decline(B, "policy")
    with pytest.raises(SchemaMismatch, match="1 accepted; b declined"):
        waiting.check_quorum()


def test_too_few_silos_are_reported_with_what_each_did() -> None:
    attempt = JobAttempt(1, set(), 0)
    waiting = gathering(attempt)
    waiting.look(there(A), 0.0)
    with pytest.raises(
        SchemaMismatch, match=r"needs 2 silos \(min_silos = 2\), 0 accepted; a waited for others$"
    ):
        waiting.check_quorum()
    attempt = JobAttempt(1, {A, B, C}, 0, now=lambda: 3723.0)
    attempt.bar(A, "was refused (another job)")
    attempt.decline(B, "policy")
    with pytest.raises(SchemaMismatch) as caught:
        gathering(attempt).check_quorum()
    assert str(caught.value).endswith(
        "0 accepted; b declined (policy) at 01:02:03 UTC; a was refused (another job) at "
        "01:02:03 UTC; c has not answered since 01:02:03 UTC"
    )


def test_a_silo_that_is_alive_and_has_not_answered_has_as_much_time_again() -> None:
    attempt = JobAttempt(1, {A, B}, 0)
    waiting = gathering(attempt)
    attempt.accepted[A] = ACCEPTANCE
    waiting.look(there(A), 60.1)
    assert waiting.over(60.1), "b is away"
    waiting.look(there(A, B), 60.2)
    assert not waiting.over(60.2), "b was frozen and is there again"
    attempt.bar(B, "was refused (another job)")
    assert waiting.over(60.3), "b has said why it does not come"
    attempt.barred.clear()
    assert not waiting.over(119.0)
    assert waiting.over(120.1)


def test_a_silo_that_failed_and_answers_again_takes_part() -> None:
    attempt = JobAttempt(1, {A, B}, 0)
    attempt.accepted = {A: ACCEPTANCE, B: ACCEPTANCE}
    attempt.fail(B, "the disk of its state folder is full")
    assert "b failed (the disk of its state folder is full) at" in str(attempt.waiting)
    assert not gathering(attempt).over(1.0)
    attempt.admit(B, ACCEPTANCE)
    assert attempt.absences() == {}
    assert gathering(attempt).over(1.0)


def test_a_job_with_a_list_ends_at_once_when_too_few_of_it_are_left() -> None:
    attempt = JobAttempt(1, {A, B, C}, 0, now=lambda: 3723.0)
    waiting = gathering(attempt, min_silos=3)
    waiting.look(there(A, B), 1.0)
    attempt.decline(B, "policy")
    assert not waiting.over(1.0), "a may have more to say"
    attempt.accepted[A] = ACCEPTANCE
    assert waiting.over(1.0)
    with pytest.raises(SchemaMismatch) as caught:
        waiting.check_quorum()
    why = "the job needs 3 silos (min_silos = 3), 1 accepted; b declined (policy) at 01:02:03 UTC"
    assert str(caught.value) == why, "c has not had its time, so it is not to blame"


def test_an_open_job_ends_at_once_when_nobody_else_of_the_roster_can_join() -> None:
    attempt = JobAttempt(1, set(), 0, now=lambda: 3723.0)
    waiting = gathering(attempt, min_silos=3)
    for now in (0.0, 2.0):
        waiting.look(there(A, B, C), now, frozenset({A, B, C}))
    attempt.accepted = {A: ACCEPTANCE, B: ACCEPTANCE}
    assert not waiting.over(4.0)
    attempt.decline(C, "policy")
    assert waiting.over(4.0)
    with pytest.raises(SchemaMismatch, match=r"2 accepted; c declined \(policy\) at 01:02:03 UTC$"):
        waiting.check_quorum()
    for roster in (frozenset({A, B, C, Silo("d")}), frozenset[Silo]()):
        waiting.look(there(A, B, C), 4.0, roster)
        assert not waiting.over(4.0), "another silo may still join"
    attempt.accepted[B] = replace(ACCEPTANCE, n_samples=0)
    waiting.look(there(A, B, C), 4.0, frozenset({A, B, C, Silo("d")}))
    assert waiting.over(4.0), "a silo without rows does not count"


def test_an_open_job_names_at_its_deadline_who_could_have_joined() -> None:
    attempt = JobAttempt(1, set(), 0)
    waiting = gathering(attempt, min_silos=3)
    other = Registration("i", "0.1.0", ("dp_tree",), 0)
    waiting.look({A: REGISTRATION, B: other}, 60.1, frozenset({A, B, C}))
    assert waiting.over(60.1)
    why = "a waited for others; b does not take part in bagging jobs; c is not registered$"
    with pytest.raises(SchemaMismatch, match=why):
        waiting.check_quorum()


def test_a_line_names_twelve_silos_and_how_many_more() -> None:
    silos = tuple(Silo(f"s{k:02d}") for k in range(14))
    said = explained(Waiting(ANSWERS, 0.0, silos), {}, set(silos[:13]), 2)
    names = ", ".join(silos[:12])
    assert str(said) == (
        f"waits since 00:00:00 UTC for {names} and 2 more: answers to the job (no agent of {names} "
        f"and 2 more is there; the crypto process of {names} and 1 more does not answer)"
    )
