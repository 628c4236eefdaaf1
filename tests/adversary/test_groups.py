"""Jobs whose sums are over unions of fixed groups: losses, returns, lies, and several jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob, PolicyDeclined, QuorumLost, SumRefused
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.steps import LevelDecision
from hedgerow.boosting.sums.groups import (
    Groups,
    Opened,
    OpenedSets,
    check_groups,
    groups_of_job,
    whole,
)
from hedgerow.boosting.sums.steps import PresentSet
from hedgerow.client_agent.attempt import Attempt
from hedgerow.client_agent.opened import TableOpenings, read_openings, would_add
from hedgerow.client_agent.records import RecordDamaged, Records
from hedgerow.client_agent.state import StateFolder
from hedgerow.coordinator.cli import main
from hedgerow.services.rpc.federation import Agreement, AttemptKey, SiloGroup
from tests import oracles
from tests.federation.histograms import plain_job, run, same, silos_of
from tests.federation.memory import Fault, MemoryJournal, MemoryLink, Outcome
from tests.federation.processes import federation
from tests.federation.test_faults import succeeded
from tests.federation.test_histogram_faults import round_of, tree_of_rows

DATA = oracles.generated(Task.BINARY, 1200)
VICTIM = Silo("silo-1")


def job(rounds: int = 4, **other: Any) -> JobParameters:
    return replace(plain_job(rounds), max_close_sums=0, **other)


def tables(n: int) -> dict[str, Any]:
    return silos_of(DATA, (1200 // n,) * n)


def left_of(asked: JobParameters, silos: dict[str, Any]) -> tuple[Silo, ...]:
    return whole(groups_of_job(asked, tuple(silos)), set(silos) - {VICTIM})


def check(asked: JobParameters, outcome: Outcome, round_: int, silos: tuple[Silo, ...]) -> None:
    """Check that a round's tree is that of the pooled rows of some silos."""
    n = len(outcome.rounds[0].silos)
    size, names = 1200 // n, list(tables(n))
    rows = np.concatenate(
        [np.arange(k * size, (k + 1) * size) for k, silo in enumerate(names) if silo in silos]
    )
    assert same(round_of(outcome, round_), tree_of_rows(asked, outcome, round_, DATA.take(rows)))


def test_of_twelve_silos_a_lost_one_takes_its_group_out_of_the_sum() -> None:
    asked, silos = job(), tables(12)
    left = left_of(asked, silos)
    assert len(left) == 9
    outcome = run(asked, silos, faults=(Fault(VICTIM, "histograms-masked", 1),))
    waiting = [silo for silo in silos if silo not in (*left, VICTIM)]
    assert [*outcome.errors] == [VICTIM]
    assert len(waiting) == 2
    assert not outcome.checks.keys() & {*waiting}  # told the model, of which they checked a part
    sets = [result.silos for result in outcome.rounds]
    assert sets == [tuple(map(Silo, sorted(silos))), left, left, left]
    for r, own in enumerate(sets):
        check(asked, outcome, r, own)


def test_of_six_silos_a_lost_one_ends_the_attempt_and_the_other_group_goes_on() -> None:
    """Five of six would agree; but three are no more than half, so they need keys of their own."""
    asked, silos = job(), tables(6)
    left, journal = left_of(asked, silos), MemoryJournal()
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    fault = Fault(VICTIM, "histograms-masked", 1)
    first = run(asked, silos, faults=(fault,), memories=memories, journal=journal)
    assert isinstance(first.error, QuorumLost)
    rest = run(
        asked, silos, memories=memories, journal=journal, attempt=2, first_round=1,
        checkpoint=first.rounds[0].checkpoint, faults=(Fault(VICTIM, "sync"),),
    )  # fmt: skip
    assert [result.silos for result in rest.rounds] == [left] * 3


