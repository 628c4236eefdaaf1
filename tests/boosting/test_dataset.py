import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.dataset import (
    Dataset,
    Feature,
    Schema,
    Task,
    class_weights,
    fits,
    merge,
    recode,
    weighed,
)
from hedgerow.boosting.errors import SchemaMismatch
from hedgerow.boosting.unusual import alike, numbers_in


def schema(*features, task=Task.BINARY, label="label", n_classes=2, classes=()):
    made = tuple(Feature(f) if isinstance(f, str) else Feature(*f) for f in features)
    return Schema(made, label, task, n_classes, classes)


def test_equal_schemas_merge_to_themselves():
    one = schema("age", ("job", ("a", "b")))
    assert merge({"a": one, "b": one}) == one
    assert merge({"a": one}) == one


def test_category_lists_are_united_and_sorted_whoever_is_asked_first():
    one, two = schema(("job", ("z", "b"))), schema(("job", ("a", "z")))
    merged = merge({"a": one, "b": two})
    assert merged.features[0].categories == ("a", "b", "z")
    assert merge({"a": two, "b": one}) == merged


def test_a_column_without_any_value_fits_either_type():
    empty, text, number = schema(("x", ())), schema(("x", ("a",))), schema("x")
    assert merge({"a": empty, "b": text}) == text
    assert merge({"a": empty, "b": number, "c": empty}) == number
    assert merge({"a": empty, "b": empty}).features[0].categories is None


def test_silos_may_have_their_columns_in_any_order():
    one = schema("age", ("job", ("a",)))
    other = schema(("job", ("b",)), "age")
    merged = merge({"a": one, "b": other})
    assert merged == schema("age", ("job", ("a", "b")))
    fits("b", other, merged)
    table = Dataset(other, np.array([[0, 7.5]], np.float32))
    assert recode(table, merged).X.tolist() == [[7.5, 1.0]]


def test_labels_of_one_class_everywhere_are_an_error_and_empty_silos_have_no_kind():
    yes, none = schema("x", classes=("yes",)), schema("x")
    with pytest.raises(SchemaMismatch, match="label 'label': all silos have one class only"):
        merge({"a": yes, "b": yes})
    with pytest.raises(SchemaMismatch, match="silo b: label 'label' has numbers"):
        merge({"a": schema("x", classes=("no", "yes")), "b": none})
    assert merge({"a": schema("x", classes=("no", "yes")), "b": none}, {"b"}).classes


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (schema("age"), "silo b: it has no column 'sex', which silo a has .1 columns against 2."),
        (schema("age", "sex", "zip"), "silo b: its column 'zip' is not a column of silo a"),
        (
            schema("age", ("sex", ("f",))),
            "silo b: column 'sex' has text, that of silo a has numbers",
        ),
        (schema("age", "sex", label="y"), "silo b: its label is 'y', that of silo a is 'label'"),
        (
            schema("age", "sex", task=Task.REGRESSION),
            "silo b: its task is 'regression', that of silo a",
        ),
    ],
)
def test_the_first_difference_is_named_with_the_silo(other, message):
    with pytest.raises(SchemaMismatch, match=message):
        merge({"a": schema("age", "sex"), "b": other, "c": schema("age", "sex")})


def classes_of(*names, n=None):
    return schema(
        "x", task=Task.MULTICLASS, n_classes=len(names) if n is None else n, classes=names
    )


def test_class_lists_are_united_and_numbered_classes_take_the_largest_count():
    merged = merge({"a": classes_of("cat", "emu"), "b": classes_of("dog"), "c": classes_of()})
    assert (merged.classes, merged.n_classes) == (("cat", "dog", "emu"), 3)
    numbered = merge({"a": classes_of(n=3), "b": classes_of(n=5), "c": classes_of(n=0)})
    assert (numbered.classes, numbered.n_classes) == ((), 5)


def test_numbers_where_codes_are_categories_are_refused_with_the_mend():
    numbers = Dataset(schema("x"), np.ones((2, 1), np.float32), np.array([0.0, 1.0]))
    mend = r"; \[columns\] categorical reads whole numbers as text"
    for names, end in ((("1", "2"), mend), (("1", "b"), "")):
        with pytest.raises(SchemaMismatch, match=f"column 'x': expected text{end}$"):
            recode(numbers, schema(("x", names)))


