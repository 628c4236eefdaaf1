"""The rules of companions and of the budget, on the code itself, and on code without each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, combinations, product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from hedgerow.boosting.budget import BudgetExceeded, Spending
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.answers import NoisyRelease
from hedgerow.boosting.sums.groups import OpenedSets, Set
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.adversary.test_privacy_budget import SILOS, start_of, table
from tests.claims.changed import Change

GROUPS = ("abc", "def")
KNOWN = ("", "abc", "def", "abcdef", "abde")
"""What silos may say that they were summed with before."""
LIMIT = 3.0


def said_by() -> Iterator[dict[Silo, Set]]:
    """Return all that silos may say in a setup, and the same with one of them away."""
    draws = Random(0)
    of_each = [[own for own in KNOWN if not own or silo in own] for silo in "abcdef"]
    for own in product(*of_each):
        found = {Silo(s): tuple(map(Silo, one)) for s, one in zip("abcdef", own, strict=True)}
        yield found
        del found[Silo(draws.choice("abcdef"))]
        yield dict(found)


def opened_of(said: Mapping[Silo, Set], own: Silo) -> OpenedSets:
    groups = tuple(tuple(map(Silo, group)) for group in GROUPS)
    opened = OpenedSets(groups, companions=list(said[own]))
    opened.agree(said, own)
    return opened


def broken_companions() -> set[str]:
    """Return the rules that silos break in sets that they would open."""
    found = set()
    for said in said_by():
        opened = {silo: opened_of(said, silo) for silo in said}
        there = sorted(said)
        for own in there:
            mine = set(opened[own]._own)
            sets = chain(*(combinations(there, n) for n in range(3, len(there) + 1)))
            for present in (one for one in sets if own in one):
                if opened[own].close_by(present):
                    continue
                if not mine <= set(present):
                    found.add("a sum over a silo is over all its companions")
                if any(own not in opened[one]._own for one in mine & set(present)):
                    found.add("a silo's companions have it as theirs")
                if len(mine) < 3:
                    found.add("a silo has two companions beside itself")
    return found


COMPANIONS = {
    "a sum over a silo is over all its companions": Change(
        "boosting.sums.groups:OpenedSets.close_by", "groups := self.tied", "groups := self.groups"
    ),
    "a silo's companions have it as theirs": Change(
        "boosting.sums.groups:told_apart_by",
        "or any(silo not in companions.get(one, own) for one in own)", "",
    ),
    "a silo has two companions beside itself": Change(
        "boosting.sums.groups:told_apart_by",
        "(not said[silo] and len(own) < LEAST_SILOS)", "False",
        "(silo in unnamed and len(unnamed.intersection(own)) < LEAST_SILOS)", "False",
    ),
}  # fmt: skip


def test_silos_keep_the_rules_of_companions() -> None:
    assert broken_companions() == set()


@pytest.mark.parametrize("rule", COMPANIONS)
def test_silos_without_a_rule_of_companions_are_noticed(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(COMPANIONS[rule], monkeypatch)
    assert rule in broken_companions()


def take_out(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = change.owner
    monkeypatch.setattr(owner, name, change.function())


def broken_budget(folder: Path, n_steps: int = 120) -> set[str]:
    """Return the rules that a silo's account breaks while it is asked, killed and asked again."""
    draws, found, start = Random(1), set(), start_of(table())
    vault = LocalVault()
    known: dict[tuple[bytes, float], list[int]] = {}

    def restarted() -> tuple[TableAccount, NoisyRelease]:
        account = TableAccount(folder, "people", max_epsilon=LIMIT)
        return account, NoisyRelease(vault, account.admit("job", LIMIT), start)

    account, answers = restarted()
    for _ in range(n_steps):
        if draws.random() < 0.2:
            account, answers = restarted()
            if account.spent() < sum(cost for _, cost in known) - 1e-9:
                found.add("an account that is read again has what was written")
            continue
        question = b"%d" % draws.randrange(12), draws.choice([0.25, 0.5])
        before = account.spent()
        spending = Spending("counts", question[1], 1, 50)
        try:
            (counts,) = answers.answer(
                question[0], [(spending, np.zeros(50, np.int64))], silos=SILOS, honest=1
            )
        except BudgetExceeded:
            if before + question[1] <= LIMIT or question in known:
                found.add("what is refused would exceed the limit")
            continue
        if known.setdefault(question, counts.tolist()) != counts.tolist():
            found.add("a question that is asked again has the same noise")
        if TableAccount(folder, "people").spent() < account.spent():
            found.add("what is charged is on disk before it is answered")
        answered = sum(cost for _, cost in known)
        if account.spent() < answered - 1e-9:
            found.add("only what was charged is answered")
        if answered > LIMIT:
            found.add("a charge above the limit is refused")
    return found


ACCOUNT = "client_agent.accountant:TableAccount"
BUDGET = {
    "what is charged is on disk before it is answered": (
        Change(f"{ACCOUNT}.charge", "self._write(following, _FILES)", "pass"),
    ),
    "a charge above the limit is refused": (
        Change("boosting.budget:BudgetLedger.charge", "if spent > self.epsilon:", "if False:"),
        Change(f"{ACCOUNT}.charge", "if spent > self._limit:", "if False:"),
    ),
    "only what was charged is answered": (
        Change("boosting.sums.answers:NoisyRelease.answer", "self._accountant.charge(", "dict("),
    ),
    "a question that is asked again has the same noise": (
        Change(
            "boosting.sums.answers:NoisyRelease.answer",
            "entropy=stream(seed.seed, number)", "entropy=__import__('os').urandom",
        ),
    ),
    "an account that is read again has what was written": (
        Change(f"{ACCOUNT}._loaded", "read_accounts(self._folder.parent)", "Accounts()"),
    ),
}  # fmt: skip


def test_a_silo_keeps_the_rules_of_its_budget(tmp_path: Path) -> None:
    assert broken_budget(tmp_path) == set()


@pytest.mark.parametrize("rule", BUDGET)
def test_a_silo_without_a_rule_of_its_budget_is_noticed(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in BUDGET[rule]:
        take_out(change, monkeypatch)
    assert rule in broken_budget(tmp_path)
