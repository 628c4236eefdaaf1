"""What vertical jobs do when parties, processes or tables are not as they should be."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting.allowances import PartyLimits
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
from hedgerow.boosting.exchange import SiloChannel
from hedgerow.boosting.ports import Artefact, SiloStart
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from hedgerow.boosting.strategies.secureboost.silo import participate
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation import vertical
from tests.federation.memory import Outcome, run_in_memory
from tests.federation.processes import Federation
from tests.federation.test_secureboost_processes import write_parties


class Hostile(LocalVault):
    """A passive party's vault that does not answer as it should."""

    def __init__(self, alter: Callable[[tuple[NDArray[np.uint8], ...]], Any]) -> None:
        super().__init__(engine=Engine(workers=1), insecure_test_keys=True)
        self._alter = alter

    def sum_bins(self, *arguments: Any, **options: Any) -> tuple[NDArray[np.uint8], ...]:
        return tuple(self._alter(super().sum_bins(*arguments, **options)))


def run(
    job: Any, parties: dict[str, Dataset], vaults: Callable[[str], Any] | None = None
) -> Outcome:
    return run_in_memory(
        job, parties, schema=parties["guest"].schema, vaults=vaults or vertical.vaults()
    )


def noise(answer: tuple[NDArray[np.uint8], ...]) -> tuple[NDArray[np.uint8], ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.integers(0, 256, part.shape, dtype=np.uint8) for part in answer)


