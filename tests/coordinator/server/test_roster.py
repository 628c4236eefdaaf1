"""Which silos hold a lease, and how often they are asked to renew it."""

from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.roster import Roster
from tests.coordinator.server.bench import REGISTRATION


def test_many_silos_renew_less_often_and_always_three_times_a_lease() -> None:
    roster = Roster(frozenset(), 30.0, lambda: 0.0, REGISTRATION.version)
    for number, seconds in ((1, 2.0), (100, 2.0), (400, 8.0), (1000, 10.0)):
        for k in range(number):
            roster.register(Silo(f"silo-{k}"), REGISTRATION)
        assert roster.renew_seconds == seconds


def test_silos_are_there_from_their_lease_to_its_end() -> None:
    now = [0.0]
    roster = Roster(frozenset(), 30.0, lambda: now[0], REGISTRATION.version)
    b = roster.register(Silo("b"), REGISTRATION)
    assert list(roster.alive) == ["b"]
    roster.register(Silo("a"), REGISTRATION)
    assert list(roster.alive) == ["a", "b"]
    roster.release(Silo("b"), b.lease_id)
    assert list(roster.alive) == ["a"]
    now[0] = 31.0
    assert roster.sweep() == ("a",)
    assert not roster.alive
