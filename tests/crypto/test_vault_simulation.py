"""Vaults of one group under random requests of a coordinator that lies, with lost responses.

Silo k adds ``8**k``. The coordinator keeps all that it is given and opens whatever it can: a total
whose digits are not those of its set, a sum that opens over two sets, and a vector that is alone
are what must not be.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hedgerow.crypto.errors import VaultRefused
from hedgerow.crypto.masking import masks as masking
from hedgerow.crypto.masking import shamir
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.crypto.test_vault import NAMES, SESSION, THRESHOLD, context_of, grove_of

N_SUMS = 2
SETS = [NAMES, *combinations(NAMES, len(NAMES) - 1)]
WHOSE = st.sampled_from(range(len(NAMES)))
SUM = st.sampled_from(range(N_SUMS))
SET = st.sampled_from(SETS)
ASKS = st.sampled_from(
    ["endorse seeds shares", "endorse shares seeds", "endorse", "seeds", "shares", "shares shares"]
)


class VaultSimulation(RuleBasedStateMachine):
    """``vectors``, ``shares`` and ``seeds`` are what the coordinator knows, by sum."""

    vault: type[LocalVault] = LocalVault

    def __init__(self) -> None:
        super().__init__()
        self.grove = grove_of(self.vault)
        self.grove.deal(count=N_SUMS)
        self.restarts = 0
        self.vectors: dict[tuple[int, str], Any] = {}
        self.shares: dict[tuple[int, str], dict[int, bytes]] = {}
        self.seeds: dict[tuple[int, str, str], bytes] = {}

    @rule(k=WHOSE, number=SUM)
    def mask(self, k: int, number: int) -> None:
        with suppress(VaultRefused):
            masks = self.grove.vaults[NAMES[k]].derive_masks(self.grove.ticket(number))
            assert (number, NAMES[k]) not in self.vectors, "two vectors under one mask"
            part = np.array([8**k], np.uint64)
            vector = masking.masked(part, 64, masks.add, masks.subtract)
            self.vectors[number, NAMES[k]] = vector

    @rule(k=WHOSE, number=SUM, present=SET)
    def endorse(self, k: int, number: int, present: tuple[str, ...]) -> None:
        with suppress(VaultRefused):
            self.grove.vaults[NAMES[k]].endorse(SESSION, number, present)

    @rule(number=SUM, present=SET, asks=ASKS)
    def ask_all(self, number: int, present: tuple[str, ...], asks: str) -> None:
        for ask in asks.split():
            for k in range(len(NAMES)):
                getattr(self, f"_{ask}")(k, number, present)

    @rule(number=SUM, present=SET)
    def unmask(self, number: int, present: tuple[str, ...]) -> None:
        """Go the whole way over a set, as an honest coordinator does; later over another one."""
        self.mask_all(number)
        self.ask_all(number, present, "endorse seeds shares")

    @rule(number=SUM)
    def mask_all(self, number: int) -> None:
        for k in range(len(NAMES)):
            VaultSimulation.mask(self, k, number)

    def _endorse(self, k: int, number: int, present: tuple[str, ...]) -> None:
        VaultSimulation.endorse(self, k, number, present)

    def _seeds(self, k: int, number: int, present: tuple[str, ...]) -> None:
        with suppress(VaultRefused):
            found = self.grove.vaults[NAMES[k]].reveal_pair_seeds(SESSION, number, present)
            for peer, seed in found.items():
                self.seeds[number, NAMES[k], peer] = seed

    def _shares(self, k: int, number: int, present: tuple[str, ...]) -> None:
        with suppress(VaultRefused):
            found = self.grove.vaults[NAMES[k]].reveal_shares(SESSION, number, present).shares
            for owner, share in found.items():
                known = self.shares.setdefault((number, owner), {})
                assert known.setdefault(k, share) == share, "the same answer to the same question"

    @rule(k=WHOSE, number=SUM, present=SET)
    def reveal_seeds(self, k: int, number: int, present: tuple[str, ...]) -> None:
        self._seeds(k, number, present)

    @rule(k=WHOSE, number=SUM, present=SET)
    def reveal_shares(self, k: int, number: int, present: tuple[str, ...]) -> None:
        self._shares(k, number, present)

    @precondition(lambda self: self.restarts < 1)
    @rule(k=WHOSE)
    def restart(self, k: int) -> None:
        """Its process is new and has forgotten every secret."""
        self.restarts += 1
        self.grove.vaults[NAMES[k]] = self.vault()

    def self_seed(self, number: int, silo: str) -> bytes | None:
        held = self.shares.get((number, silo), {})
        if len(held) < THRESHOLD:
            return None
        secret = shamir.restore(dict(list(held.items())[:THRESHOLD]), THRESHOLD)
        return masking.self_seed(secret, context_of(self.grove.ticket(number)))

    def pair_seed(self, number: int, a: str, b: str) -> bytes | None:
        return self.seeds.get((number, a, b)) or self.seeds.get((number, b, a))

    def opened(self, number: int, present: tuple[str, ...]) -> int | None:
        """Return the sum over a set where all that takes its masks off is known."""
        own = [self.self_seed(number, silo) for silo in present]
        pairs = [
            (NAMES.index(a), NAMES.index(b), self.pair_seed(number, a, b))
            for a in present
            for b in NAMES
            if b not in present
        ]
        if not all(own) or not all(seed for *_, seed in pairs):
            return None
        if not all((number, silo) in self.vectors for silo in present):
            return None
        total = masking.summed([self.vectors[number, silo] for silo in present], 1, 64)
        plain = masking.unmasked(total, 64, own, pairs)  # type: ignore[arg-type]
        return int(plain[0])

    @invariant()
    def each_sum_opens_over_one_set_and_has_each_silo_of_it_once(self) -> None:
        for number in range(N_SUMS):
            sets = []
            for size in range(1, len(NAMES) + 1):
                for present in combinations(NAMES, size):
                    total = self.opened(number, present)
                    if total is not None:
                        sets.append(present)
                        assert total == sum(8 ** NAMES.index(silo) for silo in present)
            assert len(sets) <= 1, f"sum {number} opens over {sets}"
            assert all(len(present) >= THRESHOLD for present in sets)


TestVaultSimulation = pytest.mark.slow(VaultSimulation.TestCase)
TestVaultSimulation.settings = settings(max_examples=25, stateful_step_count=25)


class EndorsesAnySet(LocalVault):
    """A vault without the rule that the sets of a sum only shrink, and end with the shares."""

    def endorse(self, session: str, number: int, present: tuple[str, ...]) -> bytes:
        current = self._current(session, number)
        current.endorsed, current.ended = (), False
        current.seeds_revealed.clear()
        return super().endorse(session, number, present)


class MasksTwice(LocalVault):
    """A vault that gives the masks of a sum once more."""

    def derive_masks(self, ticket: Any, endorse: bool = False) -> Any:
        kept = self._session(ticket.session)
        if kept.current is not None and kept.current.ticket.number == ticket.number:
            kept.secrets[ticket.number] = bytes(32)
            kept.current = None
        return super().derive_masks(ticket, endorse)


@pytest.mark.parametrize("broken", [EndorsesAnySet, MasksTwice])
def test_the_simulation_fails_where_a_rule_is_broken(broken: type[LocalVault]) -> None:
    class Broken(VaultSimulation):
        vault = broken

    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(
            Broken,
            settings=settings(max_examples=200, stateful_step_count=30, phases=[Phase.generate]),
        )
