"""The model of a vertical run as people see it, with the parts that its folder has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart, TreeStructure
from hedgerow.coordinator.operator.report.parties import forest_of_parties
from hedgerow.coordinator.operator.report.runs import RunUnusable, read_runs
from tests.coordinator.operator.report.folders import run_folder
from tests.late import Late

figures: Any = Late("hedgerow.coordinator.operator.report.figures")

TREE = TreeStructure(
    round=0,
    groups=[0],
    left=[1, -1, 3, -1, -1],
    owner=[0, -1, 1, -1, -1],
    feature=[1, 0, 2, 0, 0],
    threshold=[1.5, 0, 0, 0, 0],
    default_left=[True, False, False, False, False],
    value=[[0.0], [-0.25], [0.0], [0.5], [0.75]],
    gain=[30.0, 0, 10.0, 0, 0],
    cover=[9.0, 4.0, 5.0, 2.0, 3.0],
)


def parts(**changes: Any) -> tuple[ActivePart, PassivePart]:
    active = ActivePart(
        party="north", parties=["north", "south"], model="m", objective="binary:logistic",
        model_objective="binary:logistic", task="binary", n_outputs=1, base_margin=0.0,
        features=["age", "job"], categories={"job": ["baker", "smith", "tailor"]},
        label="label", classes=["0", "1"], trees=[TREE],
    )  # fmt: skip
    passive = PassivePart(
        party="south", model="m", features=["dose", "visits"], categories={},
        nodes={"0:2": [3, 1, 7.5, True]}, digest=active.digest, anonymous=[1, 2], n_trees=1,
        n_used=1,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(passive, name, value)
    return active, passive


def vertical_folder(folder: Path, *held: ActivePart | PassivePart, **facts: Any) -> Path:
    run_folder(folder, strategy="secureboost", model="vertical.json", **facts)
    for name in ("model.ubj", "schema.json"):
        (folder / name).unlink()
    for part in held:
        (folder / "silos" / part.party / "part.json").write_bytes(part.dump())
    return folder


def test_with_all_parts_every_division_and_feature_has_its_name(tmp_path: Path) -> None:
    (run,) = read_runs([vertical_folder(tmp_path / "run", *parts())])
    forest = forest_of_parties(run)
    assert forest is not None
    assert [(f.feature, f.gain, f.splits) for f in forest.importance] == [
        ("job", 0.75, 1),
        ("south #2 (visits)", 0.25, 1),
    ]
    assert [line for _, line in forest.drawings[0].lines] == [
        "job is baker, smith: yes", "value -0.25", "job is baker, smith: no",
        "visits < 7.5: yes", "value +0.5", "visits < 7.5: no", "value +0.75",
    ]  # fmt: skip
    assert "numbers, not names" in forest.note


def test_a_set_of_categories_is_named_by_its_own(tmp_path: Path) -> None:
    held = replace(TREE, sets={"0": [0, 2]})
    active, passive = parts(
        features=["dose", "place"], categories={"place": ["hill", "town"]},
        nodes={"0:2": [3, 1, 0.0, True]}, sets={"0:2": [1]},
    )  # fmt: skip
    active.trees = [held]
    (run,) = read_runs([vertical_folder(tmp_path / "run", active, passive)])
    forest = forest_of_parties(run)
    assert forest is not None
    assert [line for _, line in forest.drawings[0].lines] == [
        "job is smith: yes", "value -0.25", "job is smith: no",
        "place is hill: yes", "value +0.5", "place is hill: no", "value +0.75",
    ]  # fmt: skip


def test_what_the_active_party_alone_has_shows_other_parties_numbers_only(tmp_path: Path) -> None:
    active, _ = parts()
    (run,) = read_runs([vertical_folder(tmp_path / "run", active)])
    forest = forest_of_parties(run)
    assert forest is not None
    assert [f.feature for f in forest.importance] == ["job", "south #2"]
    assert (1, "south #2 known to south only: left") in forest.drawings[0].lines


def test_without_the_active_partys_part_there_is_no_tree_to_show(tmp_path: Path) -> None:
    _, passive = parts()
    (run,) = read_runs([vertical_folder(tmp_path / "run", passive)])
    assert forest_of_parties(run) is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"model": "other"}, "is of another model"),
        ({"digest": "0" * 64}, "is of another model"),
        ({"nodes": {}}, "a part of the model is damaged"),
        ({"anonymous": []}, "a part of the model is damaged"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, damage: dict[str, Any], message: str
) -> None:
    (run,) = read_runs([vertical_folder(tmp_path / "run", *parts(**damage))])
    with pytest.raises(RunUnusable, match=message):
        forest_of_parties(run)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"role": "active"}'])
def test_a_file_that_is_no_part_is_named(tmp_path: Path, data: bytes) -> None:
    folder = vertical_folder(tmp_path / "run", *parts())
    (folder / "silos/south/part.json").write_bytes(data)
    (run,) = read_runs([folder])
    with pytest.raises(RunUnusable, match=r"south/part\.json: expected a part of a vertical model"):
        forest_of_parties(run)


def test_parties_bytes_stand_beside_each_partys_own_plan(tmp_path: Path) -> None:
    folder = vertical_folder(tmp_path / "run")
    report = json.loads((folder / "report.json").read_text())
    step = "ExchangeTrees"
    report["plan"]["by_silo"] = {
        "north": {step: {"exchanges": 3, "up": 30, "down": 66}},
        "south": {step: {"exchanges": 3, "up": 11, "down": 66}},
    }
    (folder / "report.json").write_text(json.dumps(report))
    figure = figures.bytes_by_step(read_runs([folder]))
    assert figure is not None
    found = [tuple(cell.value or cell.text for cell in row[1:7]) for row in figure.rows]
    assert found[:2] == [
        ("ExchangeTrees, north", "up", "66", "33", "30", repr(33 / 30)),
        ("ExchangeTrees, north", "down", "120", "60", "66", repr(60 / 66)),
    ]
    assert found[2][:5] == ("ExchangeTrees, south", "up", "66", "33", "11")