def test_of_five_silos_a_lost_one_is_waited_for() -> None:
    asked, silos = job(), tables(5)
    fault = Fault(VICTIM, "histograms-masked", 1)
    outcome = run(asked, silos, faults=(fault,))
    assert isinstance(outcome.error, QuorumLost)
    allowed = run(replace(asked, max_close_sums=1), silos, faults=(fault,))
    assert allowed.error is None
    assert VICTIM not in allowed.rounds[-1].silos


def test_a_silo_that_comes_back_brings_its_group_with_it() -> None:
    asked, silos = job(6), tables(12)
    outcome = run(asked, silos, joins_after={VICTIM: 2})
    everyone = tuple(map(Silo, sorted(silos)))
    sets = [result.silos for result in outcome.rounds]
    assert sets[0] == left_of(asked, silos)
    assert set(sets) == {everyone, sets[0]}
    assert sets[-1] == everyone
    assert not outcome.errors


@pytest.mark.parametrize(("lost", "n"), [(True, 0), (False, 0), (False, 9)])
def test_a_silo_is_in_no_sum_whose_other_silos_have_hardly_any_rows(lost: bool, n: int) -> None:
    """The attack: a group of three of which two have no rows, as of rows without a label, or two
    such groups, in each of which a silo is alone."""
    asked, silos = job(), tables(6)
    alone, other = groups_of_job(asked, tuple(silos))
    bare = {
        silo: silos[silo].take(np.arange(n)) for silo in (*alone[1:], *(() if lost else other[1:]))
    }
    faults = tuple(Fault(silo, "sync") for silo in other) if lost else ()
    outcome = run(asked, {**silos, **bare}, faults=faults, timeout_seconds=20.0, lied=True)
    assert not outcome.rounds
    error = outcome.errors[alone[0]]
    assert isinstance(error, SumRefused)
    assert "fewer than three have 10 rows or more" in str(error)


def test_a_sum_beside_silos_without_rows_counts_as_a_close_one_once() -> None:
    names = tuple(map(Silo, "abc"))
    for known in ([], [Opened(names, "an earlier job, of which all had rows")]):
        sets = OpenedSets((names,), 1, "job", list(known), 1)
        sets.agree(dict.fromkeys(names, ()), empty=names[1:], few=names[1:])
        assert sets.close_by(names)
        assert not sets.forbids(names), "the job and the policy allow one"
        for _ in range(3):
            sets.note(names)
            assert not sets.forbids(names)
        assert [one.close for one in sets.opened] == [False] * len(known) + [True]


def test_sums_of_one_silo_s_other_rows_are_refused() -> None:
    """The attack: in one job rows of one silo lack the label, in the next they have it; with a job
    in between, of whose rows all silos have others."""
    names = tuple(map(Silo, "abcdef"))
    groups = (names[:3], names[3:])

    def forbidden(changed: tuple[Silo, ...], differing: tuple[Silo, ...] = ()) -> str:
        sets = OpenedSets(groups, opened=[Opened(names, "monday")])
        jobs = {silo: ("between",) + ("monday",) * (silo in changed) for silo in names}
        others = dict.fromkeys(differing, ("monday",))
        sets.agree(dict.fromkeys(names, ()), changed=jobs, differing=others)
        for group in groups:
            if 0 < len(set(group) & set(changed)) < len(set(group) & {*changed, *differing}):
                assert not sets.forbids(group)
        return sets.forbids(names)

    for changed in (names[:1], names[:2], names[2:4], names[1:5]):
        assert "since job monday" in forbidden(changed)
        assert "alone of their group have far more or fewer rows" in forbidden(changed)
    for changed in ((), names[:3], names):
        assert not forbidden(changed)
    assert not forbidden(names[:2], names[2:3]), "the difference is over three"
    assert forbidden(names[:2], names[3:4])


