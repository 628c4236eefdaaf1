"""Two jobs that divide a table otherwise tell of the few rows between two near values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import Booster, ColumnRules, DatePart
from hedgerow.boosting.strategies.histogram.admission import Membership
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.silo import participate
from hedgerow.boosting.strategies.histogram.steps import CutPoints
from hedgerow.boosting.tables import for_job
from hedgerow.boosting.warm_start import forecast
from hedgerow.client_agent.opened import TableOpenings, read_openings, would_add
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.records import Records
from tests.adversary.test_quantiles import DATA, SIZES, job, labelled
from tests.federation.histograms import run, silos_of
from tests.federation.memory import MemoryLink
from tests.pooled import cells_of_labels

SILOS = tuple(map(Silo, ("silo-0", "silo-1", "silo-2", "silo-3")))


def openings(folder: Path, columns: int = 16, labels: int = 1) -> TableOpenings:
    records = Records(folder / "opened", folder / "turns" / "opened", bytes(32))
    return TableOpenings(records, "t", 0, 0, columns, labels)


def test_the_cells_of_two_jobs_have_few_rows_in_common() -> None:
    """The attack: neither has fewer than ten rows in a cell, and both together tell single rows."""
    edges = [cells_of_labels(labelled(DATA.labels), n).thresholds for n in (10, 11)]
    labels = DATA.labels.astype(np.float32)
    for own in (*edges, np.union1d(*edges)):
        rows = np.diff(np.searchsorted(np.sort(labels), own, side="left"))
        least = rows[rows > 0].min()
        assert (least < 10) == (len(own) > max(map(len, edges)))


@pytest.mark.parametrize(
    "other",
    [
        {"min_cell": 11},
        {"validation": 0.1},
        {"columns": ColumnRules(missing=-1.0)},
        {"silos": SILOS[:3]},
    ],
)
def test_a_second_division_of_labels_is_declined_before_anything_is_counted(
    other: dict[str, Any], tmp_path: Path
) -> None:
    """By a silo that has been restarted, too; the same cells are told as often as one likes."""
    silos, rules = other.pop("silos", SILOS), other.pop("columns", ColumnRules())
    first = job()
    openings(tmp_path).note_told(first, "one", SILOS)
    openings(tmp_path).note_told(first, "one", SILOS[:3])  # a later attempt has the first's cells
    openings(tmp_path).note_told(job("reg:absoluteerror", rounds=9), "two", SILOS)
    counted: list[str] = []

    class Noted(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            counted.append(step.name)
            return super().exchange(step, at, offer)

    booster = replace(first.booster, min_child_weight=11.0)
    second = replace(job(), parameters=replace(first.parameters, **other), booster=booster)
    kept, second = openings(tmp_path), replace(second, columns=rules)
    outcome = run(
        second,
        silos_of(DATA, SIZES),
        make_link=Noted,
        participate_as=lambda p, link, vault, start: participate(
            p, link, vault, replace(start, telling=partial(kept.note_told, second, "three", silos))
        ),
    )
    assert not outcome.rounds
    assert counted
    assert {"enter", "sum-keys"} <= set(counted) <= {"enter", "sum-keys", "sync"}
    for error in outcome.errors.values():
        assert isinstance(error, PolicyDeclined), error
        assert str(error).startswith(
            "policy rule max_label_binnings: jobs have divided the table's labels label in 1 ways, "
            "at most 1 may be (min_cell 10, over silo-0, silo-1, silo-2, silo-3)"
        )


def test_a_silo_that_comes_late_counts_a_way_of_dividing_before_its_rows_are_divided(
    tmp_path: Path,
) -> None:
    """A coordinator might keep it out of each first round, and no silo has all the others' jobs."""
    asked = replace(job(), max_close_sums=9)
    kept = openings(tmp_path)

    def told(own: Any, name: str) -> Any:
        def participate_as(p: Any, link: Any, vault: Any, start: Any) -> Any:
            late = start.silo == SILOS[0]
            telling = partial(kept.note_told, own, name, SILOS) if late else start.telling
            return participate(p, link, vault, replace(start, telling=telling))

        return run(
            own, silos_of(DATA, SIZES), joins_after={SILOS[0]: 1}, participate_as=participate_as
        )

    assert not told(asked, "one").errors
    found = openings(tmp_path)
    assert not found.check_told(asked, "two", SILOS)
    booster = replace(asked.booster, min_child_weight=11.0)
    other = replace(asked, parameters=replace(asked.parameters, min_cell=11), booster=booster)
    outcome = told(other, "two")
    assert isinstance(outcome.errors[SILOS[0]], PolicyDeclined)
    assert all(SILOS[0] not in one.silos for one in outcome.rounds)


