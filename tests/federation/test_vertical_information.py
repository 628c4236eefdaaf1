"""The information of columns about a label of another party: exact, of no small group, no names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.errors import InvalidJob, PolicyDeclined
from hedgerow.boosting.strategies.secureboost.silo import participate
from tests.federation import vertical
from tests.federation.test_secureboost import run

TABLE, NAMES = "statistics.json", "columns.json"


def informed(whole: Dataset, widths: list[int], **changes: Any) -> tuple[Any, dict[str, Any]]:
    parties = vertical.cut_by_columns(whole, widths)
    booster = {"max_depth": 6} | changes.pop("booster", {})
    job = vertical.job(
        whole.schema.task,
        booster,
        **{"information": True, "rounds": 10, "max_purity": 0.999, **changes},
    )
    outcome, _ = run(job, parties, through_wire=True)
    assert outcome.error is None, outcome.error
    assert not outcome.errors, outcome.errors
    return outcome, json.loads(outcome.kept["guest"].files[TABLE])


def codes_of(whole: Dataset) -> np.ndarray:
    y = whole.labels
    return np.asarray(y >= np.median(y) if whole.schema.task is Task.REGRESSION else y).astype(int)


@pytest.mark.parametrize(
    ("task", "widths", "changes"),
    [
        (Task.BINARY, [2, 3], {}),
        (Task.BINARY, [2, 2, 2], {"encryption": "elgamal"}),
        (Task.REGRESSION, [3, 2], {"encryption": "plain"}),
        (Task.MULTICLASS, [2, 3], {"multi_output": True, "encryption": "plain"}),
        (Task.BINARY, [1, 4], {"encryption": "plain", "missing": 0.2}),
    ],
)
def test_counts_are_those_of_the_joined_rows(
    task: Task, widths: list[int], changes: dict[str, Any]
) -> None:
    whole = vertical.table(300, sum(widths), task, missing=changes.pop("missing", 0.0))
    outcome, told = informed(whole, widths, **changes)
    rows, codes = vertical.by_id(whole), codes_of(vertical.by_id(whole))
    cuts, k = local_cuts(rows, 8), int(codes.max()) + 1
    edges = dict(zip(["guest", *(f"host-{n}" for n in range(1, len(widths)))],
                     np.cumsum([0, *widths]).tolist(), strict=False))  # fmt: skip
    assert [one["rows"] for one in told["label"]["classes"]] == np.bincount(codes).tolist()
    for one in told["columns"]:
        party, _, number = one["name"].partition(": column ")
        if number:
            name = json.loads(outcome.kept[party].files[NAMES])[number]
            assert min(cell["rows"] for cell in one["cells"]) >= 10
        else:
            party, name = "guest", one["name"]
        j = edges[party] + int(name.split("_")[-1])
        x = rows.X[:, j]
        assert one["missing"] == np.isnan(x).sum()
        groups = one["against_label"]["groups"]
        present = [own for own in groups if own["name"] != "missing"]
        found = np.cumsum([list(own["by_class"].values()) for own in present], axis=0)
        below = [np.bincount(codes[x < cut], minlength=k) for cut in cuts.of(j)]
        all_present = np.bincount(codes[~np.isnan(x)], minlength=k)
        for own in found:
            assert any((own == other).all() for other in [*below, all_present])
        assert found[-1].tolist() == all_present.tolist()
        if k == 2:
            shares = np.array([list(own["by_class"].values()) for own in groups], float)
            shares /= shares.sum(axis=0)
            iv = ((shares[:, 1] - shares[:, 0]) * np.log(shares[:, 1] / shares[:, 0])).sum()
            assert one["against_label"]["iv"] == pytest.approx(iv, rel=1e-5)


def test_the_active_party_learns_no_names_and_others_learn_nothing_of_labels() -> None:
    whole = vertical.with_text(vertical.table(400, 5), {3: 5})
    outcome, told = informed(whole, [2, 3], encryption="plain")
    names = {one["name"] for one in told["columns"]}
    assert names == {"guest_0", "guest_1", *(f"host-1: column {k}" for k in (1, 2, 3))}
    assert "host-1_" not in json.dumps(told)
    kept = outcome.kept["host-1"].files
    assert set(kept) == {NAMES}
    assert sorted(json.loads(kept[NAMES]).values()) == [f"host-1_{k}" for k in range(3)]


def test_each_table_gives_counts_as_often_as_its_policy_says() -> None:
    whole = vertical.table(60, 4)
    job = vertical.job(information=True, rounds=10, max_purity=0.999, booster={"max_depth": 6})
    assert job.parameters.safeguards(job).tells_counts
    assert job.parameters.safeguards(job).cell_rows == 10

    def declined() -> None:
        raise PolicyDeclined("policy rule max_explorations: none is left")

    outcome, _ = run(
        job, vertical.cut_by_columns(whole, [2, 2]),
        participate_as=lambda parameters, link, vault, start: participate(
            parameters, link, vault, replace(start, telling=declined)
        ),
    )  # fmt: skip
    assert "none is left" in str(outcome.errors["host-1"])


@pytest.mark.parametrize(("changes", "named"), [
    ({"rounds": 3}, "rounds"), ({"mode": "mix"}, "mode"), ({"validation": 0.2}, "validation"),
    ({"booster": {"max_depth": 2}}, "max_depth"), ({"weight": "w"}, "weight"),
])  # fmt: skip
def test_what_only_trees_have_is_refused(changes: dict[str, Any], named: str) -> None:
    booster = {"max_depth": 6} | changes.pop("booster", {})
    job = vertical.job(
        booster=booster,
        **{"information": True, "rounds": 10, "max_purity": 0.999, "key_bits": 2048, **changes},
    )
    with pytest.raises(InvalidJob, match=named):
        job.parameters.validate(job)