def test_how_many_rows_sums_were_of_is_kept_by_table(tmp_path: Path) -> None:
    groups = groups_of_job(job(), SIX[:3])
    sums = openings(tmp_path).of_job(job(), "monday", groups)
    sums.agree(dict.fromkeys(SIX[:3], ()), SIX[0])
    assert sums.say_rows(1000, 0) == ((), ())
    sums.bind((1000, 0))
    later, monday = openings(tmp_path).of_job(job(), "tuesday", groups), ("monday",)
    for n_rows, left_out, said in (
        (1000, 0, ((), ())), (950, 50, ((), ())), (800, 200, (monday, ())), (0, 1000, (monday, ())),
        (0, 0, (monday, ())), (1200, 0, ((), monday)), (1200, 300, (monday, ())),
        (100, 0, ((), monday)), (99, 0, (monday, ())), (10_001, 0, (monday, ())),
    ):  # fmt: skip
        assert later.say_rows(n_rows, left_out) == said, (n_rows, left_out)


def test_jobs_at_once_over_other_rows_do_not_both_begin(tmp_path: Path) -> None:
    opened, groups = openings(tmp_path), groups_of_job(job(), SIX[:3])
    one, other, like = (opened.of_job(job(), name, groups) for name in ("one", "other", "like"))
    for sums, rows in ((one, (1000, 0)), (other, (100, 900)), (like, (1000, 0))):
        sums.agree(dict.fromkeys(SIX[:3], ()), SIX[0])
        assert sums.say_rows(*rows) == ((), ())
    one.bind((1000, 0))
    with pytest.raises(SumRefused, match="has begun its sums at the same time"):
        other.bind((100, 900))
    like.bind((1000, 0))
    again = opened.of_job(job(), "other", groups)
    assert again.say_rows(100, 900) == (("one", "like"), ())


@pytest.mark.process
def test_a_label_that_one_silo_s_rows_lack_tells_no_silo_s_sums(tmp_path: Path) -> None:
    """And a table that had hardly any rows: ten times as many are no other silo's business."""
    text = (
        'strategy = "histogram"\nmin_silos = 3\nsilos = ["s0", "s1", "s2"]\n'
        'start_timeout_seconds = 20\nfeatures = ["x0", "x1"]\nlabel = "%s"\n'
        '[columns]\nmissing_label = "drop"\n'
        "[histogram]\nrounds = 1\n[booster]\nmax_depth = 1\nbase_score = 0.5\n"
    )
    with federation(tmp_path, 3) as fed:
        for name, file in fed.silos.items():
            table = pq.read_table(file)
            label = table.column("label").to_numpy()
            given = np.arange(len(label)) % 2 if name == "s1" else np.ones(len(label))
            table = table.append_column("other", pa.array(label, mask=given == 0))
            half = pa.array(label, mask=np.arange(len(label)) % 2 == 0)
            table = table.append_column("half", half)
            pq.write_table(table.append_column("light", pa.array(given + 0.001)), file)
        succeeded(fed.end(fed.submit(text % "label")))
        view = fed.end(fed.submit(text % "other"))
        assert view.state == "FAILED"
        assert " s1 alone of their group have far more or fewer rows" in view.detail
        succeeded(fed.end(fed.submit(text % "label")))
        succeeded(fed.end(fed.submit(text % "half")))
        assert fed.end(fed.submit(text % "other")).state == "FAILED", "also with one in between"
        light = (text % "label").replace("[columns]", '[columns]\nweight = "light"')
        assert fed.end(fed.submit(light)).state == "FAILED"
        more = pq.read_table(fed.silos["s1"])
        pq.write_table(pa.concat_tables([more, more.slice(0, 12)]), fed.silos["s1"])
        succeeded(fed.end(fed.submit(text % "label")))


def test_groups_of_which_few_silos_have_rows_are_joined() -> None:
    names = tuple(map(Silo, "abcdefghi"))
    asked = replace(job(), silos=names)
    dealt = groups_of_job(asked, names)
    for empty in ((), dealt[0][:1], dealt[1][1:], dealt[0][:2] + dealt[2][:2], names[3:]):
        groups = groups_of_job(asked, [one for one in names if one not in empty], empty)
        assert sorted(silo for group in groups for silo in group) == sorted(names)
        assert all(len(set(group) - set(empty)) >= 3 for group in groups)
        check_groups(asked, groups, names, names[0])


