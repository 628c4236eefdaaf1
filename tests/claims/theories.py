"""Claims of docs/threat-model.md in first-order logic: z3 finds no state that breaks one.

A theory's rules say what honest processes do. Each claim is proved from them for any number of
silos, sets, questions and jobs. A rule that no claim needs would be idle: without each of them z3
must find a state that breaks a claim. ``python -m tests.claims.theories`` prints the table.

Every rule names the function that keeps to it. That the code does so is shown elsewhere: for the
vault by playing everything that a coordinator can ask of a real one (:mod:`.interleavings`), for
the others by :mod:`.test_rules` and :mod:`.jobs`, whose tests also take each rule out of the code
and must notice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from z3 import (
    And,
    Bool,
    BoolSort,
    Const,
    Consts,
    DeclareSort,
    Distinct,
    Exists,
    ForAll,
    Function,
    Implies,
    Int,
    Ints,
    IntSort,
    Not,
    Or,
    Reals,
    SimpleSolver,
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
        solver = SimpleSolver()
        solver.set("rlimit", 500_000)  # steps of its own: no clock decides
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
        "two quorums share an honest silo": "crypto.vault.local_vault:LocalVault.join_group",
        "a silo signs sets that it is in": "crypto.vault.local_vault:LocalVault.endorse",
        "the sets that a silo signs shrink": "crypto.vault.local_vault:LocalVault.endorse",
        "shares are given for the set signed last": (
            "crypto.vault.local_vault:LocalVault.reveal_shares"
        ),
        "a seed is given with who is out of a signed set": (
            "crypto.vault.local_vault:LocalVault.reveal_pair_seeds"
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


def tree_roots() -> Theory:
    """Return why all sums inside a tree are over one set, each of one vector a silo.

    ``gives`` is a silo's vector of a view, masked with the roots of a set; masks of two peers come
    off against each other alone, so that a total needs the vectors of all silos of its set.
    """
    Silo, Set, View, Vector = map(DeclareSort, ("Silo", "Set", "View", "Vector"))
    truth = BoolSort()
    honest = Function("honest", Silo, truth)
    within = Function("within", Silo, Set, truth)
    ends = Function("ends", Silo, Set, truth)  # gives its shares, and has the roots of the set
    gives = Function("gives", Silo, View, Set, Vector, truth)
    opened = Function("opened", View, Set, truth)
    h, i = Consts("h i", Silo)
    S, R = Consts("S R", Set)
    v, w = Consts("v w", View)
    x, y = Consts("x y", Vector)
    rules = {
        "two sets that are signed share an honest silo": ForAll(
            [S, R], Exists([h], And(honest(h), within(h, S), within(h, R)))
        ),
        "a tree's roots are given for one set": ForAll(
            [h, S, R], Implies(And(honest(h), ends(h, S), ends(h, R)), S == R)
        ),
        "a vector inside a tree is masked with roots that were given": ForAll(
            [h, v, S, x], Implies(And(honest(h), gives(h, v, S, x)), ends(h, S))
        ),
        "the masks of a set come off with the vectors of all of it": ForAll(
            [i, v, S],
            Implies(And(opened(v, S), honest(i), within(i, S)), Exists([x], gives(i, v, S, x))),
        ),
        "a view is masked once": ForAll(
            [h, v, S, x, y],
            Implies(And(honest(h), gives(h, v, S, x), gives(h, v, S, y)), x == y),
        ),
    }
    enforced_by = {
        "two sets that are signed share an honest silo": (
            "crypto.vault.local_vault:LocalVault.join_group"
        ),
        "a tree's roots are given for one set": "crypto.vault.local_vault:LocalVault.reveal_shares",
        "a vector inside a tree is masked with roots that were given": (
            "boosting.sums.tree_masks:OpenTree.seeds"
        ),
        "the masks of a set come off with the vectors of all of it": (
            "crypto.vault.local_vault:LocalVault._tree_roots"
        ),
        "a view is masked once": "boosting.sums.tree_masks:OpenTree.enter",
    }
    broken = {
        "all sums inside a tree are over one set": And(opened(v, S), opened(w, R), S != R),
        "no mask hides two vectors": And(honest(h), gives(h, v, S, x), gives(h, v, S, y), x != y),
    }
    return Theory("roots of a tree", rules, enforced_by, broken)


def jobs() -> Theory:
    """Return why a nonce is one job, and a job that has ended is not begun again: one step.

    ``kept`` is the record on disk, ``took`` what the silo has ever begun, ``ended`` what it knows
    to be over, before a step; ``kept1`` is the record after it. The step is an attempt of job
    ``b`` at time ``now``.
    """
    Job, Nonce = map(DeclareSort, ("Job", "Nonce"))
    truth = BoolSort()
    nonce, until = Function("nonce", Job, Nonce), Function("until", Job, IntSort())
    kept, kept1 = Function("kept", Job, truth), Function("kept1", Job, truth)
    took, ended = Function("took", Job, truth), Function("ended", Job, truth)
    j, k = Consts("j k", Job)
    b = Const("b", Job)
    begins = Bool("begins")
    before, now = Ints("before now")
    rules = {
        "the clock does not go back": before <= now,
        "a statement that has expired is refused": Implies(begins, now <= until(b)),
        "a nonce that is kept is of one job": Implies(
            begins, ForAll([j], Implies(And(kept(j), nonce(j) == nonce(b)), j == b))
        ),
        "a job that has ended is refused": Implies(begins, Not(And(kept(b), ended(b)))),
        "a job is kept before it begins": Implies(begins, kept1(b)),
        "a job is kept until its statement expires": ForAll(
            [j], Implies(And(kept(j), now <= until(j)), kept1(j))
        ),
        "it held before": And(
            ForAll([j], Implies(And(took(j), before <= until(j)), kept(j))),
            ForAll([j], Implies(ended(j), took(j))),
        ),
    }
    guard = "client_agent.accepted:ReplayGuard"
    enforced_by = {
        "a statement that has expired is refused": "services.wire.signed_job:open_job",
        "a nonce that is kept is of one job": f"{guard}.check",
        "a job that has ended is refused": f"{guard}.check",
        "a job is kept before it begins": f"{guard}.accept",
        "a job is kept until its statement expires": f"{guard}.accept",
    }
    taken = And(took(j), before <= until(j), nonce(j) == nonce(b), j != b)
    broken = {
        "a nonce is one job while a statement of it is valid": And(begins, taken, now <= until(j)),
        "no job that has ended begins again": And(begins, ended(b)),
        "what was begun is kept as long as it can be begun": Exists(
            [k], And(Or(took(k), And(begins, k == b)), now <= until(k), Not(kept1(k)))
        ),
    }
    return Theory("a nonce is one job", rules, enforced_by, broken)


def approvals() -> Theory:
    """Return why a silo takes no job that too few of its own approvers have signed.

    Numbers of people, the job's operator left out: approvers of the job that are the silo's
    (``both``) and others (``others``), and those of each that have signed.
    """
    both, others, signed_both, signed_others = Ints("both others signed_both signed_others")
    mine, asked = Ints("mine asked")  # how many must sign: by the silo's policy, by the job
    operator_counts = Int("operator_counts")  # 1 where the operator's signature is among them
    rules = {
        "nobody counts twice": And(
            signed_both >= 0, signed_both <= both, signed_others >= 0, signed_others <= others
        ),
        "enough of the job's approvers have signed": (
            signed_both + signed_others + operator_counts >= asked
        ),
        "who submits a job does not approve it": operator_counts == 0,
        "a job cannot do without the silo's own approvers": asked - others >= mine,
    }
    signs = "services.wire.signed_job:check_approvals"
    enforced_by = {
        "nobody counts twice": signs,
        "enough of the job's approvers have signed": signs,
        "who submits a job does not approve it": signs,
        "a job cannot do without the silo's own approvers": (
            "client_agent.policy:Policy.check_approvers"
        ),
    }
    return Theory(
        "approvals",
        rules,
        enforced_by,
        {"a job has as many of the silo's approvers as its policy asks": signed_both < mine},
    )


THEORIES = (sets_of_a_sum(), companions(), budget(), tree_roots(), jobs(), approvals())


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
