"""Leases under random operations and lost responses, with a mock clock."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hedgerow.boosting.errors import Unauthorised
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.roster import SiloRegistry
from hedgerow.services.rpc.errors import LeaseHeld, LeaseLost
from hedgerow.services.rpc.federation import Registration

LEASE_SECONDS = 10.0
NAMES = [Silo("ash"), Silo("birch"), Silo("cedar")]
NAME = st.sampled_from(NAMES)
PROCESS = st.sampled_from(["first", "second"])


class LeaseSimulation(RuleBasedStateMachine):
    """``held`` is the model: of each silo the process that holds the lease, and until when."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.allowed = frozenset(map(str, NAMES))
        self.roster = SiloRegistry(self.allowed, LEASE_SECONDS, lambda: self.now, "1.0.0")
        self.held: dict[Silo, tuple[str, str, float]] = {}
        self.known: dict[tuple[Silo, str], str] = {}  # the lease that each process believes in

    @rule(silo=NAME, process=PROCESS, arrives=st.booleans())
    def register(self, silo: Silo, process: str, arrives: bool) -> None:
        """``arrives``: whether the response does; without it the process registers once more."""
        holder = self.held.get(silo)
        try:
            grant = self.roster.register(silo, Registration(process, "1.0.0", (), 64))
        except Unauthorised:
            assert silo not in self.allowed
        except LeaseHeld:
            assert holder is not None
            assert holder[0] != process
            assert holder[2] > self.now, "only a living agent keeps another out"
        else:
            assert silo in self.allowed
            assert holder is None or holder[0] == process or holder[2] <= self.now
            self.held[silo] = (process, grant.lease_id, self.now + LEASE_SECONDS)
            if arrives:
                self.known[silo, process] = grant.lease_id

    @rule(silo=NAME, process=PROCESS)
    def touch(self, silo: Silo, process: str) -> None:
        lease = self.known.get((silo, process), "none")
        holder = self.held.get(silo)
        try:
            self.roster.touch(silo, lease)
        except Unauthorised:
            assert silo not in self.allowed
        except LeaseLost:
            assert holder is None or holder[1] != lease
        else:
            assert holder is not None
            assert holder[:2] == (process, lease), "one process a silo, with the newest lease"
            self.held[silo] = (process, lease, self.now + LEASE_SECONDS)

    @rule(silo=NAME, process=PROCESS)
    def release(self, silo: Silo, process: str) -> None:
        lease = self.known.pop((silo, process), "none")
        try:
            self.roster.release(silo, lease)
        except (LeaseLost, Unauthorised):
            assert silo not in self.allowed or self.held.get(silo, ("", "", 0.0))[1] != lease
        else:
            assert self.held.pop(silo)[1] == lease

    @rule(seconds=st.sampled_from([0.0, 4.0, 10.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        ended = {silo for silo, lease in self.held.items() if lease[2] <= self.now}
        assert set(self.roster.sweep()) == ended, "each lost silo is reported, and once"
        for silo in ended:
            del self.held[silo]

    @rule(seconds=st.sampled_from([0.0, 5.0, -3.0]))
    def sleep_of_the_coordinator(self, seconds: float) -> None:
        self.roster.prolong(seconds)
        for silo, (process, lease, until) in self.held.items():
            self.held[silo] = (process, lease, until + max(seconds, 0.0))

    @rule(allowed=st.frozensets(NAME, min_size=1))
    def change_the_roster(self, allowed: frozenset[Silo]) -> None:
        self.allowed = frozenset(map(str, allowed))
        self.roster.allow(self.allowed)
        for silo, (process, lease, _) in self.held.items():
            if silo not in allowed:
                self.held[silo] = (process, lease, self.now)

    @invariant()
    def the_living_are_those_of_the_model(self) -> None:
        assert set(self.roster.alive) == set(self.held)


TestLeaseSimulation = pytest.mark.slow(LeaseSimulation.TestCase)
TestLeaseSimulation.settings = settings(max_examples=60, stateful_step_count=40)