def test_text_and_number_labels_do_not_merge():
    with pytest.raises(
        SchemaMismatch, match="silo b: label 'label' has numbers, that of silo a the classes 'cat'"
    ):
        merge({"a": classes_of("cat"), "b": classes_of(n=2)})


def test_class_numbers_from_one_are_names_until_a_silo_has_class_zero():
    named = {"a": classes_of("1", "3"), "b": classes_of("2", "3"), "c": classes_of(n=0)}
    merged = merge(named)
    assert (merged.classes, merged.n_classes) == (("1", "2", "3"), 3)
    whole = merge({**named, "d": classes_of(n=2)})
    assert (whole.classes, whole.n_classes) == ((), 4)
    X = np.zeros((2, 1), np.float32)
    data = Dataset(named["a"], X, np.array([0.0, 1.0]))
    assert recode(data, merged).labels.tolist() == [0.0, 2.0]
    assert recode(data, whole).labels.tolist() == [1.0, 3.0]
    fits("a", named["a"], whole)
    numbers = Dataset(classes_of(n=4), X, np.array([3.0, 1.0]))
    assert recode(numbers, merged).labels.tolist() == [2.0, 0.0]
    for wrong in (0.0, 4.0):
        with pytest.raises(SchemaMismatch, match="not in the job's class list"):
            recode(Dataset(classes_of(n=5), X, np.array([1.0, wrong])), merged)


@pytest.mark.parametrize("pair", [("-1", "1"), ("false", "true")])
def test_two_classes_of_signs_or_truth_values_agree_with_zero_and_one(pair):
    own, plain = schema("x", classes=pair), schema("x")
    merged = merge({"a": plain, "b": own})
    assert merged.classes == pair
    X, y = np.zeros((2, 1), np.float32), np.array([1.0, 0.0])
    assert recode(Dataset(plain, X, y), merged).labels.tolist() == [1.0, 0.0]
    assert recode(Dataset(own, X, y), plain).labels.tolist() == [1.0, 0.0]
    fits("b", own, plain)
    with pytest.raises(SchemaMismatch, match="a binary job has two"):
        merge({"a": schema("x", classes=("no", "yes")), "b": own})


def test_truth_values_of_a_multiclass_job_stay_until_a_silo_has_numbers():
    truth, none = classes_of("false", "true"), classes_of(n=0)
    merged = merge({"a": truth, "b": none, "c": truth})
    assert (merged.classes, merged.n_classes) == (("false", "true"), 2)
    for others in (classes_of(n=3), classes_of("1", "2")):
        both = merge({"a": truth, "b": others})
        assert (both.classes, both.n_classes) == ((), 3)
    X, y = np.zeros((2, 1), np.float32), np.array([1.0, 0.0])
    assert recode(Dataset(truth, X, y), both).labels.tolist() == [1.0, 0.0]
    named = recode(Dataset(classes_of("1", "2"), X, y), both)
    assert named.labels.tolist() == [2.0, 1.0]
    assert recode(Dataset(classes_of(n=2), X, y), merged).labels.tolist() == [1.0, 0.0]
    fits("a", truth, both)


def test_names_that_differ_by_case_or_blanks_only_are_told():
    told = alike(schema(("sex", ("F", "f ", "m")), "x", classes=("No", "no", "yes")))
    only, mend = "names that differ by case, blanks, underscores or accents only", "write them the"
    assert [one.partition(f"; {mend} ")[0] for one in told] == [
        f"column 'sex': {only}: 'F', 'f '", f"label 'label': {only}: 'No', 'no'"
    ]  # fmt: skip
    assert ["levels" in one for one in told] == [True, False]
    assert alike(schema(("sex", ("f", "m")), classes=("no", "yes"))) == []
    assert alike(schema(("letter", ("か", "が", "и", "й", "ハハ", "パパ")))) == []
    towns = ("Zurich", "Z\u00fcrich", "Zu\u0308rich ", "A+", "A-", "a", "b_1", "B 1", "-1", "1")
    assert alike(schema(("town", towns)))[0].startswith(
        f"column 'town': {only}: 'Zurich', 'Z\u00fcrich', 'Zu\u0308rich '; 'b_1', 'B 1'; "
    )


