"""What the console's form of a new job makes of the columns that silos tell."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.console.columns import columns_of, with_columns
from hedgerow.services.wire.job_view import SiloView

TEXT = """# a job
name = "first"
label = "old"  # of last year
features = [
  "a",
  "b",
]
min_silos = 3

[booster]
label = 1  # no key of the file itself
"""


def test_label_and_features_are_replaced_and_the_rest_stays() -> None:
    made = with_columns(TEXT, "y", ["x1", "y", 'x"2'])
    assert made == TEXT.replace('"old"  # of last year', '"y"').replace(
        '[\n  "a",\n  "b",\n]', '["x1", "x\\"2"]'
    )
    assert with_columns(made, "", []) == made.replace('features = ["x1", "x\\"2"]\n', "")
    assert tomllib.loads(with_columns("", "y", ["x"])) == {"label": "y", "features": ["x"]}
    assert with_columns("[a]\n", "y", []) == 'label = "y"\n[a]\n'


@given(st.text(st.characters(codec="utf-8"), max_size=9), st.lists(st.text(max_size=9)))
def test_any_names_end_as_they_are_or_are_refused(label: str, names: list[str]) -> None:
    try:
        found = tomllib.loads(with_columns(TEXT, label, names))
    except InvalidJob:
        return
    assert found["label"] == (label or "old")
    assert found.get("features", []) == [name for name in names if name != found["label"]]
    assert found["booster"] == {"label": 1}


@pytest.mark.parametrize("text", ["name = ", 'features = ["a]",\n"b"]\n', 'label = """\na"""\n'])
def test_a_text_that_cannot_be_changed_is_left_to_people(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"not TOML|write them by hand"):
        with_columns(text, "y", ["x"])


def test_columns_of_most_silos_come_first_and_silos_that_tell_none_are_named() -> None:
    silos = [
        SiloView("a", alive=True, columns=("y", "x", "own")),
        SiloView("b", alive=True, columns=("x", "y")),
        SiloView("c", alive=True),
        SiloView("d", alive=False, columns=("gone",)),
    ]
    found = columns_of(silos, 'label = "y"\nfeatures = ["x"]\n')
    assert [(one.name, one.owners) for one in found.columns] == [
        ("y", ("a", "b")), ("x", ("a", "b")), ("own", ("a",))
    ]  # fmt: skip
    assert [(one.label, one.feature) for one in found.columns] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip
    assert (found.silos, found.silent) == (("a", "b"), ("c",))