def test_ways_of_dividing_columns_are_counted_over_all_jobs_of_a_table(tmp_path: Path) -> None:
    def binned(n: int, **given: Any) -> Any:
        made = replace(job(), booster=Booster(max_bin=n), parameters=Histogram(**given))
        return replace(made, columns=ColumnRules(drop=("x",)))

    kept = openings(tmp_path, columns=2)
    for k, own in enumerate((binned(16), binned(16, rounds=3), binned(32), binned(16))):
        kept.note_told(own, f"job {k}", SILOS)
    asked = replace(binned(64), silos=SILOS)
    with pytest.raises(PolicyDeclined, match=r"max_binnings: .* in 2 ways, .* max_bin 64"):
        kept.check_told(asked, "five", SILOS)
    points = binned(16, binning="given", cut_points=("a: 1 1.0000001",))
    with pytest.raises(PolicyDeclined, match="max_binnings"):
        kept.check_told(points, "six", SILOS)
    assert points.parameters.safeguards(points).cell_rows == 1, "min_cell of a policy refuses them"
    (tmp_path / "records.key").write_bytes(bytes(32))
    (own,) = read_openings(tmp_path).values()
    assert [one.job for one in own.binnings] == ["job 0", "job 2"]
    text = would_add(asked, own)
    assert "max_binnings is 2, jobs have divided the columns in 2 other ways: it would be" in text
    text = would_add(replace(binned(16), silos=SILOS), own)
    assert "binnings" not in text
    assert (Policy().max_binnings, Policy().max_label_binnings) == (16, 1)


def test_a_job_does_not_choose_whose_value_stands_for_missing_ones() -> None:
    """The attack: of all rows one has the value, and it is alone among those without one."""
    X = labelled(DATA.labels).X
    alone = float(X[0, 0])
    rules = replace(job().columns, missing=alone)
    table = pa.table({"a": X[:, 0].astype(np.float64), "label": DATA.labels})
    made = replace(job(), columns=rules)
    found = for_job(table, made, "a table")
    assert np.flatnonzero(np.isnan(found.X[:, 0])).tolist() == [0]
    policy = Policy()
    with pytest.raises(PolicyDeclined, match="policy rule missing_codes"):
        checked(policy, made)
    for code in (0.0, -1.0, -9.0, 99.0, -9999.0, None):
        checked(policy, replace(made, columns=ColumnRules(missing=code)))
    for code in (1.0, -2.0, 98.0, 9.5, 1e10, 99.9):
        with pytest.raises(PolicyDeclined, match="policy rule missing_codes"):
            checked(policy, replace(made, columns=ColumnRules(missing=code)))
    checked(Policy(missing_codes=(alone,)), made)
    checked(Policy(missing_codes="any"), made)
    with pytest.raises(PolicyDeclined, match="policy rule missing_codes"):
        checked(Policy(missing_codes=()), replace(made, columns=ColumnRules(missing=0.0)))


