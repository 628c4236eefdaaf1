"""Groups of silos, and what sums over several sets tell apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations, permutations
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import SumRefused
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.groups import (
    Opened,
    OpenedSets,
    encode_sets,
    groups_of,
    is_whole,
    parse_sets,
    parts,
    told_apart,
    told_groups,
    waited_for,
    whole,
)

NAMES = tuple(Silo(f"s{k}") for k in range(9))


@given(st.integers(1, 200), st.integers(0, 5), st.integers(3, 8))
def test_every_silo_is_in_one_group_of_size_and_more(n: int, seed: int, size: int) -> None:
    silos = tuple(f"silo-{k}" for k in range(n))
    groups = groups_of(silos, seed, size)
    assert sorted(silo for group in groups for silo in group) == sorted(silos)
    assert groups == groups_of(tuple(reversed(silos)), seed, size)
    if n < 2 * size:
        assert len(groups) == 1
    else:
        sizes = [len(group) for group in groups]
        assert size <= min(sizes) <= max(sizes) <= 2 * size - 1


def test_six_silos_are_two_groups_and_one_that_is_lost_takes_its_own_out() -> None:
    groups = groups_of(NAMES[:6], 7)
    assert [len(group) for group in groups] == [3, 3]
    lost = groups[0][0]
    there = tuple(silo for silo in NAMES[:6] if silo != lost)
    assert whole(groups, there) == groups[1]
    assert waited_for(groups, there) == {lost: tuple(s for s in groups[0] if s != lost)}
    assert is_whole(groups, NAMES[:6])
    assert not is_whole(groups, there)


def test_fewer_than_six_are_one_group() -> None:
    (only,) = groups_of(NAMES[:5], 1)
    assert only == NAMES[:5]
    assert whole((only,), NAMES[:4]) == ()


def test_a_group_of_which_nobody_is_there_is_waited_for_by_nobody() -> None:
    groups = groups_of(NAMES, 3)
    there = tuple(silo for group in groups[1:] for silo in group)
    assert waited_for(groups, there) == {}


SETS = st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=1, max_size=5)


@given(SETS)
def test_no_combination_of_sums_is_finer_than_a_part(sets: list[set[Silo]]) -> None:
    rows = np.array([[silo in one for silo in NAMES] for one in sets], float)
    found = parts(sets)
    assert sorted(s for part in found for s in part) == sorted(set().union(*sets))
    for part in found:
        columns = [NAMES.index(silo) for silo in part]
        assert all((rows[:, columns[0]] == rows[:, k]).all() for k in columns)
    for first, second in combinations(found, 2):
        a, b = NAMES.index(first[0]), NAMES.index(second[0])
        assert (rows[:, a] != rows[:, b]).any()


def test_a_set_less_one_silo_tells_that_one_apart() -> None:
    six, five = NAMES[:6], NAMES[:5]
    assert told_apart([six], five) == (NAMES[5],)
    assert told_apart([six], six) is None
    assert told_apart([six], NAMES[:3]) is None
    assert told_apart([NAMES[:3], NAMES[3:6]], NAMES) is None
    # What is told apart already is not told apart by the next set.
    assert told_apart([six, five], five) is None


def test_a_close_set_needs_leave_and_counts_once() -> None:
    groups = groups_of(NAMES[:6], 7)
    first, second = groups
    five = tuple(s for s in NAMES[:6] if s != first[0])
    kept: list[int] = []
    opened = OpenedSets(groups)
    opened.keep = lambda: kept.append(len(opened.sets))
    for one in (NAMES[:6], first, second, NAMES[:6]):
        assert opened.forbids(one) == ""
        opened.note(one)
    assert kept == [1, 2, 3]
    assert opened.n_close() == 0
    assert opened.usable(five) == second
    away = f"it is no union of whole groups: {first[0]} (with {', '.join(first[1:])})"
    assert opened.forbids(five) == f"{away}; max_close_sums of the job allows 0 such sets"
    opened.most_close = 1
    assert opened.usable(five) == five
    opened.note(five)
    assert (opened.n_close(), opened.forbids(five)) == (1, "")
    assert opened.forbids(NAMES[:4]).endswith("max_close_sums of the job allows 1 such sets")


def test_sets_of_earlier_jobs_count() -> None:
    """Five of six silos a day later: the sixth silo's sums are the difference of the two jobs."""
    later = OpenedSets(groups_of(NAMES[:5], 3), opened=[Opened(NAMES[:6])])
    assert f"tells the sums of {NAMES[5]} apart" in later.forbids(NAMES[:5])
    assert OpenedSets(groups_of(NAMES[:3], 3), opened=[Opened(NAMES[:6])]).forbids(NAMES[:3]) == ""


