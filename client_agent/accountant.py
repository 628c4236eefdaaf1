"""The silo's privacy accountant: what all jobs together have spent on each of its tables.

A charge is on disk before what it pays for is sent. The accounts are in two files, written one
after the other, each complete or absent: a crash leaves the second one charge behind. Any other
difference between them, and any damage, is refused: a budget whose spending is not known is not
taken for an unspent one.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from operator import index
from pathlib import Path
from typing import Any

from hedgerow.boosting.budget import (
    BudgetExceeded,
    BudgetLedger,
    Concentrated,
    Spending,
    exact,
    plain,
    rho_within,
    total,
)
from hedgerow.boosting.errors import FOREIGN, FederationError, PolicyDeclined
from hedgerow.client_agent.records import writing_state
from hedgerow.crypto.durable import write_atomically

FOLDER = "privacy"
_FILES = ("accounts.json", "accounts.copy.json")
_FORMAT = "hedgerow privacy accounts v1"


class AccountDamaged(FederationError):
    """The accounts cannot be trusted, so that what was spent is not known."""


@dataclass(slots=True)
class Accounts:
    """What was spent, by table and job."""

    turn: int = 0
    """Number of charges so far."""
    tables: dict[str, dict[str, BudgetLedger]] = field(default_factory=dict)
    """By name: a ledger a job, whose epsilon is the job's limit, infinite for none."""
    limits: dict[str, float] = field(default_factory=dict)
    """``max_epsilon`` by table at its last charge, infinite for none."""
    deltas: dict[str, float] = field(default_factory=dict)
    """At which a table's epsilon is stated, at its last charge; 0 where all queries are pure."""

    def summary(self) -> list[dict[str, Any]]:
        """Return what was spent, by table and job, as plain values; infinity as ``"inf"``."""
        return [
            {
                "table": table,
                "spent": plain(float(_spent(jobs.values(), self.deltas.get(table, 0.0)))),
                "delta": self.deltas.get(table, 0.0),
                "max_epsilon": plain(self.limits[table]),
                "jobs": [
                    {
                        "job": job,
                        "spent": document["spent"],
                        "max_epsilon": document["epsilon"],
                        **({"delta": document["delta"]} if "delta" in document else {}),
                        "queries": document["queries"],
                    }
                    for job, document in ((job, of.document()) for job, of in jobs.items())
                ],
            }
            for table, jobs in self.tables.items()
        ]

    def encode(self) -> bytes:
        """Return the accounts as JSON with a digest."""
        body = {
            "format": _FORMAT,
            "turn": self.turn,
            "tables": {
                table: {
                    "max_epsilon": plain(self.limits[table]),
                    **({"delta": self.deltas[table]} if self.deltas.get(table) else {}),
                    "jobs": {job: ledger.document() for job, ledger in jobs.items()},
                }
                for table, jobs in self.tables.items()
            },
        }
        return json.dumps(body | {"sha256": _digest(body)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Accounts:
        """Return the accounts of :meth:`encode`; raises one of :data:`FOREIGN` for others."""
        body = json.loads(data)
        if body.pop("sha256") != _digest(body) or body["format"] != _FORMAT:
            raise ValueError("not the accounts that were written")
        found = cls(index(body["turn"]))
        for table, about in body["tables"].items():
            found.limits[table] = float(about["max_epsilon"])
            found.deltas[table] = float(about.get("delta", 0.0))
            found.tables[table] = {
                job: BudgetLedger.of_document(ledger) for job, ledger in about["jobs"].items()
            }
        found.summary()  # adds up, or is no account
        return found


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_accounts(state: Path) -> Accounts:
    """Return the accounts in a state folder; empty ones where there are none.

    Raises
    ------
    AccountDamaged
        A file is damaged, missing or older than the other one; names it.
    """
    folder = state / FOLDER
    # The copy first: while an agent writes, the accounts can only be ahead of it.
    copy, accounts = _read(folder / _FILES[1]), _read(folder / _FILES[0])
    if accounts is None and copy is None:
        return Accounts()
    behind = (accounts.turn if accounts else 0) - (copy.turn if copy else 0)
    if behind not in (0, 1):
        older = _FILES[0] if behind < 0 else _FILES[1]
        raise _damaged(folder / older, "it is missing, or older than the other one")
    assert accounts is not None, "a turn is at least 1"
    return accounts


def _read(file: Path) -> Accounts | None:
    try:
        return Accounts.decode(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(file, f"it cannot be read ({error.strerror or error})") from error
    except FOREIGN as error:
        raise _damaged(file, "its content is not what was written") from error


def _damaged(file: Path, why: str) -> AccountDamaged:
    return AccountDamaged(
        f"the privacy accountant's file {file.name} is damaged: {why}. What was spent is not "
        "known, so no job with a privacy budget may run"
    )


def _spent(ledgers: Iterable[BudgetLedger], delta: float) -> Fraction | float:
    return total((entry for ledger in ledgers for entry in ledger.entries.values()), delta)


class TableAccount:
    """The account of one table: every job's charges, against the limits of the silo's policy.

    Parameters
    ----------
    state : Path
        The agent's state folder, of which this process holds the lock.
    table : str
        Name of the table in the silo's configuration; its content may change.
    max_epsilon : float or None
        Most that all jobs may spend together.
    max_epsilon_job : float or None
        Most that one job may spend.
    max_delta : float or None
        At which the table's epsilon is counted, and the largest of a job; by default the least
        delta of its jobs.
    """

    def __init__(
        self,
        state: Path,
        table: str,
        max_epsilon: float | None = None,
        max_epsilon_job: float | None = None,
        max_delta: float | None = None,
    ) -> None:
        self._folder = state / FOLDER
        self._table = table
        self._limit = math.inf if max_epsilon is None else max_epsilon
        self._job_limit = math.inf if max_epsilon_job is None else max_epsilon_job
        self._max_delta = max_delta
        self._lock = threading.Lock()
        self._accounts: Accounts | None = None

    def admit(self, job_id: str, epsilon: float, delta: float = 0.0) -> JobAccount:
        """Return the account of a job that may spend up to ``epsilon`` at ``delta``.

        Raises
        ------
        PolicyDeclined
            What other jobs have spent leaves less.
        AccountDamaged
        """
        with self._lock:
            jobs = self._loaded().tables.get(self._table, {})
            others = {job: ledger for job, ledger in jobs.items() if job != job_id}
            at = self._delta(others, delta)
            spent = _spent(others.values(), at)
            limit = min(epsilon, self._job_limit)
            if delta and math.isfinite(epsilon):
                whole = Concentrated("the job", 0.0, 1, 1, rho=rho_within(limit, delta))
                asked = BudgetLedger(math.inf, {"": whole})
                both = _spent([*others.values(), asked], at)
            else:
                both = spent + exact(epsilon)
            if both > self._limit:
                raise PolicyDeclined(
                    f"policy rule max_epsilon: the job may spend {epsilon:g}, the jobs before it "
                    f"leave {max(self._limit - float(spent), 0.0):g} of {self._limit:g}"
                )
        return JobAccount(self, job_id, limit, delta)

    def _delta(self, jobs: Mapping[str, BudgetLedger], own: float = 0.0) -> float:
        """Return the delta at which all jobs' epsilon is counted; 0 where all are pure."""
        known = [delta for delta in (own, *(ledger.delta for ledger in jobs.values())) if delta]
        return (self._max_delta or min(known)) if known else 0.0

    def spent(self) -> float:
        """Return the epsilon that all jobs have spent; not a number where that cannot be read."""
        with self._lock:
            try:
                jobs = self._loaded().tables.get(self._table, {})
                return float(_spent(jobs.values(), self._delta(jobs)))
            except FederationError:
                return math.nan

    def charge(
        self, job_id: str, limit: float, entries: Mapping[str, Spending], delta: float = 0.0
    ) -> None:
        """Enter queries of a job, all or none; they are on disk when this returns."""
        with self._lock:
            accounts = self._loaded()
            jobs = accounts.tables.get(self._table, {})
            known = dict(jobs[job_id].entries) if job_id in jobs else {}
            ledger = BudgetLedger(limit, known, delta)
            before = len(ledger.entries)
            ledger.charge(entries)
            if len(ledger.entries) == before:
                return
            changed = jobs | {job_id: ledger}
            at = self._delta(changed)
            spent = _spent(changed.values(), at)
            if spent > self._limit:
                raise BudgetExceeded(
                    f"policy rule max_epsilon: all jobs together would have spent "
                    f"{float(spent):g} on this silo's table, at most {self._limit:g}"
                )
            following = Accounts(
                accounts.turn + 1,
                accounts.tables | {self._table: changed},
                accounts.limits | {self._table: self._limit},
                accounts.deltas | {self._table: at},
            )
            self._write(following, _FILES)
            self._accounts = following

    def _loaded(self) -> Accounts:
        if self._accounts is None:
            found = read_accounts(self._folder.parent)
            if found.turn:  # a crash may have left the copy behind: a second one must not
                self._write(found, _FILES[1:])
            self._accounts = found
        return self._accounts

    def _write(self, accounts: Accounts, names: tuple[str, ...]) -> None:
        data = accounts.encode()
        with writing_state():
            for name in names:
                write_atomically(self._folder / name, data)


@dataclass(frozen=True, slots=True)
class JobAccount:
    """One job's charges on a table; see :class:`hedgerow.boosting.budget.Accountant`."""

    table: TableAccount
    job_id: str
    limit: float
    """Most that the job may spend: what its parameters say, or the policy's ``max_epsilon_job``."""
    delta: float = 0.0

    def charge(self, entries: Mapping[str, Spending]) -> None:
        """Enter queries by key, all or none; they are on disk when this returns."""
        self.table.charge(self.job_id, self.limit, entries, self.delta)