GARBAGE: dict[str, Callable[[tuple[NDArray[np.uint8], ...]], Any]] = {
    "noise": noise,
    "zeros": lambda answer: tuple(np.zeros_like(part) for part in answer),
    "too few": lambda answer: tuple(part[:-1] for part in answer),
    "cut off": lambda answer: tuple(part[:, :-1] for part in answer),
    "nothing": lambda answer: (),
    "a part too many": lambda answer: (*answer, answer[0]),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_for_sums_is_refused_and_named(kind: str) -> None:
    parties = vertical.cut_by_columns(vertical.table(120, 6), [2, 2, 2])
    made = {"host-2": Hostile(GARBAGE[kind])}
    honest = vertical.vaults()
    outcome = run(vertical.job(), parties, lambda silo: made.get(silo) or honest(silo))
    assert isinstance(outcome.error, DataError)
    assert "guest: host-2 sent sums that cannot be used" in str(outcome.error)
    assert isinstance(outcome.errors["guest"], OfferRejected)  # type: ignore[index]


def test_sums_of_other_candidates_than_the_chosen_one_are_noticed() -> None:
    parties = vertical.cut_by_columns(vertical.table(200, 4), [1, 3])

    def swapped(answer: tuple[NDArray[np.uint8], ...]) -> Sequence[NDArray[np.uint8]]:
        return tuple(part[::-1].copy() for part in answer)

    made = {"host-1": Hostile(swapped)}
    honest = vertical.vaults()
    # 21 candidates in two packages of a short key: turned round, they are other candidates' sums.
    outcome = run(vertical.job(), parties, lambda silo: made.get(silo) or honest(silo))
    assert "host-1 sent" in str(outcome.error)


@pytest.mark.parametrize("call", ["sum_bins", "hold_rows", "encrypt_gradients", "blind"])
@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_what_a_foreign_exception_says_reaches_no_other_party(
    call: str, error: type[Exception]
) -> None:
    parties = vertical.cut_by_columns(vertical.table(60, 6), [2, 2, 2])
    honest = vertical.vaults()

    def breaks(*arguments: Any, **options: Any) -> Any:
        raise error("the label of row 7 is 424242")

    def vaults(silo: str) -> Any:
        vault = honest(silo)
        if silo == ("guest" if call == "encrypt_gradients" else "host-1"):
            setattr(vault, "blind_identifiers" if call == "blind" else call, breaks)
        return vault

    outcome = run(vertical.job(), parties, vaults)
    texts = [str(told) for told in (outcome.error, *outcome.errors.values(), *outcome.lost)]
    assert outcome.error is not None
    assert any(error.__name__ in text for text in texts)
    assert not any("424242" in text for text in texts)


def test_an_id_that_is_no_text_ends_the_job_without_being_shown() -> None:
    parties = vertical.cut_by_columns(vertical.table(60, 4), [2, 2])
    host = parties["host-1"]
    assert host.ids is not None
    for wrong, said in (("p\ud800secret", "UnicodeEncodeError"), (7.25, "received a fraction")):
        ids = host.ids.copy()
        ids[5] = wrong
        parties["host-1"] = Dataset(host.schema, host.X, None, ids=ids)
        outcome = run(vertical.job(), parties)
        assert said in str(outcome.error)
        assert not any(secret in str(outcome.error) for secret in ("secret", "ud800", "7.25"))


@pytest.mark.parametrize("alignment", ["psi", "digest"])
@pytest.mark.parametrize("party", ["guest", "host-1"])
@pytest.mark.parametrize(("ids", "why"), [((61, 100), "few"), ((1, 59), "many")])
def test_a_silos_own_limits_of_ids_bind_the_alignment(
    ids: tuple[int, int], why: str, party: str, alignment: str
) -> None:
    parties = vertical.cut_by_columns(vertical.table(60, 4), [2, 2])
    parties = {name: vertical.by_id(table) for name, table in parties.items()}

    def strict(parameters: Any, link: SiloChannel, vault: Any, start: SiloStart) -> Artefact | None:
        if start.silo == party:
            start = replace(start, limits=PartyLimits(*ids))
        return participate(parameters, link, vault, start)

    outcome = run_in_memory(
        vertical.job(alignment=alignment),
        parties,
        schema=parties["guest"].schema,
        vaults=vertical.vaults(),
        participate_as=strict,
    )
    how = {"psi": "private set intersection", "digest": "row digest"}[alignment]
    assert f"{party}: {how}: {party} has too {why} distinct ids" in str(outcome.error)
    assert "60" not in str(outcome.error)


def test_parties_without_a_common_id_end_the_job() -> None:
    one, other = vertical.table(50, 4, seed=1), vertical.table(50, 4, seed=2)
    parties = vertical.cut_by_columns(one, [2, 2])
    foreign = vertical.cut_by_columns(other, [2, 2])["host-1"]
    assert foreign.ids is not None
    foreign = Dataset(foreign.schema, foreign.X, None, ids=foreign.ids + "x")
    outcome = run(vertical.job(), {**parties, "host-1": foreign})
    assert "no row id is common to all parties" in str(outcome.error)


def test_rows_that_others_lack_missing_ids_and_repeated_ids_are_left_out_and_reported() -> None:
    whole = vertical.table(150, 6)
    parties = vertical.cut_by_columns(whole, [3, 3])
    host = parties["host-1"]
    assert host.ids is not None
    ids = host.ids.copy()
    lost = {ids[3], ids[9], ids[10], ids[11]}
    ids[3], ids[10], ids[11] = None, ids[9], "stranger"
    parties["host-1"] = Dataset(host.schema, host.X, None, ids=ids)
    outcome = run(vertical.job(), parties)
    assert outcome.error is None, (outcome.error, outcome.errors)
    active, passive = vertical.parts(outcome.kept)
    assert active.alignment == {"rows": 146, "without_id": 0, "repeated": 0}
    assert passive["host-1"].alignment == {"rows": 146, "without_id": 1, "repeated": 2}
    assert whole.ids is not None
    common = whole.take(np.flatnonzero([i not in lost for i in whole.ids]))
    ensemble = vertical.pooled(vertical.job(), common, 2)
    assert vertical.joined(active, passive, [3, 3]) == vertical.divisions(ensemble)


@pytest.mark.parametrize("change", ["other ids", "another order", "a missing id"])
def test_unequal_row_digests_end_the_job_with_the_party_named(change: str) -> None:
    parties = {
        name: vertical.by_id(party)
        for name, party in vertical.cut_by_columns(vertical.table(60, 6), [2, 2, 2]).items()
    }
    host = parties["host-2"]
    assert host.ids is not None
    ids = host.ids.copy()
    if change == "other ids":
        ids[5] = "stranger"
    elif change == "another order":
        ids[[1, 2]] = ids[[2, 1]]
    else:
        ids[7] = None
    parties["host-2"] = Dataset(host.schema, host.X, None, ids=ids)
    outcome = run(vertical.job(alignment="digest"), parties)
    assert "the row digest of host-2 differs from that of guest" in str(outcome.error)


@pytest.mark.parametrize("encryption", ["paillier", "elgamal"])
def test_a_party_with_constant_columns_changes_nothing(encryption: str) -> None:
    whole = vertical.table(150, 5)
    whole.X[:, 3:] = 1.0
    job = vertical.job(encryption=encryption)
    outcome = run(job, vertical.cut_by_columns(whole, [3, 2]))
    assert outcome.error is None, (outcome.error, outcome.errors)
    active, passive = vertical.parts(outcome.kept)
    assert not passive["host-1"].nodes
    if encryption == "paillier":
        ensemble = vertical.pooled(job, whole, 2)
        assert vertical.joined(active, passive, [3, 2]) == vertical.divisions(ensemble)


def test_a_column_without_any_value_is_no_hindrance() -> None:
    whole = vertical.table(150, 4)
    whole.X[:, 3] = np.nan
    outcome = run(vertical.job(), vertical.cut_by_columns(whole, [2, 2]))
    assert outcome.error is None, (outcome.error, outcome.errors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_bits": 1024}, r"\[secureboost\] key_bits: expected one of 2048, 3072, 4096"),
        ({"encryption": "plain", "allow_insecure": False}, "needs allow_insecure = true"),
        ({"encryption": "iterative_affine"}, "expected one of paillier, elgamal, plain"),
        ({"early_stopping_rounds": 3}, "expected validation above 0"),
        ({"inference": "eini", "encryption": "plain"}, "eini encrypts"),
        ({"mode": "layered", "rounds": 0}, r"\[secureboost\] rounds"),
        ({"predict_from": "a", "warm_start": "b"}, "warm_start does"),
        ({"min_leaf": 0}, r"\[secureboost\] min_leaf"),
        ({"max_purity": 0.3}, r"\[secureboost\] max_purity"),
    ],
)
def test_jobs_that_cannot_run_or_are_not_safe_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    job = vertical.job(**{"key_bits": 2048, **changes})
    with pytest.raises(InvalidJob, match=message):
        job.parameters.validate(job)