class Tables:
    """Tables of nine silos, and what jobs over some of them open."""

    def __init__(self) -> None:
        self.companions: dict[Silo, list[Silo]] = {silo: [] for silo in NAMES}
        self.opened: list[tuple[Silo, ...]] = []
        self.new_in: dict[Silo, set[Silo]] = {}
        """Who of its group was honest and new as well when a silo was bound."""

    def job(
        self,
        members: tuple[Silo, ...],
        seed: int = 0,
        lost: int = -1,
        left: int = 0,
        lies: Mapping[Silo, Collection[Silo]] = MappingProxyType({}),
    ) -> list[str]:
        """Play a job in which a group is lost; return why its silos refuse, if they do.

        They remember no sets here. ``left`` of them have sent a vector where no sum opens. Who lies
        says any companions, keeps none and refuses nothing.
        """
        groups = groups_of(members, seed)
        silos = {
            s: OpenedSets(groups, companions=self.companions[s]) for s in members if s not in lies
        }
        said = {silo: silos[silo].companions if silo in silos else tuple(sorted(lies[silo]))
                for silo in members}  # fmt: skip
        for silo, own in silos.items():
            own.agree(said, silo)
        tied = next((own.tied for own in silos.values()), groups)
        away = tied[lost % len(tied)] if lost >= 0 and len(tied) > 1 else ()
        present = tuple(silo for silo in members if silo not in away)
        for asked in (members, present):  # at the setup, and when its sum is to open
            whys = sorted({own.forbids(asked) for own in silos.values()})
            assert len(whys) <= 1, "all silos of a job tell the same"
            if any(whys):
                return whys
            for silo in present if asked is present else members[:left]:
                if silo in silos:
                    if not silos[silo].companions:
                        self.new_in[silo] = next(
                            {s for s in group if s in silos and not said[s]}
                            for group in groups
                            if silo in group
                        )
                    silos[silo].bind()
        self.opened.append(present)
        return []


ROSTERS = st.sets(st.sampled_from(NAMES), min_size=3).map(lambda names: tuple(sorted(names)))


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(ROSTERS, st.integers(0, 2), st.integers(-1, 2), st.integers(0, 3)),
        min_size=2,
        max_size=8,
    )
)
def test_no_jobs_in_any_order_tell_fewer_than_three_silos_apart(jobs: list[Any]) -> None:
    """Companions alone hold it, also for silos that are in no later job and remember nothing."""
    tables = Tables()
    for job in jobs:
        tables.job(*job)
    assert all(len(part) >= 3 for part in parts(tables.opened))


LIES = st.dictionaries(st.sampled_from(NAMES[5:]), st.sets(st.sampled_from(NAMES)))


@settings(max_examples=600, deadline=None)
@given(
    st.lists(
        st.tuples(ROSTERS, st.integers(0, 2), st.integers(-1, 2), st.integers(0, 3), LIES),
        min_size=2,
        max_size=8,
    )
)
def test_lies_of_four_of_nine_silos_do_not_part_the_others_of_a_group(
    jobs: list[Any],
) -> None:
    """All sets ever opened have all, or none, of the honest silos that were new in one group."""
    tables = Tables()
    for members, seed, lost, left, lies in jobs:
        said = {silo: {silo, *lies[silo]} if lies.get(silo) else () for silo in NAMES[5:]}
        tables.job(members, seed, lost, left, said)
    whose = {silo: set(part) for part in parts(tables.opened) for silo in part}
    for silo in whose.keys() - set(NAMES[5:]):
        assert tables.new_in[silo] <= whose[silo]


def test_silos_whose_first_sum_ended_before_their_vectors_keep_their_groups() -> None:
    tables = Tables()
    groups = groups_of(NAMES[:6], 0)
    tables.companions[groups[0][1]][:] = groups[0]  # it alone has sent a vector
    assert tables.job(NAMES[:6]) == []
    assert {tuple(tables.companions[silo]) for silo in NAMES[:6]} == set(groups)


