"""The accountant against a model of it, through restarts, crashes and full disks."""

from __future__ import annotations

import contextlib
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.budget import BudgetExceeded, Spending
from hedgerow.boosting.errors import FederationError, PolicyDeclined
from hedgerow.client_agent.accountant import (
    Accounts,
    JobAccount,
    TableAccount,
    read_accounts,
)

LIMIT, JOB_LIMIT = 4.0, 2.0

charges = st.tuples(
    st.sampled_from(["charge", "crash", "full"]),
    st.sampled_from(["job-1", "job-2", "job-3"]),
    st.integers(0, 5),
    st.sampled_from([0.25, 0.1, 1.5]),
)
steps = st.lists(st.one_of(st.just("restart"), charges), max_size=25)


def _charge_without_room(files: Path, job: JobAccount, entries: dict[str, Spending]) -> None:
    """Charge while nothing can be written."""
    away = files.with_name("away")
    if files.exists():
        files.rename(away)
    files.write_text("in the way")
    try:
        with contextlib.suppress(FederationError):
            job.charge(entries)
    finally:
        files.unlink()
        if away.exists():
            away.rename(files)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps)
def test_whatever_fails_no_charge_is_forgotten_and_no_limit_passed(
    done: list[str | tuple[str, str, int, float]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "privacy"
        account = TableAccount(Path(folder), "t", LIMIT, JOB_LIMIT)
        paid: dict[tuple[str, str], float] = {}
        for step in done:
            if isinstance(step, str):
                account = TableAccount(Path(folder), "t", LIMIT, JOB_LIMIT)
                continue
            what, job, number, epsilon = step
            # As in an agent, the same key is always the same query.
            key, entry = f"{number}/{epsilon}", Spending("counts", epsilon, 1, 1)
            try:
                admitted = account.admit(job, JOB_LIMIT)
                if what == "full":
                    _charge_without_room(files, admitted, {key: entry})
                    continue
                copy = files / "accounts.copy.json"
                before = copy.read_bytes() if copy.exists() else None
                admitted.charge({key: entry})
            except (PolicyDeclined, BudgetExceeded):
                continue
            if what == "charge":
                paid[job, key] = epsilon
                continue
            # The process ends between the two files: the charge is entered, the answer not sent.
            copy.unlink()
            if before is not None:
                copy.write_bytes(before)
            account = TableAccount(Path(folder), "t", LIMIT, JOB_LIMIT)
        jobs = read_accounts(Path(folder)).tables.get("t", {})
        entered = {(job, key) for job, ledger in jobs.items() for key in ledger.entries}
        assert paid.keys() <= entered
        assert all(ledger.spent <= JOB_LIMIT for ledger in jobs.values())
        assert sum(ledger.spent for ledger in jobs.values()) <= LIMIT


@pytest.mark.parametrize("epsilon", [0.1, float("inf")])
def test_accounts_survive_their_encoding(tmp_path: Path, epsilon: float) -> None:
    job = TableAccount(tmp_path, "t").admit("job", epsilon)
    job.charge({"a": Spending("level 0", epsilon, 2, 8)})
    found = read_accounts(tmp_path)
    assert Accounts.decode(found.encode()) == found
    assert found.tables["t"]["job"].spent == (epsilon if epsilon > 1 else Fraction(epsilon))


def test_infinite_spending_leaves_nothing_for_a_finite_limit(tmp_path: Path) -> None:
    exact = TableAccount(tmp_path, "t").admit("job", float("inf"))
    exact.charge({"a": Spending("counts", float("inf"), 1, 8)})
    with pytest.raises(PolicyDeclined, match="leave 0 of 4"):
        TableAccount(tmp_path, "t", LIMIT).admit("job-2", 0.5)