def test_a_loss_of_a_jobs_own_does_not_count_labels_unless_a_silo_agrees() -> None:
    """The attack: a slope for rows of one label alone, and the sum of gradients is their number."""
    label = float(DATA.labels[0])
    loss = f"where(label == {label!r}, margin, max(0, margin - 1e5)**2)"
    made = replace(job(), booster=Booster(loss=loss, hessian="1"))
    assert isinstance(made.parameters, Histogram)
    made.parameters.validate(made)
    objective = made.parameters.objective_of(made, made.booster)
    margins = np.zeros((DATA.n_samples, 1), np.float32)
    total = objective.pairs(margins, DATA.labels)[:, 0].sum()
    assert total == (DATA.labels.astype(np.float32) == np.float32(label)).sum() >= 1
    with pytest.raises(PolicyDeclined, match="policy rule custom_loss"):
        checked(Policy(), made)
    checked(Policy(custom_loss=True), made)


def checked(policy: Policy, asked: Any) -> None:
    policy.check(
        asked, operator="ann", silos=SILOS, columns=("a",), named=(), categories={}, n_samples=900,
        forecast=forecast(asked, DATA.schema, dict.fromkeys(SILOS, 225)), allowances=(),
    )  # fmt: skip


def test_a_division_is_known_by_the_tables_own_columns_and_all_digits(tmp_path: Path) -> None:
    """As are rows held back by another share, or drawn by another name of the label."""
    cox = replace(job(), task=Task.SURVIVAL, booster=Booster(objective="survival:cox"))

    def seen(by: str) -> Any:
        return replace(cox, columns=ColumnRules(event="seen", rename=((by, "seen"),)))

    def held(share: float, label: str = "label") -> Any:
        columns = ColumnRules(missing_label="drop", rename=((label, "label"),))
        return replace(job(), parameters=Histogram(validation=share), columns=columns)

    again = held(0.2)  # whose rows held back are others, as they are drawn by the label's name
    again = replace(again, label="l", columns=replace(again.columns, rename=(("label", "l"),)))
    for k, (one, other) in enumerate(
        [
            (seen("death"), seen("relapse")),
            (held(0.2), held(0.20000001)),
            (held(0.2), again),
        ]
    ):
        kept = openings(tmp_path / str(k))
        kept.note_told(one, "one", SILOS)
        with pytest.raises(PolicyDeclined, match="max_label_binnings"):
            kept.note_told(other, "two", SILOS)
    kept = openings(tmp_path / "columns", columns=1, labels=9)
    kept.note_told(held(0.0, "size"), "one", SILOS)
    with pytest.raises(PolicyDeclined, match="max_binnings"):  # of rows with a weight, not a size
        kept.note_told(held(0.0, "weight"), "two", SILOS)


def test_rules_that_move_no_cut_point_are_no_other_division() -> None:
    def ways(**rules: Any) -> Any:
        made = replace(job(), columns=ColumnRules(**rules))
        return made.parameters.safeguards(made).binnings

    assert ways(weight="w", categorical=("c",), drop=("d",)) == ways()
    assert ways(dates=(("day", (DatePart.YEAR,)),), class_weight=(("a", 2.0),)) == ways()
    assert all("(" not in how for _, how in ways(missing=-1.0)), "people read it"


def test_searches_for_an_interval_and_a_median_are_ways_of_dividing_labels(tmp_path: Path) -> None:
    """At a base score c errors are |label - c|: twenty jobs found the largest of 2,000 labels."""
    kept, own = openings(tmp_path), job("reg:squarederror")
    first = replace(own, parameters=replace(own.parameters, interval=0.9, validation=0.2))
    kept.note_told(first, "one", SILOS)
    kept.note_told(replace(first, name="again"), "two", SILOS)
    booster = replace(first.booster, base_score=3.0)
    for other in ({"seed": 9}, {"booster": booster}):
        asked = replace(first, silos=SILOS, **other)  # type: ignore[arg-type]
        with pytest.raises(PolicyDeclined, match=r"max_label_binnings: .* errors of label in 1"):
            kept.check_told(asked, "three", SILOS)
    median = job("lae")
    kept.note_told(median, "four", SILOS)
    other = replace(median, silos=SILOS, parameters=replace(median.parameters, validation=0.1))
    with pytest.raises(PolicyDeclined, match=r"max_label_binnings: .* labels label in 1"):
        kept.check_told(other, "five", SILOS)
    given = replace(other, booster=replace(other.booster, base_score=0.0))
    with pytest.raises(PolicyDeclined, match=r"max_label_binnings: .* labels label in 1"):
        kept.check_told(given, "six", SILOS)
    squares = job("reg:squarederror")
    kept.check_told(replace(squares, booster=replace(squares.booster, base_score=0.0)), "7", SILOS)