def test_a_coordinator_ties_no_groups_of_which_one_is_not_there_as_a_whole() -> None:
    groups = groups_of(NAMES[:6], 0)
    sets = OpenedSets(groups)
    sets.agree(dict.fromkeys((*groups[0], *groups[1][:2]), ()))
    assert sets.usable((*groups[0], *groups[1][:2])) == groups[0]


def test_two_silos_that_name_a_new_one_do_not_take_it_from_those_it_began_with() -> None:
    members = NAMES[:6]
    first, second = groups_of(members, 0)
    liars, victim = second[:2], first[-1]
    lies = dict.fromkeys(liars, (*liars, victim))
    tables = Tables()
    assert tables.job(members, lies=lies) == []
    assert tables.companions[victim] == sorted(members)
    for silo in (*first[:2], second[2]):
        assert tables.companions[silo] == sorted((*first, second[2]))
    (why,) = tables.job(tuple(sorted((*liars, victim))), lies=lies)
    assert "lacks companions" in why
    assert all(silo in why for silo in first[:2])
    # Both may not name it otherwise.
    (why,) = Tables().job(members, lies={**lies, liars[0]: (liars[0], victim)})
    assert f"it tells the sums of {liars[1]}, {victim} apart" in why
    # Of two that are new and one that is named, the one may have been in sums before.
    bound = (second[2], *NAMES[6:8])
    sets = OpenedSets((first, second, NAMES[6:8]))
    sets.agree(dict.fromkeys(first, ()) | lies | dict.fromkeys(bound, bound), victim)
    assert f"it tells the sums of {', '.join(first[:2])} apart" in sets.forbids(NAMES[:8])


def test_disjoint_sets_of_three_jobs_tell_no_silo_apart() -> None:
    """In each order of the three jobs; no silo is in all of them."""
    whole, first, second = NAMES[:7], NAMES[:3], NAMES[3:6]
    assert told_apart([whole, first], second) == (NAMES[6],)
    for order in permutations((whole, first, second)):
        tables = Tables()
        refused = [one for one in order if tables.job(one)]
        assert refused
        assert all(len(part) >= 3 for part in parts(tables.opened))


def test_why_a_silo_without_companions_waits_and_who_names_it_is_its_companion() -> None:
    tables = Tables()
    assert tables.job(NAMES[:3]) == tables.job(NAMES[3:6]) == []
    (why,) = tables.job(NAMES[:7])
    assert why == (
        f"with the sums before it, it tells the sums of {NAMES[6]} apart; max_close_sums of the "
        "job allows 0 such sets"
    )
    assert tables.companions[NAMES[6]] == []
    tables.companions[NAMES[0]].clear()  # its record is lost
    assert tables.job(NAMES[:6]) == []
    assert tables.companions[NAMES[0]] == list(NAMES[:3])
    (why,) = tables.job((NAMES[0], *NAMES[3:]))
    assert f"{NAMES[1]} (with {NAMES[0]}" in why


def test_a_job_beside_another_may_not_bind_its_silos_to_others() -> None:
    shared: list[Silo] = []
    jobs = [
        OpenedSets((NAMES[:3],), companions=shared),
        OpenedSets((NAMES[2:5],), companions=shared),
    ]
    for job in jobs:
        job.agree(dict.fromkeys(job.groups[0], ()), NAMES[2])
    jobs[0].bind()
    with pytest.raises(SumRefused, match="another job has begun the first sums"):
        jobs[1].bind()
    assert shared == list(NAMES[:3])


def test_disjoint_cohorts_of_one_job_tell_no_silo_apart() -> None:
    groups = groups_of(NAMES, 3)
    sets = [NAMES, *groups, groups[0] + groups[1], groups[1] + groups[2]]
    known: list[tuple[Silo, ...]] = []
    for one in sets:
        assert told_apart(known, one) is None
        known.append(one)
    assert sorted(parts(known)) == sorted(groups)


@given(SETS)
def test_sets_are_kept_as_they_were(sets: list[set[Silo]]) -> None:
    kept = [tuple(sorted(one)) for one in sets]
    assert parse_sets(encode_sets(kept)) == kept
    assert parse_sets(None) == []


def test_a_plan_tells_the_groups_and_what_a_loss_does() -> None:
    one, text = told_groups(groups_of(NAMES[:5], 1)), told_groups(groups_of(NAMES, 3))
    assert one.startswith("secure sums are over all 5 silos")
    for told in (one, text):
        assert "each tells with whom its table was first summed" in told
    assert text.startswith("secure sums are over unions of 3 groups of silos (")
    assert all(silo in text for silo in NAMES)
