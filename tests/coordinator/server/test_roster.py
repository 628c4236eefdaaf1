"""Which silos hold a lease, and how often they are asked to renew it."""

from dataclasses import replace

from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.roster import TOLD_BYTES, SiloRegistry
from hedgerow.coordinator.server.store import RegisteredSilo
from tests.coordinator.server.bench import REGISTRATION


def test_many_silos_renew_less_often_and_always_three_times_a_lease() -> None:
    roster = SiloRegistry(frozenset(), 30.0, lambda: 0.0, REGISTRATION.version)
    for number, seconds in ((1, 2.0), (100, 2.0), (400, 8.0), (1000, 10.0)):
        for k in range(number):
            roster.register(Silo(f"silo-{k}"), REGISTRATION)
        assert roster.renew_seconds == seconds


def test_every_silo_has_the_same_room_for_names_of_columns_and_none_unless_they_are_asked_for() -> (
    None
):
    roster = SiloRegistry(frozenset(), 30.0, lambda: 0.0, REGISTRATION.version)
    long = tuple(f"{k:0128}" for k in range(500))
    for k in range(99):
        roster.register(Silo(f"long-{k:02}"), replace(REGISTRATION, columns=long))
    roster.register(Silo("short"), replace(REGISTRATION, columns=("age", "sex")))
    assert {one.columns for one in roster.views((), {}, 0.0)} == {()}
    *lying, short = roster.views((), {}, 0.0, columns=True)
    assert short.columns == ("age", "sex")
    assert {one.columns for one in lying} == {long[: (TOLD_BYTES // 100) // 132]}


def test_silos_are_there_from_their_lease_to_its_end() -> None:
    now = [0.0]
    roster = SiloRegistry(frozenset(), 30.0, lambda: now[0], REGISTRATION.version)
    b = roster.register(Silo("b"), REGISTRATION)
    assert list(roster.alive) == ["b"]
    roster.register(Silo("a"), REGISTRATION)
    assert list(roster.alive) == ["a", "b"]
    roster.release(Silo("b"), b.lease_id)
    assert list(roster.alive) == ["a"]
    now[0] = 31.0
    assert roster.sweep() == ("a",)
    assert not roster.alive


def test_a_silo_that_is_away_was_last_seen_when_it_was_last_heard() -> None:
    now = [0.0]
    roster = SiloRegistry(frozenset(), 30.0, lambda: now[0], REGISTRATION.version)
    leases = {name: roster.register(Silo(name), REGISTRATION).lease_id for name in "ab"}
    now[0] = 20.0
    roster.touch(Silo("a"), leases["a"])
    now[0] = 45.0
    assert roster.sweep() == ("b",)
    own = REGISTRATION
    stored = [
        RegisteredSilo(name, own.instance_id, own.version, own.strategies, 0, 900.0, 900.0)
        for name in "abc"
    ]

    def seen() -> dict[str, float | None]:
        return {one.name: one.last_seen for one in roster.views(stored, {}, 1000.0)}

    assert seen() == {"a": 975.0, "b": 955.0, "c": 900.0}
    signs = roster.signs(1000.0)
    assert signs == {"a": 975.0, "b": 955.0}
    roster.stored(signs)
    assert roster.signs(1000.0) == {"a": 975.0}  # b's is in the database now
