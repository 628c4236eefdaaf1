"""Names that silos write differently meet, and others do not."""

from __future__ import annotations

import tomllib

import pytest

from hedgerow.boosting.dataset import Feature, Schema, Task, merge
from hedgerow.boosting.errors import SchemaMismatch
from hedgerow.boosting.spelling import renamed, slips, spellings, truths
from hedgerow.boosting.unusual import alike


def schema(*features: Feature) -> Schema:
    return Schema((*features, Feature("age")), "y", Task.REGRESSION, 0)


def test_five_hospitals_columns_meet_in_one_proposal() -> None:
    sex, place = ("f", "m", "x"), Feature("hospital")
    schemas = {
        "a": schema(Feature("sex", sex), place),
        "b": schema(Feature("Sex ", sex), place),
        "c": schema(Feature("geschlecht", ("F", "M", "D", "X")), place),
        "d": schema(Feature("sex", sex), Feature("hosptial")),
        "e": schema(Feature("sex", sex), place),
    }
    with pytest.raises(SchemaMismatch) as raised:
        merge(schemas)
    said = str(raised.value)
    assert "silo b: its column 'Sex ' is 'sex' at silo a" in said
    assert "silo c: its column 'geschlecht' may be 'sex' at silo a, by their values" in said
    assert "silo d: its column 'hosptial' may be 'hospital' at silo a, by their names" in said
    pairs = '{"Sex " = "sex", "geschlecht" = "sex", "hosptial" = "hospital"}'
    assert f"[columns] rename = {pairs} makes these names one" in said


def test_names_that_look_the_same_are_told_by_their_letters() -> None:
    schemas = {"a": schema(Feature("caf\u00e9")), "b": schema(Feature("cafe\u0301"))}
    with pytest.raises(SchemaMismatch) as raised:
        merge(schemas)
    text = str(raised.value).partition("rename = ")[2].removesuffix(" makes these names one")
    assert text.isascii()
    assert tomllib.loads(f"rename = {text}")["rename"] == {"cafe\u0301": "caf\u00e9"}


@pytest.mark.parametrize(
    ("extra", "lacking"),
    [
        ({"income_2019": None}, {"income_2020": None}),  # another year
        ({"x1": None}, {"x2": None}),
        ({"weight": None}, {"height": None}),
        ({"dosage": None}, {"dosages": ("low", "high")}),  # numbers and text
        ({"smoker": ("yes", "no"), "drinker": ("yes", "no")}, {"drugs": ("yes", "no")}),  # which?
        ({"town": ("ulm",)}, {"river": ("ulm",)}),
    ],
)
def test_what_only_looks_alike_is_not_proposed(
    extra: dict[str, tuple[str, ...] | None], lacking: dict[str, tuple[str, ...] | None]
) -> None:
    assert renamed(extra, lacking) == {}


def test_slips_of_categories_are_one_letter_of_a_long_word() -> None:
    names = (
        "Private pay",
        "Privat pay",
        "Prviate pay",
        "Public pay",
        "ward A",
        "ward B",
        "w1",
        "w2",
    )
    assert slips(names) == [["Private pay", "Privat pay"], ["Private pay", "Prviate pay"]]
    assert slips(("Kardiologie", "Cardiologie", "Radiologie")) == [["Kardiologie", "Cardiologie"]]
    told = alike(schema(Feature("cover", ("Private", "Privates", "PRIVATE"))))
    assert len(told) == 2
    assert "differ by case, blanks, underscores or accents only: 'Private', 'PRIVATE'" in told[0]
    assert "differ by a letter only: 'Private', 'Privates'" in told[1]
    assert slips([f"street {'x' * 6}{chr(97 + k % 26)}" for k in range(201)]) == []


def test_numbers_that_are_names_elsewhere_have_a_way_out() -> None:
    with pytest.raises(SchemaMismatch, match=r'\[columns\] categorical = \["ward"\] says so'):
        merge({"a": schema(Feature("ward")), "b": schema(Feature("ward", ("1", "2")))})


def test_letters_that_nobody_sees_make_no_other_name() -> None:
    assert spellings(["a", "a\u200b", "\ufeffa", "b"]) == [["a", "a\u200b", "\ufeffa"]]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("0", "1", "false", "true"), [["0", "false"], ["1", "true"]]),
        (("1", "N", "Yes"), [["1", "Yes"]]),
        (("0", "1"), []),
        (("F", "f", "t"), []),
        (("0", "1", "2", "false", "true"), []),
        ((), []),
    ],
)
def test_truth_that_is_written_in_several_ways_is_told(
    names: tuple[str, ...], told: list[list[str]]
) -> None:
    assert truths(names) == told
    both = merge({
        "a": schema(Feature("smokes", names[:2] or None)),
        "b": schema(Feature("smokes", names[2:] or names[:2] or None)),
    })  # fmt: skip
    assert any("by how truth is written only" in line for line in alike(both)) == bool(told)