def test_base_scores_on_either_side_of_a_label_do_not_count_it(tmp_path: Path) -> None:
    """The gradients of a step at the label are how many are below less how many are above."""
    steps = {"lae": {}, "huber": {"huber_slope": 1e-9}, "fair": {"fair_c": 1e-9}, "log_cosh": {}}
    for objective, slope in steps.items():
        kept, own = openings(tmp_path / objective), job(objective)
        first, other = (
            replace(own, silos=SILOS, booster=replace(own.booster, base_score=b, **slope))
            for b in (3.0, 3.5)
        )
        kept.note_told(first, "one", SILOS)
        kept.check_told(replace(first, seed=9), "two", SILOS)
        with pytest.raises(PolicyDeclined, match=r"max_label_binnings: .* labels label in 1"):
            kept.check_told(other, "three", SILOS)


def interval_job(rounds: int, **other: Any) -> Any:
    """Trees without splits: all errors are around one number, which each round moves."""
    given = Histogram(rounds=rounds, validation=0.5, interval=0.9)
    booster = Booster(max_depth=2, max_bin=16, gamma=1e12, base_score=-500.0, eta=0.1)
    made = replace(job("reg:squarederror"), parameters=given, booster=booster, **other)
    made.parameters.validate(made)
    return made


def ended_after(
    n: int, kept: TableOpenings, job_id: str, monkeypatch: pytest.MonkeyPatch, **other: Any
) -> Any:
    """Run a job of 20 rounds that a lying coordinator ends after `n`, and count errors then."""
    made, own = Membership.__init__, interval_job(20)

    def shorter(self: Any, hub: Any, sums: Any, rounds: int, *rest: Any) -> None:
        made(self, hub, sums, n, *rest)

    def participate_as(p: Any, link: Any, vault: Any, start: Any) -> Any:
        def telling(*found: tuple[str, str]) -> None:
            if start.silo == SILOS[1]:
                kept.note_told(own, job_id, SILOS, *found)

        return participate(p, link, vault, replace(start, telling=telling))

    with monkeypatch.context() as patched:
        patched.setattr(Membership, "__init__", shorter)
        lied: Any = {"lied": True, "timeout_seconds": 30.0, "participate_as": participate_as}
        return run(own, silos_of(DATA, SIZES), **lied, **other)


