"""How often silos are asked to renew their leases."""

from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.roster import Roster
from tests.coordinator.server.bench import REGISTRATION


def test_many_silos_renew_less_often_and_always_three_times_a_lease() -> None:
    roster = Roster(frozenset(), 30.0, lambda: 0.0, REGISTRATION.version)
    for number, seconds in ((1, 2.0), (100, 2.0), (400, 8.0), (1000, 10.0)):
        for k in range(number):
            roster.register(Silo(f"silo-{k}"), REGISTRATION)
        assert roster.renew_seconds == seconds
