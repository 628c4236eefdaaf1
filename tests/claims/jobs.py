"""The code of a tree's roots, of accepted jobs and of approvals, played: rules that it breaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from random import Random

from hedgerow.boosting.errors import InvalidJob, PolicyDeclined, SignatureInvalid, SumRefused
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.job import Approvals
from hedgerow.boosting.sums.tree_masks import OpenTree
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.state import StateFolder
from hedgerow.crypto.errors import VaultRefused
from hedgerow.crypto.vault.interface import SumTicket, TreeRoots
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.certificates import Role
from hedgerow.services.wire import signed_job
from hedgerow.services.wire.signed_job import LABEL, OpenedJob, SignedJob, approve_job, sign_job
from tests.adversary.people import People
from tests.adversary.test_signed_jobs import spec, statement_of
from tests.claims.changed import Change
from tests.claims.interleavings import HONEST, MEMBERS, SESSION, vaults

ONE_SET, OTHER_SET = MEMBERS, ("a", "b", "c")
VAULT = "crypto.vault.local_vault:LocalVault"
TREE = "boosting.sums.tree_masks:OpenTree"


def _roots(vault: LocalVault, present: tuple[str, ...]) -> TreeRoots:
    """Return what a silo has of a tree over a set, as its half asks for it."""
    vault.endorse(SESSION, 0, present)
    found = vault.reveal_shares(SESSION, 0, present, opens_tree=True).tree
    assert found is not None
    return found


def broken_roots() -> set[str]:
    """Return the rules of a tree's roots that vaults and silos' halves break."""
    found = set()
    made = vaults()
    dealt = {who: one.seal_shares(SESSION, 0, 1, MEMBERS) for who, one in made.items()}
    for who, one in made.items():
        boxes = {sender: own[who] for sender, own in dealt.items() if sender != who}
        one.open_shares(SESSION, 0, 1, boxes)
        one.derive_masks(SumTicket(SESSION, 0, bytes(32), MEMBERS))
    wide = {silo: _roots(made[silo], ONE_SET) for silo in ("a", "liar")}
    narrow = {silo: _roots(made[silo], OTHER_SET) for silo in ("b", "c")}
    with contextlib.suppress(VaultRefused):
        _roots(made["a"], OTHER_SET)
        found.add("a tree's roots are given for one set")

    def opened(silo: str, present: tuple[str, ...], roots: TreeRoots) -> OpenTree:
        tree = OpenTree(Silo(silo), tuple(map(Silo, present)), roots)
        tree.enter(b"view")
        return tree

    first, second = opened("a", ONE_SET, wide["a"]), opened("b", OTHER_SET, narrow["b"])
    if set(first.seeds()[0]) & set(chain(*second.seeds())):
        found.add("the masks of a set come off with the vectors of all of it")
    strangers = TreeRoots(dict.fromkeys(wide["a"].pairs, bytes(32)), {})
    if first.seeds() == opened("a", ONE_SET, strangers).seeds():
        found.add("a vector inside a tree is masked with roots that were given")
    with contextlib.suppress(SumRefused):
        first.enter(b"view")
        found.add("a view is masked once")
    assert set(HONEST) <= set(MEMBERS)
    return found


ROOTS = {
    "a tree's roots are given for one set": (
        Change(f"{VAULT}.endorse", "if current.ended:", "if False:"),
    ),
    "a vector inside a tree is masked with roots that were given": (
        Change(f"{TREE}.seeds", "self._roots.pairs[peer], self.view", "bytes(32), self.view"),
    ),
    "the masks of a set come off with the vectors of all of it": (
        Change(f"{VAULT}._tree_roots", "first.context, first.endorsed)", "first.context, ())"),
    ),
    "a view is masked once": (Change(f"{TREE}.enter", "if view in self._used:", "if False:"),),
}


def broken_jobs(folder: Path) -> set[str]:
    """Return the rules that a silo breaks while jobs come, end, expire, and it is restarted."""
    draws, found, days = Random(2), set(), [0.0]
    people = People(folder / "pki")
    start = time.time()  # of valid certificates; from here on no other clock decides
    clock = lambda: start + 86400.0 * days[0]  # noqa: E731
    ann = people.identity(Role.OPERATOR, "ann", clock)
    own = people.identity(Role.SILO, "a", clock)
    state = StateFolder(folder / "state")

    def signed(number: int) -> SignedJob:
        job = sign_job(spec(rounds=number + 1), ann, days=0.5 + number % 3)
        statement = replace(statement_of(job), nonce=b"nonce of a job %d" % (number // 3 % 10))
        content = statement.serialise()
        return replace(job, statement=content, signature=ann.sign(LABEL + content))

    jobs = [signed(number) for number in range(9)]
    numbers = iter(range(9, 30))
    began: dict[bytes, OpenedJob] = {}
    ended: set[bytes] = set()
    guard = ReplayGuard(state.accepted)
    for _ in range(400):
        what = draws.random()
        if what < 0.1:
            guard = ReplayGuard(state.accepted)
            kept = set(guard._jobs)
            needed = {one.statement.job_id for one in began.values()
                      if one.statement.not_after >= own.now()}  # fmt: skip
            if not needed <= kept:
                found |= {"a job is kept before it begins"}
            continue
        if what < 0.2:
            days[0] += draws.random() / 4
            jobs[draws.randrange(9)] = signed(next(numbers, 9))
            continue
        if what < 0.24 and (now := [o for o in began.values() if o.signed in jobs]):
            one = draws.choice(now)
            guard.end([one.statement.job_id])
            ended.add(one.signed.digest)
            continue
        job = draws.choice(jobs)
        try:
            opened = signed_job.open_job(job, own)
            guard.check(opened.statement.job_id, opened)
        except InvalidJob:
            continue
        guard.accept(opened, own.now())
        if opened.statement.not_after < own.now():
            found.add("a statement that has expired is refused")
        elif any(
            other.statement.nonce == opened.statement.nonce
            and other.statement.not_after >= own.now()
            for digest, other in began.items()
            if digest != job.digest
        ):
            found |= {"a nonce that is kept is of one job"}
        if job.digest in ended:
            found.add("a job that has ended is refused")
        began[job.digest] = opened
        missing = [
            one
            for one in began.values()
            if one.statement.not_after >= own.now() and one.statement.job_id not in guard._jobs
        ]
        if missing:
            found.add("a job is kept until its statement expires")
    state.close()
    return found


GUARD = "client_agent.accepted:ReplayGuard"
JOBS = {
    "a statement that has expired is refused": (
        Change(
            "services.wire.signed_job:open_job", "if identity.now() > statement.not_after:",
            "if False:",
        ),
    ),
    "a nonce that is kept is of one job": (
        Change(f"{GUARD}.check", "if kept.digest != job.signed.digest.hex():", "if False:"),
    ),
    "a job that has ended is refused": (
        Change(f"{GUARD}.check", "if kept.ended or", "if"),
    ),
    "a job is kept before it begins": (
        Change(f"{GUARD}.accept", "self._store()", "pass"),
    ),
    "a job is kept until its statement expires": (
        Change(f"{GUARD}.accept", "if kept.not_after >= now}", "if kept.not_after >= now + 86400}"),
    ),
}  # fmt: skip

PEOPLE = ("ann", "bob", "dpo", "eve")


def _subsets(least: int = 0) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(PEOPLE, n) for n in range(least, len(PEOPLE)))


def broken_approvals(folder: Path) -> set[str]:
    """Return the rules of approvals that a silo breaks, for drawn policies, jobs and signers."""
    draws, found = Random(3), set()
    people = People(folder / "pki")
    who = {name: people.identity(Role.OPERATOR, name) for name in PEOPLE}
    silo = people.identity(Role.SILO, "a")
    job = {name: sign_job(spec(), one) for name, one in who.items()}
    of = {name: {by: approve_job(job[name], who[by]) for by in PEOPLE} for name in PEOPLE}
    cases = [
        (mine, least, asked, enough, operator, signers)
        for mine in _subsets(1) for least in range(len(mine) + 1)
        for asked in _subsets(1) for enough in range(len(asked) + 1)
        for operator in PEOPLE for signers in _subsets()
    ]  # fmt: skip
    for mine, least, asked, enough, operator, signers in draws.sample(cases, 1500):
        policy = Policy(approvers=mine, min_approvals=least)
        approvals = Approvals(asked, enough)
        signed = replace(job[operator], approvals=tuple(of[operator][one] for one in signers))
        counted = {one for one in signers if one in asked and one != operator}
        others = set(asked) - set(mine) - {operator}
        with contextlib.suppress(PolicyDeclined):
            policy.check_approvers(approvals, operator)
            if approvals.least - len(others) < (least or len(mine)):
                found.add("a job cannot do without the silo's own approvers")
        opened = OpenedJob(signed, statement_of(signed), operator)
        with contextlib.suppress(SignatureInvalid):
            signed_job.check_approvals(opened, approvals, silo)
            twice = replace(signed, approvals=signed.approvals * 2)
            if len(counted) < approvals.least:
                by_operator = operator in asked and operator in signers
                found.add("who submits a job does not approve it" if by_operator
                          else "enough of the job's approvers have signed")  # fmt: skip
            signed_job.check_approvals(replace(opened, signed=twice), approvals, silo)
        once = replace(signed, approvals=signed.approvals[:1] * 4)
        with contextlib.suppress(SignatureInvalid):
            signed_job.check_approvals(replace(opened, signed=once), approvals, silo)
            if approvals.least > 1:
                found.add("nobody counts twice")
    return found


CHECK = "services.wire.signed_job:check_approvals"
APPROVALS = {
    "nobody counts twice": (
        Change(
            CHECK, "set[str]()", "list()", "names.add(", "names.append(",
            "if counted.missing(names):", "if len(names) < counted.least:",
        ),
    ),
    "enough of the job's approvers have signed": (
        Change(CHECK, "if counted.missing(names):", "if not names:"),
    ),
    "who submits a job does not approve it": (
        Change(CHECK, "asked.without(opened.operator)", "asked"),
    ),
    "a job cannot do without the silo's own approvers": (
        Change(
            "client_agent.policy:Policy.check_approvers",
            "asked.least - len(others) < mine.least", "asked.least < mine.least",
        ),
    ),
}  # fmt: skip