class Forgetful(MemoryLink):
    """A coordinator that gives leaves of almost nothing, and then says that a silo was lost."""

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if isinstance(reply, LevelDecision) and reply.closed is not None and at.round == 0:
            tiny = replace(reply.closed, values=reply.closed.values * np.float32(1e-6))
            return replace(reply, closed=tiny)
        if step.name == "histograms-masked" and at.round == 1:
            assert isinstance(reply, PresentSet)
            return PresentSet(tuple(s for s in reply.present if s != VICTIM), {})
        return reply


@pytest.mark.parametrize("n", [6, 12])
def test_a_silo_that_is_said_to_be_lost_does_not_show_its_sums_by_difference(n: int) -> None:
    # Where the others end first, the coordinator waits for the one that has asked to enter again.
    outcome = run(job(), tables(n), make_link=Forgetful, timeout_seconds=30.0)
    refused = [error for silo, error in outcome.errors.items() if silo != VICTIM]
    assert any("no union of whole groups" in str(error) for error in refused)
    assert len(outcome.rounds) <= 1


def test_the_least_silos_of_a_policy_hold_in_every_sum() -> None:
    """The job says three, the policies of all silos six: no sum is over three or over five."""
    asked, silos = job(), tables(6)
    fault = Fault(VICTIM, "histograms-masked", 1)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    first = run(asked, silos, faults=(fault,), memories=memories, least_silos=6)
    assert isinstance(first.error, QuorumLost)
    believed = run(
        asked, silos, memories=memories, attempt=2, first_round=1, least_silos=6,
        checkpoint=first.rounds[0].checkpoint, faults=(Fault(VICTIM, "sync"),), told_least=0,
    )  # fmt: skip
    refused = [error for error in believed.errors.values() if isinstance(error, SumRefused)]
    assert any("expected a sum over at least 6 silos, received 3" in str(e) for e in refused)
    assert believed.rounds == []


# --- what an agent keeps ---


def openings(folder: Path, most: int = 0) -> TableOpenings:
    for name in ("opened", "turns/opened"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "records.key").write_bytes(bytes(32))
    records = Records(folder / "opened", folder / "turns" / "opened", bytes(32))
    return TableOpenings(records, "patients", most)


SIX = tuple(Silo(f"s{k}") for k in range(6))


def test_five_of_six_silos_a_day_later_are_declined(tmp_path: Path) -> None:
    first = replace(job(), silos=SIX)
    opened = openings(tmp_path)
    opened.check(first, "monday", SIX)
    opened.of_job(first, "monday", groups_of_job(first, SIX)).note(SIX)
    later, kept = replace(job(), silos=SIX[:5]), openings(tmp_path)
    kept.check(first, "tuesday", SIX)
    with pytest.raises(PolicyDeclined, match=r"max_close_sums: .* tells the sums of s5 apart"):
        kept.check(later, "tuesday", SIX[:5])
    own = read_openings(tmp_path)["patients"]
    assert [one.job for one in own.opened] == ["monday"]
    assert would_add(later, own).endswith("the policy leaves 0: it would be declined")
    assert would_add(first, own) == "sums over 6 silos in 2 groups: opened before"


def test_later_jobs_without_the_companions_of_a_first_job_are_declined(tmp_path: Path) -> None:
    first = replace(job(), silos=SIX)
    groups, opened = groups_of_job(first, SIX), openings(tmp_path)
    sums = opened.of_job(first, "monday", groups)
    sums.agree(dict.fromkeys(SIX, ()), SIX[0])
    sums.bind()
    own = next(group for group in groups if SIX[0] in group)
    others = sorted(set(SIX) - set(own))
    mixed = tuple(sorted((SIX[0], *others[:2])))
    kept = openings(tmp_path)
    kept.check(replace(job(), silos=own), "tuesday", own)
    with pytest.raises(PolicyDeclined, match=f"lacks companions: {own[1]} "):
        kept.check(replace(job(), silos=mixed), "tuesday", mixed)
    found = read_openings(tmp_path)["patients"]
    assert found.companions == list(own)
    assert would_add(replace(job(), silos=mixed), found).endswith("it would be declined")
    file = tmp_path / "job.toml"
    file.write_text(f'strategy = "histogram"\nsilos = {json.dumps(mixed)}\n')
    told = CliRunner().invoke(main, ["privacy", str(tmp_path), "--job", str(file)]).output
    assert f"sums of patients open only over all of {', '.join(own)}" in told
    assert f"it lacks companions: {own[1]} (with {SIX[0]}" in told
    assert "it would be declined" in told


