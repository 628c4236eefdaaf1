"""Each claim follows from its rules, each rule is needed, and code that breaks one is noticed."""

from __future__ import annotations

import importlib
from itertools import combinations, product

import pytest

from hedgerow.crypto.errors import VaultRefused
from hedgerow.crypto.vault.interface import MaskGroup
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.claims import interleavings
from tests.claims.changed import Change
from tests.claims.jobs import APPROVALS, JOBS, ROOTS
from tests.claims.test_rules import BUDGET, COMPANIONS
from tests.claims.theories import THEORIES, Theory

VAULT = "crypto.vault.local_vault:LocalVault"
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
PLAYED = (ROOTS, JOBS, APPROVALS)
ASSUMED = (
    "two quorums share an honest silo",
    "two sets that are signed share an honest silo",
)
"""Of the operator, who chooses the threshold; what a group takes is tested below."""
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


def test_a_group_takes_no_threshold_by_which_two_quorums_may_be_apart() -> None:
    """With ``n_C`` liars it has to be ``2T > n + n_C``, which is the operator's to choose."""
    for n, threshold in product(range(3, 8), range(1, 9)):
        members = tuple(f"m{k}" for k in range(n))
        vaults = [LocalVault() for _ in members]
        keys = tuple(vault.create_mask_key("s") for vault in vaults)
        group = MaskGroup("s", "m0", members, keys, bytes(32), threshold)
        quorums = [set(one) for one in combinations(range(n), min(threshold, n))]
        apart = any(not one & other for one in quorums for other in quorums)
        if apart or threshold > n:
            with pytest.raises(VaultRefused, match="expected more than half"):
                vaults[0].join_group(group)
        else:
            vaults[0].join_group(group)


def test_every_rule_of_a_function_is_taken_out_of_one() -> None:
    """The functions that a theory names are those whose source is changed, or lead to one."""
    changed = {
        change.where.partition(":")[0]
        for changes in (
            *CHANGES.values(),
            *(one for rules in (BUDGET, *PLAYED) for one in rules.values()),
            COMPANIONS.values(),
        )
        for change in changes
    }
    tried = {rule for rules in (CHANGES, COMPANIONS, BUDGET, *PLAYED) for rule in rules}
    for theory in THEORIES:
        for rule, where in theory.enforced_by.items():
            assert where.partition(":")[0] in changed
            assert rule in tried or rule in ASSUMED