def test_guards_keep_few_rows_and_one_label_from_being_set_apart() -> None:
    rng = np.random.default_rng(4)
    n = 400
    X = rng.normal(size=(n, 3)).astype(np.float32)
    y = (rng.random(n) < 0.5).astype(np.float64)
    few = rng.permutation(n)[:40]
    X[:, 0], X[:, 2], X[few, 2], y[few] = 0.0, 0.0, 1.0, 1.0
    whole = vertical.dataset(X, [f"p{k:04d}" for k in range(n)], y=y)
    parties = vertical.cut_by_columns(whole, [1, 2])
    booster = {"max_depth": 1, "max_bin": 80, "min_child_weight": 0}

    def smallest_and_purest(**changes: Any) -> tuple[int, float]:
        job = vertical.job(booster=booster, rounds=1, encryption="plain", **changes)
        outcome = run(job, parties)
        assert outcome.error is None, (outcome.error, outcome.errors)
        _, passive = vertical.parts(outcome.kept)
        ((_, feature, threshold, _),) = passive["host-1"].nodes.values()
        left = X[:, 1 + feature] < np.float32(threshold)
        sizes = [int(left.sum()), int((~left).sum())]
        shares = [float(y[left].mean()), float(y[~left].mean())]
        return min(sizes), max(max(s, 1 - s) for s in shares)

    assert smallest_and_purest()[1] == 1.0
    size, purity = smallest_and_purest(max_purity=0.95)
    assert purity <= 0.95
    size, _ = smallest_and_purest(min_leaf=60)
    assert size >= 60


