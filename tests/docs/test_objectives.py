"""The table of objectives by strategy says what jobs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.objectives import OBJECTIVES, STRATEGIES, refusal

PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in PAGE.splitlines()
    if (cells := [cell.strip() for cell in line.strip("|").split("|")])[-1] in ("yes", "–")
}


@pytest.mark.parametrize("task", OBJECTIVES)
def test_the_table_of_objectives_is_what_validation_says(task: str) -> None:
    for objective in OBJECTIVES[task]:
        told, *cells = ROWS[objective]
        assert told == task
        for strategy, cell in zip(STRATEGIES, cells, strict=True):
            said = refusal(strategy, task, objective)
            assert (cell == "–") == bool(said), (strategy, objective, said)
            if said:
                assert objective in said or task in said or "classes" in said


def test_all_objectives_of_the_page_are_asked() -> None:
    assert {*ROWS} == {name for names in OBJECTIVES.values() for name in names}
