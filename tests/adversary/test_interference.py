"""No play of a job tells whose rows are whose, but for what the silos say themselves."""

from __future__ import annotations

from functools import cache

import pytest

from tests.adversary import clear, mutate, oracle
from tests.adversary.arena import VARIANTS, variant
from tests.adversary.clear import IN_CLEAR, TOGETHER
from tests.adversary.defences import ROOT
from tests.adversary.pairs import leaks

PAIRED = [name for name in VARIANTS if mutate.paired(name)]


@cache
def honest(name: str) -> tuple[list[str], frozenset[tuple[str, str]], frozenset[str]]:
    """Return what tells silos apart where nobody lies, what they say in clear and add together."""
    of = variant(name)
    found, said, together = [], set(), set()
    with oracle.watching():
        outcome, witness, _ = mutate._run(of, None, None, "honest")
        assert not outcome.errors, outcome.errors
        found += witness.bare
        first = witness.transcript
        compared = {event[1:3] for event in first.events if event[0] == "total"}
        assert compared == {known[:2] for known in first.totals}, "a total is not looked at"
        for change in of.changes():
            again = mutate._run(of, None, None, "honest", first, change)[1].transcript
            found += leaks(first, again)
            said |= again.clear
            together |= again.together
    return found, frozenset(said), frozenset(together)


@pytest.mark.parametrize("name", PAIRED)
def test_a_job_without_a_lie_tells_no_silos_apart(name: str) -> None:
    """Rows change places in a group; all that leaves is the same but for what is said in clear."""
    assert honest(name)[0] == []


def test_silos_say_in_clear_what_their_strategies_list_and_no_more() -> None:
    found: dict[str, set[tuple[str, str]]] = {}
    for name in PAIRED:
        found.setdefault(variant(name).job.parameters.name, set()).update(honest(name)[1])
    listed = {
        strategy: {(step, path) for step, paths in steps.items() for path in paths}
        for strategy, steps in IN_CLEAR.items()
    }
    assert found == listed


def test_sums_that_follow_from_a_silo_s_rows_together_are_listed_and_no_others() -> None:
    found: dict[str, set[str]] = {}
    for name in PAIRED:
        if sums := honest(name)[2]:
            found.setdefault(variant(name).job.parameters.name, set()).update(sums)
    assert found == {strategy: set(sums) for strategy, sums in TOGETHER.items()}


def told_apart(
    name: str,
    word: str,
    lost: tuple[str, int] = ("", 0),
    told: tuple[str, ...] = ("element", "element swapped", "turned"),
) -> tuple[list[str], int]:
    """Tell all silos lies in arrays of a part of replies; return what tells silos apart.

    Parameters
    ----------
    word : str
        The field that has the arrays.
    told : tuple of str
        The lies.
    lost : tuple of str and int
        A step and a round in which a silo is then said to be lost.
    """
    with oracle.watching():
        record = mutate.recording(name)
    found, n_played = [], 0
    then = None
    if lost[0]:
        silo = sorted(variant(name).tables)[2]
        moments = [at for direction, step, at in record.payloads if step == lost[0]]
        moment = ("loss", lost[0], min(at for at in moments if at.round == lost[1]))
        then = mutate.Case(0, name, moment, mutate.LOSS, "lost", frozenset([silo]), "lost")
    with oracle.watching():
        for group, lies in mutate.groups((name,)):
            for moment, target, lie in lies if group[1] == "reply" else ():
                if lie not in told or word not in dict(target.path):
                    continue
                silos = frozenset(record.payloads[moment])
                case = mutate.Case(0, name, moment, target, lie, silos, f"{lie}/3", then)
                verdict = mutate.judge(case)
                n_played += verdict.played_twice
                found += verdict.faults
    return found, n_played


@pytest.mark.parametrize("name", ["hist-six", "hist-drawn"])
def test_made_up_leaves_and_a_loss_tell_no_silo_s_sums(name: str) -> None:
    """The difference of a round's total and the next one's, without a silo, was its histogram."""
    found, n_played = told_apart(name, "closed", ("histograms-masked", 1))
    assert found == []
    assert n_played >= 2


def test_made_up_leaves_do_not_ask_single_silos() -> None:
    """The power of two above a silo's gradients answered questions about single rows."""
    found, n_played = told_apart("hist-six", "closed")
    assert found == []
    assert n_played >= 2


def test_bounds_that_rows_are_outside_of_do_not_ask_single_silos() -> None:
    """Silos whose rows were outside of them refused the job."""
    found, n_played = told_apart("hist-summary", "total", told=("zeros",))
    assert found == []
    assert n_played >= 1


def test_no_silo_says_by_refusing_that_it_has_missing_values() -> None:
    found, n_played = told_apart("hist-six", "derived")
    assert found == []
    assert n_played >= 1


@pytest.mark.parametrize("word", ["totals", "row_counts"])
def test_no_silo_takes_a_total_that_is_changed(word: str) -> None:
    found, n_played = told_apart("hist-on", word)
    assert found == []
    assert n_played >= 2


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("bagging-mean", "total"),
        ("bagging", "base_score"),
        ("bagging", "eta"),
        ("llr-leaves", "singles"),
        ("llr-ridge", "doubles"),
        ("llr-secure", "singles"),
        ("dp", "intervals"),
        ("dp", "edges"),
        ("boost", "values"),
        ("boost-clear", "values"),
    ],
)
def test_what_follows_from_a_false_sum_tells_no_silos_apart(name: str, word: str) -> None:
    told = ("element", "element swapped", "a bit", "zero", "doubled", "turned")
    found, n_played = told_apart(name, word, told=told)
    assert found == []
    assert n_played >= 1


def test_no_sum_is_over_fewer_silos_than_a_policy_asks_for() -> None:
    """A silo is lost before keys are agreed on, and the other group would go on without its own."""
    name, found = "hist-least", []
    silos = sorted(variant(name).tables)
    with oracle.watching():
        for silo in silos:
            at = min(at for _, step, at in mutate.recording(name).payloads if step == "enter")
            moment, who = ("loss", "enter", at), frozenset([silo])
            found += mutate.judge(
                mutate.Case(0, name, moment, mutate.LOSS, "lost", who, "least")
            ).faults
    assert found == []


def test_the_threat_model_lists_what_is_said_in_clear() -> None:
    lines = (ROOT / "docs/threat-model.md").read_text().splitlines()
    first = lines.index("| strategy | step | fields in clear |") + 2
    assert lines[first : lines.index("", first)] == clear.table()
    first = lines.index("| strategy | sum | what a silo adds |") + 2
    assert lines[first : lines.index("", first)] == clear.table_of_sums()