def test_columns_of_all_silos_that_differ_by_spelling_are_named_with_what_to_rename():
    tables = {
        "a": schema("Age", "blood pressure"),
        "b": schema("age ", "Blood_Pressure"),
        "c": schema("\u00c2ge"),
        "d": schema("Age", "blood pressure", "zip"),
    }
    with pytest.raises(SchemaMismatch) as refused:
        merge(tables)
    told = str(refused.value)
    assert "silo b: its column 'age ' is 'Age' at silo a, its column 'Blood_Pressure' is" in told
    assert (
        "silo c: its column '\u00c2ge' is 'Age' at silo a, it has no column 'blood pressure'"
        in told
    )
    assert "silo d: its column 'zip' is not a column of silo a" in told
    rename = told.partition("rename = {")[2].partition("}")[0]
    assert rename == '"age " = "Age", "Blood_Pressure" = "blood pressure", "\u00c2ge" = "Age"'
    with pytest.raises(SchemaMismatch, match="silo b: its column 'age ' is 'Age' at the job"):
        fits("b", tables["b"], tables["a"])
    with pytest.raises(SchemaMismatch, match="silo a: expected at least one feature column"):
        merge({"a": schema(), "b": schema()})


def test_a_binary_job_has_two_classes_at_most():
    parts = [schema("x", classes=("no", "yes")), schema("x", classes=("maybe",))]
    with pytest.raises(
        SchemaMismatch,
        match="silo b: label 'label' has the classes 'maybe', that of silo a 'no', 'yes'",
    ):
        merge({"a": parts[0], "b": parts[1]})
    assert merge({"a": parts[0], "b": schema("x", classes=("yes",))}).classes == ("no", "yes")


names = st.lists(st.text("abcxyz", min_size=1, max_size=3), unique=True, max_size=6)


