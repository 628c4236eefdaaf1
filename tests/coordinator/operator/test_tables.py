import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import DataError, DataWarning
from hedgerow.coordinator.operator.tables import (
    cut,
    listed_schemes,
    split_parties,
    split_rows,
    split_test,
    write_pieces,
)


def table(n=1000, seed=0):
    rng = np.random.default_rng(seed)
    site = pa.array(rng.choice(["x", "y", "z"], n, p=[0.2, 0.5, 0.3])).dictionary_encode()
    return pa.table(
        {
            "row": np.arange(n),
            "f0": rng.random(n),
            "_silo": site,
            "label": rng.integers(0, 3, n),
        }
    ).replace_schema_metadata({"licence": "none"})


def rows(pieces, name=None):
    found = [p.table["row"].to_pylist() for p in pieces if name is None or p.name == name]
    return [row for part in found for row in part]


SCHEMES = ["iid", "linear", "square", "label-skew:0.5", "column:_silo"]


@settings(max_examples=40, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    silos=st.integers(1, 3),
    test=st.sampled_from([0.0, 0.25, 0.5]),
    stratify=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_row_is_in_exactly_one_file(scheme, silos, test, stratify, seed):
    whole = table(300)
    stratify = stratify and (test > 0.0 or scheme in SCHEMES[:3])
    pieces = split_rows(whole, silos, scheme, test, seed, stratify=stratify)
    assert sorted(rows(pieces)) == list(range(300))
    assert [p.name for p in pieces][:silos] == [f"silo-{k}" for k in range(silos)]
    assert all(p.table.schema.equals(whole.schema, check_metadata=True) for p in pieces)


def test_test_rows_depend_on_the_seed_alone():
    whole = table()
    reference = rows(split_rows(whole, 2, "iid", 0.25, 7), "test")
    assert len(reference) == 250
    for silos, scheme in [(5, "iid"), (3, "square"), (2, "label-skew:1"), (None, "column:_silo")]:
        assert rows(split_rows(whole, silos, scheme, 0.25, 7), "test") == reference
    parties = {p.name: p for p in split_parties(whole, "a:f0,row;b:label", 0.25, 7)}
    assert parties["test-a"].table["row"].to_pylist() == reference
    assert rows(split_rows(whole, 2, "iid", 0.25, 8), "test") != reference


def test_the_same_seed_gives_the_same_split_and_another_one_another():
    whole = table()
    for scheme in SCHEMES[:4]:
        one, same, other = (split_rows(whole, 3, scheme, 0.2, s) for s in (1, 1, 2))
        assert [p.table for p in one] == [p.table for p in same]
        assert [p.table for p in one] != [p.table for p in other]


@pytest.mark.parametrize(
    ("scheme", "n", "silos", "sizes"),
    [
        ("iid", 1000, 3, [334, 333, 333]),
        ("iid", 11, 4, [3, 3, 3, 2]),
        ("linear", 1000, 4, [100, 200, 300, 400]),
        ("square", 1400, 3, [100, 400, 900]),
    ],
)
def test_sizes_follow_the_scheme(scheme, n, silos, sizes):
    assert [p.table.num_rows for p in split_rows(table(n), silos, scheme, 0.0, 1)] == sizes


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(40, 400),
    shares=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
    silos=st.integers(1, 6),
    scheme=st.sampled_from(SCHEMES[:2]),
    test=st.sampled_from([0.0, 0.1, 0.25]),
    seed=st.integers(0, 99),
)
def test_stratified_parts_have_the_classes_shares(n, shares, silos, scheme, test, seed):
    labels = np.random.default_rng(seed).choice(len(shares), n, p=np.divide(shares, sum(shares)))
    whole = pa.table({"row": np.arange(n), "label": labels})
    pieces = split_rows(whole, silos, scheme, test, seed, stratify=True)
    plain = split_rows(whole, silos, scheme, test, seed)
    assert [p.table.num_rows for p in pieces] == [p.table.num_rows for p in plain]
    counts = np.bincount(labels, minlength=len(shares))
    for piece in pieces:
        own = np.bincount(piece.table["label"].to_numpy(), minlength=len(shares))
        # Two of the test part, and the silo's share of that with two of its own.
        off = np.abs(own - counts * piece.table.num_rows / n)
        assert off.max() < (2.0 if piece.name == "test" or not test else 4.0)


