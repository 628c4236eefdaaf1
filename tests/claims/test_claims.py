"""Each claim follows from its rules, each rule is needed, and code that breaks one is noticed."""

from __future__ import annotations

import importlib
from itertools import product

import pytest

from hedgerow.crypto.errors import VaultRefused
from hedgerow.crypto.local_vault import LocalVault
from hedgerow.crypto.vault import MaskGroup
from tests.claims import interleavings
from tests.claims.changed import Change
from tests.claims.theories import THEORIES, Theory

VAULT = "crypto.local_vault:LocalVault"
CHANGES = {
    "a silo signs sets that it is in": (
        Change(f"{VAULT}.endorse", "if group.silo not in present:", "if False:"),
    ),
    "the sets that a silo signs shrink": (
        Change(f"{VAULT}.endorse", " or not set(present) <= allowed", ""),
        Change(f"{VAULT}.reveal_shares", "if current.seeds_revealed & set(", "if set() & set("),
    ),
    "shares are given for the set signed last": (
        Change(f"{VAULT}.endorse", "if current.ended:", "if False:"),
        Change(f"{VAULT}.reveal_pair_seeds", " or current.ended", ""),
    ),
    "a seed is given with who is out of a signed set": (
        Change(f"{VAULT}.reveal_pair_seeds", "- set(current.endorsed)", "- {kept.group.silo}"),
    ),
    "one vector a sum": (
        Change(
            f"{VAULT}.derive_masks", "if ticket.number <= before.ticket.number:", "if False:",
            "if n <= ticket.number", "if n < ticket.number",
        ),
    ),
}  # fmt: skip
"""By rule, how the vault loses it: where two checks stand behind each other, both."""
FAILURES = (VaultRefused, KeyError)
"""Of a vault without a rule, which may come to where it has no root to derive from."""


@pytest.mark.parametrize("theory", THEORIES, ids=lambda theory: theory.name)
def test_every_claim_is_proved_and_every_rule_is_needed(theory: Theory) -> None:
    for claim in theory.broken:
        assert theory.verdict(claim) == "proved", claim
    for rule in theory.rules:
        lost = [claim for claim in theory.broken if theory.verdict(claim, rule) == "broken"]
        assert lost, f"no claim needs that {rule}"


@pytest.mark.parametrize("theory", THEORIES, ids=lambda theory: theory.name)
def test_every_rule_names_a_function_that_is_there(theory: Theory) -> None:
    assert set(theory.enforced_by) <= set(theory.rules)
    for where in theory.enforced_by.values():
        module, _, path = where.partition(":")
        found = importlib.import_module(f"hedgerow.{module}")
        for part in path.split("."):
            found = getattr(found, part)
        assert callable(found)


def test_no_order_of_questions_opens_more_than_one_sum_over_real_vaults() -> None:
    of_one, of_all, found = interleavings.faults()
    assert not found, found[:3]
    assert 20 < of_one < interleavings.MOST_STATES
    assert of_all > 3000


def test_a_vault_keeps_the_rules_that_the_claims_are_proved_from() -> None:
    for silo in interleavings.HONEST:
        made = interleavings.vaults()
        assert not interleavings.broken_rules(interleavings.graph_of(made[silo], made, silo), silo)


def without(rule: str) -> type[LocalVault]:
    """Return the vault without a rule."""
    return type("Changed", (LocalVault,), {one.owner[1]: one.function() for one in CHANGES[rule]})


@pytest.mark.parametrize("rule", CHANGES)
def test_a_vault_without_a_rule_is_noticed(rule: str) -> None:
    changed = without(rule)
    made = interleavings.vaults(changed)
    graph = interleavings.graph_of(made["a"], made, "a", FAILURES)
    assert rule in interleavings.broken_rules(graph, "a")


@pytest.mark.parametrize("rule", sorted(CHANGES.keys() - {"a silo signs sets that it is in"}))
def test_what_a_vault_without_a_rule_lets_be_read_is_found(rule: str) -> None:
    """A silo that signs a set without itself gives no seed, and others' shares as before."""
    assert interleavings.faults(without(rule), FAILURES, 200)[2]


def test_two_quorums_of_any_group_share_an_honest_silo_where_it_says_so() -> None:
    """``join_group`` takes more than half; with ``n_C`` liars it has to be ``2T > n + n_C``."""
    for n, threshold in product(range(3, 9), range(10)):
        members = tuple(f"m{k}" for k in range(n))
        vaults = [LocalVault() for _ in members]
        keys = tuple(vault.create_mask_key("s") for vault in vaults)
        group = MaskGroup("s", "m0", members, keys, bytes(32), threshold)
        try:
            vaults[0].join_group(group)
            taken = True
        except VaultRefused:
            taken = False
        assert taken == (n < 2 * threshold <= 2 * n), (n, threshold)
        for liars in range(n):
            # The smallest overlap of two sets of T among n, less all liars.
            overlap = max(0, 2 * threshold - n)
            if taken:
                assert (overlap > liars) == (2 * threshold > n + liars)
