"""Vertical jobs over tables whose values are mostly missing, or mostly 0: the dense job's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine import sparse
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost import party
from hedgerow.boosting.tables import for_job, open_table, to_dataset
from tests.adversary.test_vertical import with_limits
from tests.federation import vertical
from tests.federation.memory import Outcome, run_in_memory

N_ROWS, N_COLUMNS = 320, 24
SECRET = bytes(range(32))


def mostly_one_value(text: bool = False) -> Any:
    """A table of the active party's four columns, one of them dense, and the passive ones' ten."""
    whole = vertical.table(N_ROWS, N_COLUMNS)
    rng = np.random.default_rng(5)
    X = whole.X.copy()
    X[:, 1:] *= rng.random((N_ROWS, N_COLUMNS - 1)) < 0.08
    X[:, 1::2] = np.where(X[:, 1::2] == 0, np.nan, X[:, 1::2])
    X[:, 6] = np.nan  # nothing at all
    features = list(whole.schema.features)
    if text:
        for j in (7, 8):
            X[:, j] = rng.integers(0, 3, N_ROWS)
            X[rng.random(N_ROWS) < 0.9, j] = np.nan if j == 7 else 1
            features[j] = replace(features[j], categories=("a", "b", "c"))
    y = (np.nan_to_num(X)[:, ::3].sum(axis=1) + 0.2 * rng.normal(size=N_ROWS) > 0).astype(float)
    schema = replace(whole.schema, features=tuple(features))
    return replace(whole, schema=schema, features=X, y=y)


def run(job: JobParameters, parties: dict[str, Any], **options: Any) -> Outcome:
    memories = {silo: {"secureboost/secret": SECRET} for silo in parties}
    outcome = run_in_memory(
        job, parties, schema=parties["guest"].schema, vaults=vertical.vaults(), memories=memories,
        **options,
    )  # fmt: skip
    assert outcome.error is None, outcome.error
    assert not outcome.errors, outcome.errors
    return outcome


def test_a_libsvm_file_gives_the_model_of_the_table_with_its_zeros(tmp_path: Path) -> None:
    guest, host = vertical.cut_by_columns(mostly_one_value(), [4, 20]).values()
    X, job = np.nan_to_num(host.X), vertical.job(encryption="plain", rounds=1)
    assert host.ids is not None
    lines = [
        " ".join(["0", *(f"{j + 1}:{x!r}" for j, x in enumerate(row.tolist()) if x), f"# {name}"])
        for row, name in zip(X, host.ids, strict=True)
    ]
    path = tmp_path / "host.svm"
    path.write_text("\n".join(lines))
    names = [f"f{j + 1}" for j in range(20)]
    dense = to_dataset(
        pa.table({"_id": host.ids, **dict(zip(names, X.T, strict=True))}),
        "host", task=Task.BINARY, label="", with_ids=True,
    )  # fmt: skip
    read = for_job(open_table(str(path)), replace(job, features=()), "host-1", party="host-1")
    assert read.stored < 0.1
    found = [
        run(
            job, {"guest": guest, "host-1": table}, participate_as=with_limits(least_bin_rows=1)
        ).kept
        for table in (read, dense)
    ]
    assert found[0] == found[1]


CASES: dict[str, dict[str, Any]] = {
    "elgamal": {"encryption": "elgamal"},
    "paillier, sampled rows": {"sampling": "goss"},
    "in the clear, guarded": {"encryption": "plain", "least_bin_rows": 3},
    "guarded": {"encryption": "elgamal", "least_bin_rows": 3},
    "categories in sets": {"encryption": "elgamal", "categories": "sets", "text": True},
    "rows held back": {"encryption": "plain", "validation": 0.2},
    "columns sampled": {"encryption": "plain", "booster": {"colsample_bynode": 0.5}},
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_that_of_the_same_table_held_dense(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(CASES[case])
    limited = with_limits(least_bin_rows=options.pop("least_bin_rows", 1))
    tables = vertical.cut_by_columns(mostly_one_value(options.pop("text", False)), [4, 10, 10])
    job = vertical.job(**options)
    kept, bins, of = [], [], party.bin_columns

    def noted(*arguments: Any) -> Any:
        bins.append(of(*arguments))
        return bins[-1]

    monkeypatch.setattr(party, "bin_columns", noted)
    for most in (sparse.MOST_LISTED, 0.0):
        monkeypatch.setattr(sparse, "MOST_LISTED", most)
        kept.append(run(job, tables, participate_as=limited).kept)
    kinds = [isinstance(own, sparse.SparseFeatures) for own in bins]
    assert sorted(kinds[:3]) == [False, True, True], "the active party has a dense column"
    assert not any(kinds[3:])
    assert kept[0] == kept[1]
    active, passive = vertical.parts(kept[0])
    assert any(part.nodes for part in passive.values())
    assert {owner for tree in active.trees for owner in tree.owner} >= {0, 1}