def test_close_sets_of_all_jobs_count_against_the_policy(tmp_path: Path) -> None:
    asked = replace(job(), silos=SIX[:5], max_close_sums=1)
    kept = openings(tmp_path, 1)
    kept.check(asked, "a", SIX[:5])
    of_a = kept.of_job(asked, "a", groups_of_job(asked, SIX[:5]))
    of_a.note(SIX[:5])
    assert of_a.forbids(SIX[:4]) == ""
    of_a.note(SIX[:4])
    again = openings(tmp_path, 1)
    with pytest.raises(PolicyDeclined, match="the jobs before it have opened 1, at most 1 may be"):
        again.check(asked, "b", SIX[:5])
    of_b = again.of_job(asked, "b", groups_of_job(asked, SIX[:5]))
    assert of_b.forbids(SIX[1:5]).endswith("policy rule max_close_sums allows 1 such sets")
    assert of_b.forbids(SIX[:4]) == ""


def test_a_damaged_record_of_opened_sets_is_refused(tmp_path: Path) -> None:
    kept = openings(tmp_path)
    sets = kept.of_job(job(), "a", groups_of_job(job(), SIX))
    for one in (SIX, SIX[:3]):
        sets.note(one)
    for file in (tmp_path / "opened").iterdir():
        file.write_bytes(bytes(200))
    with pytest.raises(RecordDamaged):
        openings(tmp_path)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ((SIX[:2], SIX[2:]), "a group of 2 silos"),
        ((SIX[:3], SIX[2:]), "silos twice"),
        ((SIX[:3], (*SIX[3:], Silo("mallory"))), "that are not asked"),
        ((SIX[3:],), "s0 is in no group"),
        ((SIX[:3], SIX[3:]), "not those that the job's silos are dealt to"),
    ],
)
def test_groups_that_the_coordinator_makes_up_are_refused(groups: Groups, why: str) -> None:
    asked = replace(job(), silos=SIX)
    check_groups(asked, groups_of_job(asked, SIX), SIX, SIX[0])
    with pytest.raises(InvalidJob, match=why):
        check_groups(asked, groups, SIX, SIX[0])


def test_groups_hold_in_an_attempt_that_lacks_one_of_their_silos(tmp_path: Path) -> None:
    """They were held against the silos of each attempt, so that a job over any silos failed."""
    state, asked = StateFolder(tmp_path), job()
    assert not asked.silos
    parts = SimpleNamespace(state=state, silo=SIX[0])
    assignment = SimpleNamespace(key=AttemptKey("a-job", 1))
    attempt = Attempt(parts, assignment, answer=pytest.fail)  # type: ignore[arg-type]
    schema = DATA.schema
    groups = tuple(map(SiloGroup, groups_of_job(asked, SIX)))
    first = Agreement(schema, SIX, 0, groups)
    with pytest.raises(InvalidJob, match="not asked"):  # nobody was asked for one of them yet
        attempt._groups(asked, replace(first, silos=SIX[:5]), schema)
    known = attempt._groups(asked, first, schema)
    assert attempt._groups(asked, replace(first, silos=SIX[:5]), schema) == known
    with pytest.raises(InvalidJob, match="changed the groups"):
        attempt._groups(asked, replace(first, groups=(SiloGroup(SIX),)), schema)
    state.close()
