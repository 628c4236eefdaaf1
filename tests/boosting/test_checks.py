"""What files have of a type is read as that type, or refused with the field's name."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import DataError


@dataclass
class Box:
    name: str
    sizes: list[int]
    shares: dict[str, float] = field(default_factory=dict)
    inner: tuple[bool, ...] = ()


GIVEN = {"name": "a", "sizes": [1, 2], "shares": {"x": 1, "y": 0.5}, "inner": [True]}


def test_a_document_becomes_its_dataclass() -> None:
    assert read_as(Box, GIVEN) == Box("a", [1, 2], {"x": 1.0, "y": 0.5}, (True,))
    assert read_as(Box, {"name": "a", "sizes": []}) == Box("a", [])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"name": 3}, "name"),
        ({"sizes": [True]}, "sizes"),
        ({"sizes": [2**63]}, "sizes"),
        ({"sizes": 4}, "sizes"),
        ({"shares": {"x": float("inf")}}, "shares"),
        ({"shares": {"x": "1"}}, "shares"),
        ({"shares": {1: 0.5}}, "shares"),
        ({"inner": [0]}, "inner"),
        ({"other": 1}, "other"),
    ],
)
def test_another_type_is_refused_by_its_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(DataError, match=named):
        read_as(Box, {**GIVEN, **changes})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(DataError, match="sizes"):
        read_as(Box, {"name": "a"})