@settings(max_examples=40, deadline=None)
@given(lists=st.lists(names, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_recoding_keeps_every_rows_category(lists, seed):
    rng = np.random.default_rng(seed)
    own = [schema(("c", tuple(sorted(cats))), "x") for cats in lists]
    agreed = merge({f"s{k}": one for k, one in enumerate(own)})
    for one in own:
        cats = one.features[0].categories
        codes = rng.integers(-1, len(cats), 20)
        X = np.column_stack([np.where(codes < 0, np.nan, codes), rng.random(20)])
        data = recode(Dataset(one, X.astype(np.float32), np.zeros(20)), agreed)
        assert data.schema == agreed
        assert np.array_equal(data.X[:, 1], X[:, 1].astype(np.float32))
        for code, new in zip(codes, data.X[:, 0], strict=True):
            if code < 0:
                assert np.isnan(new)
            else:
                assert agreed.features[0].categories[int(new)] == cats[code]


def test_an_unknown_category_becomes_missing_and_columns_are_found_by_name():
    mine = schema("x", ("c", ("new", "old")), "extra")
    X = np.array([[1, 0, 9], [2, 1, 9]], np.float32)
    data = recode(Dataset(mine, X), schema(("c", ("a", "old")), "x"))
    assert np.isnan(data.X[0, 0])
    assert data.X[1].tolist() == [1.0, 2.0]
    assert data.X.flags.c_contiguous
    assert data.X.dtype == np.float32


def test_class_labels_are_recoded_by_name():
    mine = classes_of("dog", "emu")
    data = Dataset(mine, np.zeros((3, 1), np.float32), np.array([1.0, 0.0, 1.0]))
    assert recode(data, classes_of("cat", "dog", "emu")).labels.tolist() == [2.0, 1.0, 2.0]
    with pytest.raises(SchemaMismatch, match="class list: 'cat', 'dog'"):
        recode(data, classes_of("cat", "dog"))
    with pytest.raises(SchemaMismatch, match="expected the classes 'cat', 'dog', received numbers"):
        recode(Dataset(classes_of(n=2), data.X, data.y), classes_of("cat", "dog"))
    with pytest.raises(SchemaMismatch, match="not below the job's number of classes, 2"):
        recode(Dataset(classes_of(n=3), data.X, np.array([0.0, 1.0, 2.0])), classes_of(n=2))


def test_recoding_refuses_a_missing_column_and_another_type():
    data = Dataset(schema("x"), np.zeros((1, 1), np.float32))
    with pytest.raises(SchemaMismatch, match="no column 'y'"):
        recode(data, schema("x", "y"))
    with pytest.raises(SchemaMismatch, match="column 'x': expected text"):
        recode(data, schema(("x", ("a",))))


def test_a_late_silo_fits_when_only_its_categories_are_new():
    agreed = schema("x", ("c", ("a", "b")), classes=("no", "yes"))
    fits("late", schema("x", ("c", ("b", "new")), classes=("yes",)), agreed)
    fits("late", schema(("x", ()), ("c", ()), classes=()), agreed)
    for own, message in [
        (schema("x", classes=()), "silo late: it has no column 'c', which the job has"),
        (schema("x", "c"), "silo late: column 'c' has numbers, that of the job has text"),
        (
            schema("x", ("c", ("a",)), classes=("maybe",)),
            "has the classes 'maybe', the job 'no', 'yes'",
        ),
        (schema("x", ("c", ("a",)), n_classes=3), "3 classes, the job has 2"),
    ]:
        with pytest.raises(SchemaMismatch, match=message):
            fits("late", own, agreed)


def test_equal_digests_mean_equal_schemas():
    one = schema("x", ("c", ("a", "b")), task=Task.MULTICLASS, n_classes=2, classes=("n", "y"))
    others = [
        schema("x", ("c", ("b", "a")), task=Task.MULTICLASS, n_classes=2, classes=("n", "y")),
        schema("x", ("c", ("a", "b")), task=Task.MULTICLASS, n_classes=2, classes=("n", "z")),
        schema("x", ("c", ("a", "b")), task=Task.MULTICLASS, n_classes=2),
        schema("x", "c", task=Task.MULTICLASS, n_classes=2, classes=("n", "y")),
        schema("x", ("c", ("a", "b")), n_classes=2, classes=("n", "y")),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 6
    assert one.digest == merge({"a": one, "b": one}).digest


def test_classes_weigh_by_the_names_on_which_silos_agreed():
    agreed = classes_of("cat", "dog", "emu")
    X, y = np.zeros((3, 1), np.float32), np.array([0.0, 2.0, 1.0])
    found = weighed(Dataset(agreed, X, y, np.array([1.0, 2.0, 0.0])), (("cat", 5.0), ("emu", 0.5)))
    assert found.weight.tolist() == [5.0, 1.0, 0.0]
    assert weighed(Dataset(agreed, X, y), (("dog", 3.0),)).weight.tolist() == [1.0, 1.0, 3.0]
    assert weighed(Dataset(agreed, X, y), ()).weight is None
    assert class_weights(classes_of(n=3), (("2", 4.0),)).tolist() == [1.0, 1.0, 4.0]
    with pytest.raises(SchemaMismatch, match=r"'cow' is no class of .*'cat', 'dog'"):
        class_weights(agreed, (("cow", 5.0),))
    assert class_weights(classes_of(n=2), (("01", 4.0),)).tolist() == [1.0, 4.0]
    assert class_weights(classes_of("01", "02"), (("01", 4.0),)).tolist() == [4.0, 1.0]
    with pytest.raises(SchemaMismatch, match="'1' is named twice as a class"):
        class_weights(classes_of(n=2), (("01", 4.0), ("1", 3.0)))


@pytest.mark.parametrize("word", [" " * 100_000 + "x", "1" * 100_000 + "%", "1 " * 50_000 + "x"])
def test_texts_of_a_silo_are_read_in_the_time_of_their_length(word: str) -> None:
    """By their square they would hold the coordinator up for an hour."""
    assert all(len(said) < 300 for said in numbers_in([word, word]))
