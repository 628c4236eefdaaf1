"""Claims of docs/threat-model.md in first-order logic: z3 finds no state that breaks one.

A theory's rules say what honest processes do. Each claim is proved from them for any number of
silos, sets, questions and jobs. A rule that no claim needs would be idle: without each of them z3
must find a state that breaks a claim. ``python -m tests.claims.theories`` prints the table.

Every rule names the function that keeps to it. That the code does so is shown elsewhere: for the
vault by playing everything that a coordinator can ask of a real one (:mod:`.interleavings`), for
the others by :mod:`.test_rules`, which also takes each rule out of the code and must notice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from z3 import (
    And,
    BoolSort,
    Const,
    Consts,
    DeclareSort,
    Distinct,
    Exists,
    ForAll,
    Function,
    Implies,
    Ints,
    Not,
    Or,
    Reals,
    Solver,
    sat,
    unsat,
)


@dataclass(frozen=True)
class Theory:
    """Rules by name, and claims by name, each as what would break it."""

    name: str
    rules: dict[str, Any]
    enforced_by: dict[str, str]
    """By rule, ``module:function`` under ``hedgerow``; none for what arithmetic gives."""
    broken: dict[str, Any]

    def verdict(self, claim: str, without: str = "") -> str:
        """Return ``proved``, ``broken``, or ``unknown`` where z3 gives up."""
        solver = Solver()
        solver.set("timeout", 3_000)
        solver.add(*(rule for name, rule in self.rules.items() if name != without))
        solver.add(self.broken[claim])
        found = solver.check()
        return "proved" if found == unsat else "broken" if found == sat else "unknown"


def sets_of_a_sum() -> Theory:
    """Return why at most one set of a sum is opened."""
    Silo, Set, Quorum = map(DeclareSort, ("Silo", "Set", "Quorum"))
    truth = BoolSort()
    honest = Function("honest", Silo, truth)
    within = Function("within", Silo, Set, truth)
    of = Function("of", Silo, Quorum, truth)  # a quorum is at least T silos
    signs = Function("signs", Silo, Set, truth)
    ends = Function("ends", Silo, Set, truth)  # gives its shares of the self masks of a set
    seed = Function("seed", Silo, Silo, truth)  # gives the pair seed with another
    h, i, k, x = Consts("h i k x", Silo)
    A, B, S, R = Consts("A B S R", Set)
    p, q = Consts("p q", Quorum)

    def inside(a: Any, b: Any) -> Any:
        return ForAll([k], Implies(within(k, a), within(k, b)))

    def signed(a: Any) -> Any:
        return Exists([q], ForAll([i], Implies(And(of(i, q), honest(i)), signs(i, a))))

    def opened(j: Any) -> Any:
        of_it = Exists([R], And(ends(i, R), within(j, R)))
        return Exists([p], ForAll([i], Implies(And(of(i, p), honest(i)), of_it)))

    last = ForAll([R], Implies(signs(h, R), inside(S, R)))
    rules = {
        "two quorums share an honest silo": ForAll(
            [p, q], Exists([h], And(honest(h), of(h, p), of(h, q)))
        ),
        "a silo signs sets that it is in": ForAll(
            [h, S], Implies(And(honest(h), signs(h, S)), within(h, S))
        ),
        "the sets that a silo signs shrink": ForAll(
            [h, S, R],
            Implies(And(honest(h), signs(h, S), signs(h, R)), Or(inside(S, R), inside(R, S))),
        ),
        "shares are given for the set signed last": ForAll(
            [h, S], Implies(And(honest(h), ends(h, S)), And(signs(h, S), last))
        ),
        "a seed is given with who is out of a signed set": ForAll(
            [h, k],
            Implies(
                And(honest(h), seed(h, k)),
                Exists([S], And(signs(h, S), Not(within(k, S)), signed(S))),
            ),
        ),
    }
    enforced_by = {
        "two quorums share an honest silo": "crypto.local_vault:LocalVault.join_group",
        "a silo signs sets that it is in": "crypto.local_vault:LocalVault.endorse",
        "the sets that a silo signs shrink": "crypto.local_vault:LocalVault.endorse",
        "shares are given for the set signed last": "crypto.local_vault:LocalVault.reveal_shares",
        "a seed is given with who is out of a signed set": (
            "crypto.local_vault:LocalVault.reveal_pair_seeds"
        ),
    }
    broken = {
        "no vector is open that a signed set leaves out": And(
            signed(A), Not(within(x, A)), opened(x)
        ),
        "no pair seed is given with an open vector": And(honest(h), seed(h, x), opened(x)),
        "two signed sets are nested": And(
            signed(A), signed(B), Not(inside(A, B)), Not(inside(B, A))
        ),
        "a signed set has an honest silo in it": And(
            signed(A), ForAll([i], Implies(honest(i), Not(within(i, A))))
        ),
    }  # fmt: skip
    return Theory("sets of a sum", rules, enforced_by, broken)


def companions() -> Theory:
    """Return why no sums, over any sets of any jobs of a table, tell companions apart."""
    Silo, Set = map(DeclareSort, ("Silo", "Set"))
    truth = BoolSort()
    within = Function("within", Silo, Set, truth)
    opens = Function("opens", Set, truth)
    goes_with = Function("goes_with", Silo, Silo, truth)  # recorded by the first, durably
    first, second = Function("first", Silo, Silo), Function("second", Silo, Silo)
    x, y = Consts("x y", Silo)
    A = Const("A", Set)

    def together(a: Any, b: Any) -> Any:
        return ForAll([A], Implies(opens(A), within(a, A) == within(b, A)))

    rules = {
        "a sum over a silo is over all its companions": ForAll(
            [x, y, A], Implies(And(opens(A), within(x, A), goes_with(x, y)), within(y, A))
        ),
        "a silo's companions have it as theirs": ForAll(
            [x, y], Implies(goes_with(x, y), goes_with(y, x))
        ),
        "a silo has two companions beside itself": ForAll(
            [x],
            And(Distinct(x, first(x), second(x)), goes_with(x, first(x)), goes_with(x, second(x))),
        ),
    }
    enforced_by = {
        "a sum over a silo is over all its companions": "boosting.sums.groups:OpenedSets.close_by",
        "a silo's companions have it as theirs": "boosting.sums.groups:told_apart_by",
        "a silo has two companions beside itself": "boosting.sums.groups:told_apart_by",
    }
    three = And(Distinct(x, first(x), second(x)), together(x, first(x)), together(x, second(x)))
    broken = {
        "no sums tell a silo and its companion apart": And(goes_with(x, y), Not(together(x, y))),
        "no sums tell fewer than three silos apart": Not(three),
    }
    return Theory("companions", rules, enforced_by, broken)


def budget() -> Theory:
    """Return why what was answered never exceeds the limit: one step keeps what held before it.

    ``answered``, ``known`` (entered on disk) and ``limit`` are before a step, ``*1`` after it: a
    charge that is followed by its answer, a question that is asked again, or a process that dies
    with or without its answer on the way and reads its account when it is back.
    """
    answered, known, limit, cost = Reals("answered known limit cost")
    answered1, known1 = Reals("answered1 known1")
    step, charge, answer, repeat, restart = Ints("step charge answer repeat restart")
    pending, pending1 = Reals("pending pending1")  # charged, and not yet answered
    held = And(answered >= 0, pending >= 0, answered + pending <= known, known <= limit)
    rules = {
        "a step is one of four": And(
            charge == 0, answer == 1, repeat == 2, restart == 3, step >= 0, step <= 3, cost > 0
        ),
        "what is charged is on disk before it is answered": Implies(
            step == charge,
            And(known1 == known + cost, answered1 == answered, pending1 == pending + cost),
        ),
        "a charge above the limit is refused": Implies(step == charge, known + cost <= limit),
        "only what was charged is answered": Implies(
            step == answer,
            And(cost <= pending, answered1 == answered + cost, pending1 == pending - cost,
                known1 == known),
        ),
        "a question that is asked again has the same noise": Implies(
            step == repeat, And(answered1 == answered, pending1 == pending, known1 == known)
        ),
        "an account that is read again has what was written": Implies(
            step == restart,
            And(known1 == known, answered1 == answered, pending1 >= 0, pending1 <= pending),
        ),
        "it held before": held,
    }  # fmt: skip
    enforced_by = {
        "what is charged is on disk before it is answered": (
            "client_agent.accountant:TableAccount.charge"
        ),
        "a charge above the limit is refused": "boosting.budget:BudgetLedger.charge",
        "only what was charged is answered": "boosting.sums.answers:NoisyRelease.answer",
        "a question that is asked again has the same noise": (
            "boosting.sums.answers:NoisyRelease.answer"
        ),
        "an account that is read again has what was written": (
            "client_agent.accountant:read_accounts"
        ),
    }
    after = And(answered1 >= 0, pending1 >= 0, answered1 + pending1 <= known1, known1 <= limit)
    return Theory(
        "budget", rules, enforced_by, {"what was answered is within the limit": Not(after)}
    )


THEORIES = (sets_of_a_sum(), companions(), budget())


def main() -> None:
    """Print each claim with all rules, and what breaks without each."""
    for theory in THEORIES:
        print(theory.name)
        for claim in theory.broken:
            began = time.perf_counter()
            print(f"  {claim}: {theory.verdict(claim)} ({time.perf_counter() - began:.3f} s)")
        for rule in theory.rules:
            lost = [c for c in theory.broken if theory.verdict(c, without=rule) == "broken"]
            print(f"    without '{rule}': {'; '.join(lost) or 'nothing is broken'}")


if __name__ == "__main__":
    main()
