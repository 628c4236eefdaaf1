"""Attacks on the privacy budget: the same noise under other counts, and budgets that begin anew."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.budget import BudgetExceeded, BudgetLedger, Spending
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import FederationError, PolicyDeclined
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters, SiloStart
from hedgerow.boosting.strategies.dp_tree.bins import EdgeSearch
from hedgerow.boosting.strategies.dp_tree.noisy_tree import BinnedTree, extend, open_root
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.queries import Queries
from hedgerow.boosting.strategies.dp_tree.silo import Counter
from hedgerow.boosting.sums.answers import NoisyRelease
from hedgerow.client_agent.accountant import AccountDamaged, TableAccount, read_accounts
from hedgerow.client_agent.policy import Policy
from hedgerow.crypto.ciphers.key_files import KeyFolder, SealingSecret
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation.test_dp_tree import dataset_of, run, silos_of

SILOS = (Silo("ash"), Silo("birch"), Silo("cedar"))
PARAMETERS = DPTree(8.0, depth=3)
JOB = JobParameters("test", PARAMETERS)
EDGES = np.linspace(-1, 1, 4).astype(np.float32)


def table(turned: int = 0, names: str = "abcd") -> Dataset:
    """Rows whose columns the coordinator has named in another order."""
    rng = np.random.default_rng(5)
    X = np.roll(rng.normal(size=(200, 4)).astype(np.float32), turned, axis=1)
    order = np.roll(np.array(list(names)), turned)
    schema = Schema(tuple(Feature(str(name)) for name in order), "label", Task.BINARY, 2)
    return Dataset(schema, X, rng.integers(0, 2, 200).astype(np.float64))


def start_of(dataset: Dataset, **other: Any) -> SiloStart:
    told: dict[str, Any] = {
        "job": JOB, "job_id": "job", "attempt": 1, "silo": SILOS[0], "silos": SILOS,
        "schema": dataset.schema, "dataset": dataset,
    }  # fmt: skip
    return SiloStart(**(told | other))


class Asked:
    """A silo that answers the root of a tree, under one key and one budget."""

    def __init__(self, epsilon: float = 8.0) -> None:
        self.vault = LocalVault()
        self.ledger = BudgetLedger(epsilon)

    def noise(
        self, start: SiloStart, silos: tuple[Silo, ...] = SILOS, tree: BinnedTree | None = None
    ) -> np.ndarray:
        """Return the noise of an answer: what is left when the true counts are taken off."""
        tree = tree or open_root(start.schema, (EDGES,) * 4)
        answers = NoisyRelease(self.vault, self.ledger, start)
        noisy = self.counter(answers, start).counts(tree, silos)
        plain = NoisyRelease(LocalVault(), BudgetLedger(np.inf), start)
        exact = replace(PARAMETERS, epsilon=np.inf)
        return noisy - self.counter(plain, start, exact).counts(tree, silos)

    @staticmethod
    def counter(
        answers: NoisyRelease, start: SiloStart, parameters: DPTree = PARAMETERS
    ) -> Counter:
        return Counter(Queries(parameters, start.schema, 3), answers, start)


def test_columns_in_another_order_at_each_attempt_have_other_noise_and_cost_again() -> None:
    asked = Asked()
    noises = [asked.noise(start_of(table(turned), attempt=turned + 1)) for turned in range(3)]
    assert len(asked.ledger.entries) == 3 * 2
    for one in range(3):
        for other in range(one):
            equal = np.mean(noises[one] == noises[other])
            assert equal < 0.5, "noise of one attempt takes that of another off"
    # Also not the same noise, moved as the columns were.
    blocks = [noise[2:].reshape(4, -1) for noise in noises]
    assert all(np.mean(blocks[0] == np.roll(blocks[k], -k, axis=0)) < 0.5 for k in (1, 2))


def _other_label(dataset: Dataset) -> Dataset:
    return replace(dataset, y=1.0 - dataset.labels)


CHANGES: dict[str, Callable[[SiloStart], SiloStart]] = {
    "a row less": lambda s: replace(s, dataset=s.dataset.take(np.arange(199))),
    "other labels": lambda s: replace(s, dataset=_other_label(s.dataset)),
    "other names": lambda s: start_of(table(names="bacd")),
    "another job": lambda s: replace(s, job_id="job-2"),
    "another specification": lambda s: replace(s, job=replace(JOB, seed=1)),
    "the schema": lambda s: replace(s, schema=replace(s.schema, label="other")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_question_of_something_else_is_another_release(change: str) -> None:
    asked = Asked()
    first = asked.noise(start_of(table()))
    again = asked.noise(CHANGES[change](start_of(table())))
    assert len(asked.ledger.entries) == 4
    assert np.mean(first == again) < 0.5


def test_a_sum_over_other_silos_is_another_release() -> None:
    asked = Asked()
    first, again = (asked.noise(start_of(table()), silos) for silos in (SILOS, SILOS[:2]))
    assert len(asked.ledger.entries) == 4
    assert np.mean(first == again) < 0.5


def test_an_honest_retry_has_the_same_bytes_and_costs_nothing() -> None:
    asked = Asked()
    first = asked.noise(start_of(table()))
    again = asked.noise(start_of(table(), attempt=2, first_round=1))
    assert np.array_equal(first, again)
    assert len(asked.ledger.entries) == 2


def test_counts_depend_on_the_query_alone_whatever_was_asked_before() -> None:
    # Bins that stay from an earlier query would put other counts under the noise of this one.
    start = start_of(table())
    mask = np.arange(6) < 3
    fresh = extend(open_root(start.schema, (EDGES,) * 4), {0: (1, mask)})
    answers = NoisyRelease(LocalVault(), BudgetLedger(8.0), start)
    once = Asked.counter(answers, start).counts(fresh, SILOS)
    twisted = Asked.counter(answers, start)
    twisted.counts(open_root(start.schema, (EDGES / 9,) * 4), SILOS)
    assert np.array_equal(twisted.counts(fresh, SILOS), once)


def test_a_lost_noise_key_is_a_new_charge_until_the_budget_is_spent() -> None:
    asked, start = Asked(epsilon=PARAMETERS.epsilon * 4 / 7), start_of(table())
    first = asked.noise(start)
    asked.vault = LocalVault()
    assert np.mean(first == asked.noise(start)) < 0.5
    assert len(asked.ledger.entries) == 4
    asked.vault = LocalVault()
    with pytest.raises(BudgetExceeded):
        asked.noise(start)
    assert len(asked.ledger.entries) == 4


@pytest.mark.parametrize("kept", ["key_folder", "noise_folder"])
def test_the_noise_key_survives_a_restart_of_its_vault(tmp_path: Path, kept: str) -> None:
    def vault(secret: bytes) -> LocalVault:
        folder = KeyFolder(tmp_path, SealingSecret("key file", secret * 32))
        return LocalVault(**{kept: folder})  # type: ignore[arg-type]

    first, again = (vault(b"k").derive_noise(b"query") for _ in range(2))
    assert first == again
    with pytest.raises(ValueError, match="wrong key file"):
        vault(b"o").derive_noise(b"query")
    answers = NoisyRelease(vault(b"o"), BudgetLedger(8.0), start_of(table()))
    with pytest.raises(FederationError, match="gives no noise: wrong key file"):
        answers.answer(b"query", [], silos=(), honest=1)
    (file,) = tmp_path.glob("*.key")
    file.unlink()
    assert vault(b"k").derive_noise(b"query").key_id != first.key_id


def test_intervals_in_another_order_are_another_query() -> None:
    a, b, none = (np.array(own, dtype=np.uint32) for own in ([1], [2], []))
    digests = {EdgeSearch(1, order).digest for order in ((a, b, none), (b, a, none), (a, none, b))}
    assert len(digests) == 3


def spending(epsilon: float, query: str = "counts") -> Spending:
    return Spending(query, epsilon, 1, 10)


def test_jobs_in_a_row_share_one_budget_through_restarts(tmp_path: Path) -> None:
    for number in range(4):
        # A fresh process each time: what counts is on disk.
        account = TableAccount(tmp_path, "people", max_epsilon=3.0)
        if number < 3:
            account.admit(f"job-{number}", 1.0).charge({"q": spending(1.0)})
            continue
        with pytest.raises(PolicyDeclined, match=r"max_epsilon: .* leave 0 of 3"):
            account.admit("job-3", 1.0)
    # Neither another job's admission nor its query goes past the limit.
    account = TableAccount(tmp_path, "people", max_epsilon=3.5)
    late = account.admit("job-4", 0.5)
    account.admit("job-5", 0.5).charge({"q": spending(0.5)})
    with pytest.raises(BudgetExceeded, match=r"3\.75 .* at most 3\.5"):
        late.charge({"q": spending(0.25)})
    jobs = read_accounts(tmp_path).tables["people"]
    assert sum(ledger.spent for ledger in jobs.values()) == Fraction(7, 2)
    assert account.spent() == 3.5  # what the agent's metrics show
    assert TableAccount(tmp_path, "others").spent() == 0.0


def test_four_private_trees_in_a_row_do_not_get_four_budgets(tmp_path: Path) -> None:
    silos = silos_of(3, 400)
    spent: list[float] = []

    def one_more(number: int) -> None:
        accounts = {silo: TableAccount(tmp_path / silo, "t", max_epsilon=5.0) for silo in silos}
        jobs = {silo: of.admit(f"job-{number}", 2.0) for silo, of in accounts.items()}
        outcome = run(DPTree(2.0, depth=2), silos, accountants=jobs)
        assert outcome.error is None
        tables = [read_accounts(tmp_path / silo).tables["t"] for silo in silos]
        spent.append(max(float(sum(of.spent for of in jobs.values())) for jobs in tables))

    refused = 0
    for number in range(6):
        try:
            one_more(number)
        except PolicyDeclined:
            refused += 1
    assert refused
    assert 0.0 < spent[0] < spent[1] <= 4.0
    assert max(spent) <= 5.0


@pytest.mark.parametrize(
    ("policy", "most"), [({}, 5), ({"max_epsilon": 21.0}, 10), ({"min_cell": 1}, 40)]
)
def test_many_small_budgets_come_to_a_limit_where_the_policy_has_none(
    tmp_path: Path, policy: dict[str, Any], most: int
) -> None:
    """The mean of forty answers with an epsilon of 2 tells a row where one answer does not."""
    account = TableAccount(tmp_path, "t", Policy(**policy).most_epsilon)
    start, vault, noises = start_of(table()), LocalVault(), []
    small, tree = DPTree(2.0, depth=1), open_root(start.schema, (EDGES,) * 4)
    plain = NoisyRelease(LocalVault(), BudgetLedger(np.inf), start)
    counts = Asked.counter(plain, start, replace(small, epsilon=np.inf)).counts(tree, SILOS)
    with contextlib.suppress(PolicyDeclined):
        for number in range(40):
            one = replace(start, job_id=f"job-{number}")
            own = account.admit(one.job_id, small.epsilon)
            answer = Asked.counter(NoisyRelease(vault, own, one), one, small).counts(tree, SILOS)
            own.charge({"edges and leaves": spending(0.9333)})
            noises.append(answer - counts)
    assert len(noises) == most
    assert account.spent() <= 2.0 * most
    if most == 40:
        assert np.abs(np.mean(noises, axis=0)).mean() < 2.0 < np.abs(noises[0]).mean()


def test_a_job_spends_no_more_than_it_said_or_the_policy_lets_one_job(tmp_path: Path) -> None:
    account = TableAccount(tmp_path, "t", max_epsilon_job=1.0)
    job = account.admit("job", 2.0)
    job.charge({"a": spending(0.75)})
    with pytest.raises(BudgetExceeded, match=r"0\.125 of 1 are left"):
        job.charge({"b": spending(0.125), "c": spending(0.25)})
    job.charge({"a": spending(0.75), "b": spending(0.25)})
    assert read_accounts(tmp_path).tables["t"]["job"].spent == 1


def test_tables_have_budgets_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        TableAccount(tmp_path, name, max_epsilon=1.0).admit("j", 1.0).charge({"q": spending(1.0)})
    assert read_accounts(tmp_path).limits == {"a": 1.0, "b": 1.0}
    with pytest.raises(PolicyDeclined):
        TableAccount(tmp_path, "a", max_epsilon=1.0).admit("k", 0.5)


FILES = ("accounts.json", "accounts.copy.json")


def charged(folder: Path, times: int = 3) -> None:
    account = TableAccount(folder, "t")
    for number in range(times):
        account.admit("job", 9.0).charge({str(number): spending(0.5)})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "older", "gone", "forged"])
def test_damaged_accounts_are_refused_and_never_taken_for_unspent(
    tmp_path: Path, name: str, damage: str
) -> None:
    charged(tmp_path, 1)
    file = tmp_path / "privacy" / name
    older = file.read_bytes()
    charged_twice = TableAccount(tmp_path, "t").admit("job", 9.0)
    charged_twice.charge({"more": spending(0.5)})
    charged_twice.charge({"most": spending(0.5)})
    data = file.read_bytes()
    cases: dict[str, list[bytes | None]] = {
        "cut": [data[:at] for at in range(1, len(data) - 1, 17)],
        "empty": [b"", b"\0" * len(data), b"{}", b"[]", b"null"],
        "flip": [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))],
        "older": [older],
        "gone": [None],
        "forged": [json.dumps(json.loads(data) | {"tables": {}}).encode()],
    }
    for case in cases[damage]:
        if case is None:
            file.unlink()
        else:
            file.write_bytes(case)
        found = spent_in(tmp_path)
        # One bit of a blank between two fields is no damage.
        assert found is None or (damage == "flip" and found == Fraction(3, 2))
        if found is None:
            with pytest.raises(AccountDamaged):
                TableAccount(tmp_path, "t").admit("job", 1.0)


def spent_in(folder: Path) -> Fraction | float | None:
    """Return what the job has spent, None where the accounts are refused."""
    try:
        return read_accounts(folder).tables["t"]["job"].spent
    except AccountDamaged:
        return None


def test_a_crash_between_the_two_files_loses_no_charge(tmp_path: Path) -> None:
    charged(tmp_path)
    first, copy = (tmp_path / "privacy" / name for name in FILES)
    before = copy.read_bytes()
    TableAccount(tmp_path, "t").admit("job", 9.0).charge({"last": spending(0.5)})
    copy.write_bytes(before)
    assert read_accounts(tmp_path).tables["t"]["job"].spent == 2
    # The other way around a charge would be gone.
    copy.write_bytes(first.read_bytes())
    first.write_bytes(before)
    with pytest.raises(AccountDamaged, match=r"accounts\.json"):
        read_accounts(tmp_path)


def test_nothing_is_answered_while_the_accounts_cannot_be_written(tmp_path: Path) -> None:
    start = start_of(dataset_of(1, 50, categorical=False))
    account = TableAccount(tmp_path, "t").admit("job", 8.0)
    (tmp_path / "privacy").write_text("a file where the folder should be")
    answers = NoisyRelease(LocalVault(), account, start)
    with pytest.raises(FederationError, match="cannot be written"):
        Asked.counter(answers, start).counts(open_root(start.schema, (EDGES,) * 4), SILOS)