@pytest.mark.slow
def test_errors_of_two_models_are_counted_neither_in_two_attempts_nor_in_two_like_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: a job that ends a round later at each attempt, or each time that it is run.

    In 30 attempts it opened 30 models' errors, at half of 2,000 labels: of 245 cells between the
    values that it counted below, 172 had fewer than ten labels, and 72 one.
    """
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in SILOS}
    first = ended_after(1, openings(tmp_path / "a"), "one", monkeypatch, memories=memories)
    assert not first.errors
    again: Any = {
        "memories": memories,
        "checkpoint": first.rounds[-1].checkpoint,
        "first_round": 1,
        "attempt": 2,
    }
    second = ended_after(2, openings(tmp_path / "a"), "one", monkeypatch, **again)
    assert set(second.errors) == set(SILOS)
    for error in second.errors.values():
        assert "the model whose errors are counted: expected those of an earlier" in str(error)
    assert not ended_after(2, openings(tmp_path / "b"), "one", monkeypatch).errors
    assert not ended_after(2, openings(tmp_path / "b"), "two", monkeypatch).errors, "the same"
    outcome = ended_after(3, openings(tmp_path / "b"), "three", monkeypatch)
    error = outcome.errors[SILOS[1]]
    assert isinstance(error, PolicyDeclined)
    assert "max_label_binnings: jobs have divided the table's errors of label by its models" in str(
        error
    )


def test_cut_points_of_summaries_are_counted_as_they_are_told(tmp_path: Path) -> None:
    """The attack: a like job each day, whose cut points a coordinator moves by one row."""

    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if isinstance(reply, CutPoints):
                return replace(reply, values=reply.values + np.float32(moved))
            return reply

    given = Histogram(rounds=1, binning="summary")
    own = replace(job("reg:squarederror"), parameters=given, booster=Booster(max_bin=8))
    errors, steps, moved = [], (0.0, 0.0, 1e-3, 2e-3), 0.0
    for day in range(4):
        moved = steps[day]

        def participate_as(p: Any, link: Any, vault: Any, start: Any) -> Any:
            kept = openings(tmp_path / start.silo, columns=2)
            telling = partial(kept.note_told, own, f"day {day}", SILOS)  # noqa: B023
            return participate(p, link, vault, replace(start, telling=telling))

        lied: Any = {"make_link": Told, "participate_as": participate_as, "lied": True}
        errors.append(run(own, silos_of(DATA, SIZES), **lied, timeout_seconds=30.0).errors)
    assert not errors[0]
    assert not errors[1]
    assert not any(isinstance(error, PolicyDeclined) for error in errors[2].values())
    assert set(errors[3]) == set(SILOS)
    for error in errors[3].values():
        assert isinstance(error, PolicyDeclined)
        assert "max_binnings: jobs have divided the table's columns by summaries in 2" in str(error)


def test_what_no_model_follows_from_makes_no_other_way_of_dividing_errors() -> None:
    def ways(own: Any) -> Any:
        return own.parameters.safeguards(own).binnings

    own = interval_job(3)
    for other in ({"name": "b"}, {"min_silos": 4}, {"step_timeout_seconds": 3.0}, {"silos": SILOS}):
        assert ways(replace(own, **other)) == ways(own)  # type: ignore[arg-type]
    assert ways(replace(own, seed=own.seed + 1)) != ways(own)
    assert ways(interval_job(4)) != ways(own)


@pytest.mark.parametrize("rate", [0.004, 0.998])
@pytest.mark.parametrize("trees", [1, 12])
def test_draws_of_a_few_rows_are_refused_by_every_silo(rate: float, trees: int) -> None:
    """The first sums of such a tree, or the difference of two trees', were single rows'."""
    own = job("reg:squarederror")
    asked = replace(
        own,
        parameters=replace(own.parameters, sampling="uniform", sampling_rate=rate),
        booster=replace(own.booster, num_parallel_tree=trees),
    )
    seen: list[str] = []

    class Noted(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            seen.append(step.name)
            return super().exchange(step, at, offer)

    outcome = run(asked, silos_of(DATA, SIZES), make_link=Noted)
    assert not outcome.rounds
    assert "sampling: expected draws of 20 rows or more (twice min_cell)" in str(outcome.error)
    assert {"enter", "sum-keys"} <= set(seen)
    assert not any("grad" in name or "level" in name for name in seen)


def test_draws_of_a_few_rows_of_a_rounds_silos_are_refused() -> None:
    """All silos' rows had enough of them, and a tree of three of twelve silos five."""
    silos = silos_of(DATA, (30,) * 12)
    own = job("reg:squarederror")
    drawn = replace(own.parameters, silos_per_round=3, sampling="uniform", sampling_rate=0.06)
    outcome = run(replace(own, silos=tuple(silos), parameters=drawn), silos)
    assert not outcome.rounds
    assert "received 5 of 90 rows of a round's silos" in str(outcome.error)
    enough = replace(drawn, sampling_rate=0.3)
    assert run(replace(own, silos=tuple(silos), parameters=enough), silos).error is None