def test_stratified_test_rows_depend_on_the_seed_and_the_labels():
    whole = table()
    reference = rows(split_rows(whole, 2, "iid", 0.25, 7, stratify=True), "test")
    for silos, scheme in [(5, "iid"), (3, "square"), (2, "dirichlet:1"), (None, "column:_silo")]:
        pieces = split_rows(whole, silos, scheme, 0.25, 7, stratify=True)
        assert rows(pieces, "test") == reference
    parties = cut(whole, None, "iid", "a:f0,row;b:label", 0.25, 7, stratify=True)
    assert {p.name: p for p in parties}["test-a"].table["row"].to_pylist() == reference
    other = [p.table for p in split_rows(whole, 2, "iid", 0.25, 8, stratify=True)]
    assert other != [p.table for p in split_rows(whole, 2, "iid", 0.25, 7, stratify=True)]


def test_stratified_parts_have_a_numbers_tenths_and_the_share_of_rows_without_label():
    numbers = np.random.default_rng(0).permutation(500.0 * np.arange(500))
    for part in split_rows(pa.table({"label": numbers}), 5, "iid", 0.0, 1, stratify=True):
        tenths = np.bincount((part.table["label"].to_numpy() // 25_000).astype(int))
        assert tenths.tolist() == [10] * 10
    gaps = pa.table({"label": [None if v < 90_000 else int(v) % 3 for v in numbers]})
    parts = split_rows(gaps, 5, "iid", 0.0, 1, stratify=True)
    assert [p.table["label"].null_count for p in parts] == [36] * 5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"scheme": "column:_silo"}, "silos of column follow their own rule"),
        ({"scheme": "label-skew:1"}, "silos of label-skew follow their own rule"),
        ({"silos": None, "parties": "a:row;b:label"}, "parties follow their own rule"),
        ({"label": "labl"}, "no column 'labl'; did you mean 'label'"),
        ({"parties": "a:row;b:label"}, "they go without silos"),
    ],
)
def test_a_stratified_split_that_could_not_be_one_is_refused(how, message):
    given = {"silos": 2, "scheme": "iid", "parties": None, "test": 0.0, "seed": 0} | how
    with pytest.raises(DataError, match=message):
        cut(table(), **given, stratify=True)


def test_rows_keep_the_tables_order_within_a_silo():
    for piece in split_rows(table(), 3, "iid", 0.2, 1):
        assert rows([piece]) == sorted(rows([piece]))


def test_a_small_alpha_skews_labels_more_than_a_large_one():
    def skew(alpha):
        pieces = split_rows(table(3000), 4, f"label-skew:{alpha}", 0.0, 3)
        shares = [
            np.bincount(p.table["label"].to_numpy(), minlength=3) / max(p.table.num_rows, 1)
            for p in pieces
        ]
        return np.abs(np.array(shares) - 1 / 3).max()

    assert skew(1000) < 0.1 < 0.4 < skew(0.1)


def test_label_skew_of_a_number_goes_by_its_deciles():
    whole = pa.table({"row": np.arange(500), "label": np.random.default_rng(0).normal(size=500)})
    pieces = split_rows(whole, 3, "label-skew:0.2", 0.0, 1)
    assert sorted(rows(pieces)) == list(range(500))
    means = [np.mean(p.table["label"].to_numpy()) for p in pieces]
    assert max(means) - min(means) > 0.3


def test_a_column_gives_a_silo_a_value_the_most_frequent_first():
    pieces = split_rows(table(), None, "column:_silo", 0.1, 1)
    assert [p.key for p in pieces] == ["y", "z", "x", ""]
    for piece in pieces[:3]:
        assert set(piece.table["_silo"].to_pylist()) == {piece.key}


def test_fewer_silos_than_values_share_them_and_rows_without_key_stay_out():
    pieces = split_rows(table(), 2, "column:_silo", 0.0, 1)
    assert [p.key for p in pieces] == ["y", "z, x"]
    keyed = pa.table({"row": [0, 1, 2, 3], "k": [5.0, None, float("nan"), 5.0]})
    with pytest.warns(DataWarning, match="column 'k': 2 of 4 rows have no value, and are in no"):
        assert [rows([p]) for p in split_rows(keyed, None, "column:k", 0.0, 1)] == [[0, 3]]