# --- processes ------------------------------------------------------------------------------

JOB = """
name = "vertical"
strategy = "secureboost"
seed = 3
min_silos = 2
start_timeout_seconds = {patience}
step_timeout_seconds = 60
[secureboost]
active = "guest"
rounds = 5
min_leaf = 1
max_purity = 1.0
[booster]
max_depth = 3
max_bin = 8
"""
WHOLE = vertical.table(700, 6)


@contextmanager
def federation(folder: Path, crypto: bool = False, fresh: bool = False) -> Iterator[Federation]:
    tables = write_parties(vertical.cut_by_columns(WHOLE, [3, 3]), folder)
    made = Federation(folder, tables, fresh=fresh)
    try:
        made.start_coordinator()
        for silo in tables:
            extra = {"crypto": made.start_crypto(silo)} if crypto else {}
            # Trees are compared with those of a table whose bins are not merged.
            made.start_agent(silo, policy={"min_bin_rows": 1}, **extra)
        yield made
    finally:
        made.stop()


def rounds_done(made: Federation, job_id: str, n: int) -> None:
    made.wait(job_id, lambda view: len(view.rounds) >= n or view.ended, 60)


def check_result(made: Federation, job_id: str) -> None:
    view = made.end(job_id, 90)
    assert view.state == "SUCCEEDED", (view.detail, made.log("coordinator")[-1500:])
    kept = [made.folder / f"state-agent-{s}/jobs/{job_id}/part.json" for s in made.silos]
    active = ActivePart.load(kept[0].read_bytes())
    passive = {"host-1": PassivePart.load(kept[1].read_bytes())}
    ensemble = vertical.pooled(vertical.job(), WHOLE, 5)
    assert vertical.joined(active, passive, [3, 3]) == vertical.divisions(ensemble)


def kill_party(made: Federation) -> None:
    made.kill("agent-host-1")
    made.start_agent("host-1", policy={"min_bin_rows": 1})


def restart_coordinator(made: Federation) -> None:
    made.kill("coordinator")
    made.start_coordinator()


@pytest.mark.parametrize("fault", [kill_party, restart_coordinator])
def test_a_job_goes_on_to_the_same_model_when_a_process_is_killed(
    tmp_path: Path, fault: Callable[[Federation], None]
) -> None:
    with federation(tmp_path) as made:
        job_id = made.submit(JOB.format(patience=60))
        rounds_done(made, job_id, 2)
        fault(made)
        check_result(made, job_id)


def test_a_job_goes_on_when_a_frozen_party_thaws(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        job_id = made.submit(JOB.format(patience=60))
        rounds_done(made, job_id, 2)
        made.kill("agent-host-1", signal.SIGSTOP)
        made.wait(job_id, lambda view: view.attempt > 1 or view.ended, 60)
        made.kill("agent-host-1", signal.SIGCONT)
        check_result(made, job_id)


@pytest.mark.parametrize("silo", ["guest", "host-1"])
def test_a_job_goes_on_when_a_crypto_process_is_restarted(tmp_path: Path, silo: str) -> None:
    # Once of interpreters that have imported nothing: the fork server's have all that a job uses.
    with federation(tmp_path, crypto=True, fresh=silo == "guest") as made:
        job_id = made.submit(JOB.format(patience=60))
        rounds_done(made, job_id, 2)
        made.kill(f"crypto-{silo}")
        made.start_crypto(silo)
        check_result(made, job_id)


def test_a_party_that_stays_away_is_named_at_the_end(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        job_id = made.submit(JOB.format(patience=1))
        rounds_done(made, job_id, 1)
        made.kill("agent-host-1")
        view = made.end(job_id, 60)
        assert view.state == "FAILED"
        assert "host-1" in view.detail