@pytest.mark.parametrize(
    ("silos", "scheme", "test", "message"),
    [
        (2, "idd", 0.0, "no scheme 'idd'"),
        (2, "iid:3", 0.0, "no scheme 'iid:3'"),
        (None, "iid", 0.0, "silos: expected a number of at least 1"),
        (2, "label-skew:", 0.0, "number above 0"),
        (2, "label-skew:-1", 0.0, "number above 0"),
        (2, "column:_sillo", 0.0, "no column '_sillo'; did you mean '_silo'"),
        (4, "column:_silo", 0.0, "has 3 values, for 4 silos"),
        (2, "iid", 1.0, "at least 0 and below 1"),
        (2, "iid", -0.1, "at least 0 and below 1"),
        (1001, "iid", 0.0, "1000 rows are too few for 1001 silos"),
    ],
)
def test_impossible_splits_are_refused(silos, scheme, test, message):
    with pytest.raises(DataError, match=message):
        split_rows(table(), silos, scheme, test, 0)


def test_parties_get_their_columns_and_the_row_number_as_id():
    pieces = {p.name: p.table for p in split_parties(table(40), "guest:label,f0;host:row", 0.25, 3)}
    assert list(pieces) == ["guest", "host", "test-guest", "test-host"]
    assert pieces["guest"].column_names == ["_id", "label", "f0"]
    assert pieces["host"].column_names == ["_id", "row"]
    for prefix, n in (("", 30), ("test-", 10)):
        host = pieces[f"{prefix}host"]
        assert host.num_rows == n
        assert host["_id"].to_pylist() == host["row"].to_pylist()
        assert pieces[f"{prefix}guest"]["_id"] == host["_id"]


def test_parties_keep_the_tables_own_id_and_may_use_wildcards():
    whole = pa.table(
        {"_id": ["p", "q"], "g__a": [1, 2], "g__b": [3, 4], "h__a": [5, 6], "label": [0, 1]}
    )
    pieces = {p.name: p.table for p in split_parties(whole, "g: label, g__* ; h:h__*", 0.0, 3)}
    assert pieces["g"].column_names == ["_id", "label", "g__a", "g__b"]
    assert pieces["h"].to_pydict() == {"_id": ["p", "q"], "h__a": [5, 6]}


def test_a_star_is_the_features_that_no_party_names_and_never_the_label():
    whole = pa.table({name: [1] for name in ("_note", "label_b", "g1", "out", "g2", "h1", "h2")})
    for parties in ("g:out,g*;h:*", "h:*;g:out,g1,g?"):
        pieces = {p.name: p.table for p in split_parties(whole, parties, 0.0, 3, "out")}
        assert pieces["g"].column_names == ["_id", "out", "g1", "g2"]
        assert pieces["h"].column_names == ["_id", "h1", "h2"]
    with pytest.raises(DataError, match="party 'b' has no columns"):
        split_parties(whole, "a:g1,g2,h*;b:*", 0.0, 3, "out")


@pytest.mark.parametrize(
    ("parties", "message"),
    [
        ("", "parties: expected one at least"),
        ("guest", "PARTY:COLUMN,COLUMN is expected"),
        ("../x:f0", "PARTY:COLUMN,COLUMN is expected"),
        ("a:f0;a:label", "party 'a' is there twice"),
        ("a:f0,labl", "party 'a': there is no column 'labl'; did you mean 'label'"),
        ("a:", "party 'a' has no columns"),
        ("a:f0,label;b:*,label", "label 'label' is with the parties a and b"),
        ("a:*;b:*", "party 'b': '\\*' is what party 'a' has already"),
    ],
)
def test_malformed_parties_are_refused(parties, message):
    with pytest.raises(DataError, match=message):
        split_parties(table(), parties, 0.0, 0)


def test_files_of_an_earlier_larger_split_are_removed_and_others_kept(tmp_path):
    other = tmp_path / "silo-notes.parquet"
    other.write_bytes(b"mine")
    write_pieces(split_rows(table(), 4, "iid", 0.0, 1), tmp_path)
    write_pieces(split_rows(table(), 2, "iid", 0.0, 1), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "silo-0.parquet",
        "silo-1.parquet",
        "silo-notes.parquet",
    ]
    assert pq.read_table(tmp_path / "silo-1.parquet").num_rows == 500


def test_the_rows_split_test_gives_cover_all():
    training, held_out = split_test(10, 0.25, 1)
    assert (len(training), len(held_out)) == (8, 2)
    assert sorted([*training, *held_out]) == list(range(10))


@pytest.mark.parametrize(
    ("text", "schemes"),
    [
        ("column:a,linear_x", ["column:a,linear_x"]),
        ("iid, linear", ["iid", "linear"]),
        ("iid,dirichlet:0.5,column:a,b", ["iid", "dirichlet:0.5", "column:a,b"]),
    ],
)
def test_schemes_are_told_apart_from_commas_in_names(text: str, schemes: list[str]) -> None:
    assert listed_schemes(text) == schemes
