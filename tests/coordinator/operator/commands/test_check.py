import datetime
import decimal
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.job import ColumnRules, DatePart
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.coordinator.operator.commands.check import check
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

N = 60


@pytest.fixture
def data(tmp_path):
    days = [f"2024-{1 + k % 12:02}-{1 + k // 12:02}" for k in range(N)]
    columns = {
        "id": [2**24 + 1 + k for k in range(N)],
        "day": days,
        "city": ["rare" if k == 7 else "abc"[k % 3] for k in range(N)],
        "[age]": [f"{k % 9},5" if k % 4 else "" for k in range(N)],
        "same": [1] * N,
        "_note": ["x"] * N,
        "income": ["high" if k % 3 else "low" for k in range(N)],
    }
    rows = "\n".join(";".join(map(str, row)) for row in zip(*columns.values(), strict=True))
    path = tmp_path / "people.csv"
    path.write_text(";".join(columns) + "\n" + rows + "\n")
    return path


def run(*arguments, code=0):
    result = CliRunner().invoke(check, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def run_table(folder, table):
    """Write a Parquet file where the type has a form in it, check it, and read it as the job."""
    path, out = folder / "t.parquet", folder / "j.toml"
    try:
        pq.write_table(table, path)
    except pa.ArrowNotImplementedError:
        pytest.skip("Parquet has no such type")
    found = json.loads(run(path, "--label", "y", "--out", out, "--json"))
    for_job(read_table(str(path)), job_wire.decode(job_file.load(out)), "t.parquet")
    return found


def test_keys_that_repeat_or_have_gaps_are_no_features_and_yes_is_positive(tmp_path):
    rng, job = np.random.default_rng(0), tmp_path / "job.toml"
    account = [None if k % 9 == 0 else 5000.0 + k for k in range(N)]
    table = pa.table(
        {
            "customer_id": rng.integers(0, 2 * N, N),
            "account": pa.array(account, pa.float64()),
            "turnover": pa.array([None if a is None else a * 1e4 + 0.25 for a in account]),
            "row_length": rng.integers(0, 2 * N, N),
            "age": rng.permutation(N) % 41,
            "income": rng.normal(size=N),
            "y": ["no" if k % 3 == 0 else "yes" for k in range(N)],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    found = json.loads(run(tmp_path / "t.parquet", "--label", "y", "--out", job, "--json"))
    use = {column["name"]: column["use"] for column in found["columns"]}
    assert use["customer_id"] == use["account"] == "dropped"
    assert {use[name] for name in ("age", "income", "turnover", "row_length")} == {"number"}
    assert 'positive = "yes"' in job.read_text()  # though "no" is rarer


def test_each_column_is_described_and_what_is_unusual_is_named(data, tmp_path):
    job = tmp_path / "job.toml"
    found = json.loads(run(data, "--label", "income", "--out", job, "--json"))
    assert (found["rows"], found["task"]) == (N, "binary")
    columns = {column["name"]: column for column in found["columns"]}
    assert [w.partition(":")[0] for w in columns["id"]["warnings"]] == [
        "likely an identifier",
        "integers beyond 2^24",
    ]
    assert columns["day"]["use"] == "numbers: year, month, weekday, days_since"
    assert columns["day"]["distinct"] == N
    assert columns["day"]["range"] == "2024-01-01 to 2024-12-05"
    assert columns["city"]["use"] == "4 categories"
    assert columns["city"]["warnings"][0].startswith("1 rare category with fewer than 5 rows")
    assert (columns["[age]"]["gaps"], columns["[age]"]["range"]) == (N // 4, "0.5 to 8.5")
    assert columns["same"]["warnings"] == ["constant: it has one value only"]
    assert columns["_note"]["use"] == "left out, by its name"
    assert columns["income"]["use"] == "label"
    assert columns["income"]["warnings"] == []


def test_the_job_is_one_to_start_from_and_one_that_is_there_is_kept(data, tmp_path):
    job = tmp_path / "job.toml"
    shown = run(data, "--label", "income", "--out", job)
    assert "[age]" in shown
    found = job_wire.decode(job_file.load(job))
    assert (found.task, found.label, found.features) == (Task.BINARY, "income", ())
    assert found.columns == ColumnRules(
        dates=(("day", tuple(DatePart)),), drop=("id", "same"), positive="low"
    )
    made = for_job(read_table(str(data)), found, "people.csv").schema
    assert made.names == ("day_year", "day_month", "day_weekday", "day_days_since", "city", "[age]")
    assert made.classes == ("high", "low")
    found.parameters.validate(found)
    job.write_text("mine")
    assert "is there already: kept" in run(data, "--label", "income", "--out", job)
    assert job.read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "label", "task", "warning"),
    [
        ("x,y\n1,0\n2,1\n", "y", "binary", None),
        ("x,y\n1,0\n2,1\n3,2\n", "y", "multiclass", None),
        ("x,y\n1,1\n2,2\n3,3\n", "y", "multiclass", None),
        ("x,y\n1,2\n2,3\n3,4\n", "y", "regression", None),
        ("x,y\n1,0.5\n2,7.25\n", "y", "regression", None),
        ("x,y\n1,2\n2,4\n3,4\n", "y", "binary", None),
        ("x,y\n1,a\n2,a\n", "y", "binary", "one class only: nothing can be learnt"),
        (
            "x,y\n1,0\n2,\n3,1\n",
            "y",
            "binary",
            "1 of 3 labels are missing: a job leaves these rows out where it has "
            'missing_label = "drop", else it refuses the table',
        ),
    ],
)
def test_the_task_follows_the_label(tmp_path, text, label, task, warning):
    path = tmp_path / "t.csv"
    path.write_text(text)
    found = json.loads(run(path, "--label", label, "--out", tmp_path / "j.toml", "--json"))
    assert found["task"] == task
    assert found["columns"][1]["warnings"] == ([warning] if warning else [])
    dropped = 'missing_label = "drop"' in (tmp_path / "j.toml").read_text()
    assert dropped == ("missing" in (warning or ""))


def test_names_and_free_text_are_left_out_of_the_starting_job(tmp_path):
    path = tmp_path / "films.csv"
    rows = "".join(f"title {k % 1990},{k % 70},{k % 2}\n" for k in range(2000))
    path.write_text("title,year,label\n" + rows)
    out = tmp_path / "j.toml"
    found = json.loads(run(path, "--label", "label", "--out", out, "--json"))
    assert [column["use"] for column in found["columns"]] == ["dropped", "number", "label"]
    assert 'drop = ["title"]' in out.read_text()
    assert '# "title": likely names or free text: 1,990 different texts in 2' in out.read_text()


def test_codes_for_missing_values_are_named_in_the_starting_job(tmp_path):
    path, out = tmp_path / "t.csv", tmp_path / "j.toml"
    path.write_text("age,visits,label\n" + "30,-999,0\n41,2,1\n-1,-999,1\n52,3,0\n" * 9)
    run(path, "--label", "label", "--out", out)
    text = out.read_text()
    assert '# missing = -999   # where it stands for a missing value: -999 in "visits"' in text
    assert '# monotone_constraints = {"age" = 1}' in text
    out.write_text(text.replace("# missing", "missing").replace("# monotone", "monotone"))
    job = job_wire.decode(job_file.load(out))
    assert (job.columns.missing, job.booster.increasing) == (-999.0, ("age",))


def test_numbers_that_are_one_to_the_trees_are_named(tmp_path):
    k = np.arange(300)
    table = {"tiny": (k + 1) * 1e-49, "offset": 1e9 + k / 1000, "x": k / 7, "label": 1e9 + k / 10}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    found = run(tmp_path / "t.parquet", "--label", "label", "--out", tmp_path / "j", "--json")
    columns = {column["name"]: column for column in json.loads(found)["columns"]}
    for name in ("tiny", "offset", "label"):
        assert columns[name]["warnings"][-1].startswith("float32 tells ")
    assert columns["x"]["warnings"] == []


KINDS = (
    pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.decimal128(9, 2), pa.decimal256(40, 2), pa.date32(), pa.date64(), pa.time32("s"),
    pa.time64("ns"), pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.duration("ms"), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.binary(4), pa.list_(pa.int8()),
    pa.struct({"a": pa.int8()}), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()), pa.month_day_nano_interval(),
)  # fmt: skip


def test_what_is_no_date_and_no_utf8_name_is_described(tmp_path: Path) -> None:
    data = tmp_path / os.fsdecode(b"\xff.parquet")
    far = pa.array([2**63 - 1, -(2**63) + 1] * 10, pa.timestamp("us"))
    nowhere = pa.array(range(20), pa.timestamp("ns", tz="+26:99"))
    with data.open("wb") as file:
        pq.write_table(pa.table({"far": far, "nowhere": nowhere, "label": [0, 1] * 10}), file)
    words = [str(data), "--label", "label", "--out", str(tmp_path / "job.toml")]
    done = CliRunner().invoke(check, words)
    assert done.exit_code == 0, done.output
    assert "\\udcff" in (tmp_path / "job.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("gap", [0, 1, N])
def test_columns_of_every_type_are_described(tmp_path, kind, gap):
    """And the starting job reads the table, but for the types that it says it refuses."""
    known = N - gap
    codes = [k % 3 for k in range(known)]
    made = {
        "list": [[k] for k in codes], "struct": [{"a": k} for k in codes],
        "fixed_size_binary": [b"abcd" for k in codes], "null": [None] * known,
        "month_day_nano_interval": [(1, k, 0) for k in codes],
        "bool": [k > 0 for k in codes], "halffloat": np.array(codes, np.float16),
    }  # fmt: skip
    name = str(kind).partition("[")[0].partition("<")[0]
    if name in made:
        own = pa.array(made[name], kind)
    elif name.startswith(("decimal", "dictionary")):
        value = kind.value_type if name == "dictionary" else kind
        own = pa.array([decimal.Decimal(k) for k in codes] if value == kind else codes).cast(value)
        own = own.cast(kind) if value == kind else own.dictionary_encode().cast(kind)
    else:
        wide = getattr(kind, "bit_width", 64) != 32 if pa.types.is_temporal(kind) else True
        own = pa.array(codes, pa.int64() if wide else pa.int32())
        own = own.cast(pa.string() if "string" in name or "binary" in name else kind).cast(kind)
    column = pa.chunked_array([own, pa.nulls(gap, kind)], kind)
    table = {"x": column, "z": [k / 7 for k in range(N)], "y": [k % 2 for k in range(N)]}
    found = run_table(tmp_path, pa.table(table))
    assert [c["name"] for c in found["columns"]] == ["x", "z", "y"]


def test_infinite_values_are_left_out_and_number_codes_are_categories(tmp_path):
    table = pa.table(
        {
            "x": np.where(np.arange(N) % 7, np.arange(N) / 3, np.inf),
            "ward": pa.array(np.arange(N) % 4).dictionary_encode(),
            "y": np.arange(N) % 2,
        }
    )
    found = {one["name"]: one for one in run_table(tmp_path, table)["columns"]}
    assert found["x"]["use"] == "dropped"
    assert found["x"]["warnings"] == [
        "infinite values, or some beyond float32 (3.4e38): a job refuses them"
    ]
    assert found["ward"]["use"] == "4 categories"
    assert "# categorical" not in (tmp_path / "j.toml").read_text()


def test_a_column_that_is_there_twice_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,a,y\n1,2,0\n2,3,1\n")
    said = run(path, "--label", "y", "--out", tmp_path / "j", code=2)
    assert "t.csv: two columns are named 'a'" in said


def test_texts_of_several_lines_are_shown_in_one(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('x,y\n"line\nafter line after line after line",0\nb,1\n')
    assert "line after line after line… (1)" in run(path, "--label", "y", "--out", tmp_path / "j")


@pytest.mark.parametrize(
    ("cells", "warning"),
    [
        (["12", "?", "13", "14.5", "15", "-", "16", "17", "18"], "numbers beside '-', '?'"),
        (["1.234,5", "2.345,5", "99,0"], "numbers such as '1.234,5' are text"),
        (["12 %", "13 %", "14 %"], "numbers such as '12 %' are text"),
        (["a", "b", "1"], ""),
    ],
)
def test_numbers_that_are_read_as_text_are_named(tmp_path, cells, warning):
    path = tmp_path / "t.csv"
    path.write_text("x;y\n" + "".join(f"{cell};{k % 2}\n" for k, cell in enumerate(cells)))
    found = json.loads(run(path, "--label", "y", "--out", tmp_path / "j.toml", "--json"))
    [warnings] = [c["warnings"] for c in found["columns"] if c["name"] == "x"]
    assert [w for w in warnings if w.startswith("numbers")] == [
        w for w in warnings if warning and w.startswith(warning)
    ]
    assert any(w.startswith("numbers") for w in warnings) is bool(warning)


def test_a_label_that_is_not_there_is_one_line(data, tmp_path):
    assert "no label column 'incom'" in run(data, "--label", "incom", code=2)


def test_a_vertical_party_s_table_is_told_how_its_rows_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("cust,age\n007,1\n7,2\n8,3\n8,4\n,5\n9 ,6\n")
    told = json.loads(run(path, "--vertical", "--id", "cust", "--json"))
    assert told["identifiers"] == [
        "3 of 6 rows can be matched by cust",
        "1 rows have no cust, 2 share theirs with another row: a job leaves them out",
        "1 values of cust begin or end with a blank: others' may not",
        'the agent\'s settings need: [data] id = "cust"',
    ]
    assert {c["name"]: c["use"] for c in told["columns"]}["cust"] == "names the rows"
    told = json.loads(run(path, "--vertical", "--label", "age", "--json"))
    assert (
        "no column '_id' that names the rows; every row has a value of its own in age"
        in (told["identifiers"][0])
    )
    assert "Missing option '--label'" in run(path, code=2)
    run(path, "--vertical", "--label", "age", "--out", tmp_path / "j.toml")
    assert not (tmp_path / "j.toml").exists()


def test_a_private_job_has_ranges_by_names_and_blanks_for_what_no_name_tells(tmp_path):
    """No value decides what is written: two tables of the same columns give the same file."""

    def written(folder, k):
        folder.mkdir()
        columns = {
            "ageYears": [20.0 + k] * N, "Hours-per-week": [7 + k] * N, "isMember": [True] * N,
            "income": [1000.0 * k + j for j in range(N)], "ill": [j % 2 for j in range(N)],
            "city": [f"c{j % (2 + k)}" for j in range(N)], "_note": ["x"] * N,
            "parts": [[1]] * N, "born": [datetime.date(2000, 1, 1 + j % (9 + k)) for j in range(N)],
        }  # fmt: skip
        pq.write_table(pa.table(columns), folder / "t.parquet")
        out = folder / "job.toml"
        told = run(folder / "t.parquet", "--label", "ill", "--private", "--out", out)
        assert "[columns.ranges] lacks ageYears, income\n" in told
        assert "[columns.levels] lacks city\n" in told
        return out.read_text()

    text = written(tmp_path / "one", 1)
    assert text == written(tmp_path / "other", 3)
    assert '# dates = {"born" = [' in text
    assert 'drop = ["parts"]' in text
    blanks = {
        '# "ageYears" = [ , ]': '"ageYears" = [0, 99]',
        '# "income" = [ , ]': '"income" = [0, 100_000]',
        '# "city" = [ , ]': '"city" = ["c0", "c1"]',
    }
    for blank, filled in blanks.items():
        assert blank in text
        text = text.replace(blank, filled)
    job = job_wire.decode(job_file.parse(text))
    assert dict(job.columns.ranges) == {
        "Hours-per-week": (0, 168), "isMember": (0, 1), "ageYears": (0, 99), "income": (0, 100_000)
    }  # fmt: skip
    assert job.parameters.epsilon == 1.0


def test_private_and_vertical_are_not_together(tmp_path):
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "t.parquet")
    told = run(tmp_path / "t.parquet", "--private", "--vertical", code=2)
    assert "--private is of horizontal jobs" in told


def _warned(folder, columns, label="y", **options):
    """Return the warnings of each column of a table, and the text of its job."""
    path, out = folder / "t.parquet", folder / "j.toml"
    out.unlink(missing_ok=True)
    pq.write_table(pa.table(columns), path)
    found = json.loads(run(path, "--label", label, "--out", out, "--json", **options))
    return {c["name"]: c["warnings"] for c in found["columns"]}, out.read_text()


@pytest.mark.parametrize(
    ("copy", "is_warned"),
    [
        ([k % 2 for k in range(N)], True),
        (["late" if k % 2 else "ok" for k in range(N)], True),
        (pa.array(["ab"[k % 2] for k in range(N)]).dictionary_encode(), True),
        ([k % 2 * 100 + k * 0.5 for k in range(N)], True),  # each its own, on one side of 100
        ([None if k == 3 else k % 2 for k in range(N)], True),
        ([0 if k == 3 else k % 2 for k in range(N)], False),
        ([k * 0.5 for k in range(N)], False),  # each its own, and in no order
        ([float("nan")] * N, False),
    ],
)
def test_a_column_that_gives_the_label_in_every_row_is_named(tmp_path, copy, is_warned):
    found, _ = _warned(tmp_path, {"copy": copy, "y": [k % 2 for k in range(N)]})
    assert any("gives y in every row" in w for w in found["copy"]) is is_warned


def test_a_label_that_is_no_label_is_named(tmp_path):
    found, _ = _warned(tmp_path, {"x": [k % 7 for k in range(N)], "y": [f"n{k}" for k in range(N)]})
    assert found["y"] == ["likely names or free text: 60 classes in 60 rows"]
    found, _ = _warned(tmp_path, {"x": pa.array([], pa.int64()), "y": pa.array([], pa.int64())})
    assert "the table has no rows: nothing can be learnt" in found["y"]
    found, _ = _warned(tmp_path, {"_x": [1, 2], "y": [0, 1]})
    assert found["y"] == ["no other column can be a feature: a job refuses the table"]


@pytest.mark.parametrize("written", ["{:%d.%m.%Y}", "{:%Y-%m-%d}", "{:%Y/%m/%d}"])
def test_dates_that_each_row_has_once_are_dates_and_no_identifiers(tmp_path, written):
    first = datetime.date(2020, 1, 1)
    days = [written.format(first + datetime.timedelta(days=k)) for k in range(N)]
    found, job = _warned(tmp_path, {"day": days, "y": [k % 2 for k in range(N)]})
    assert found["day"] == []
    assert 'dates = {"day" = ["year"' in job


def test_codes_for_gaps_and_sums_with_a_currency_are_named(tmp_path):
    found, job = _warned(tmp_path, {
        "dose": [-999 if k % 7 == 0 else k % 5 for k in range(N)],
        "price": [f"€ {k % 9}.50" for k in range(N)],
        "cost": [f"1 {k % 9}00 €" for k in range(N)],
        "y": [k % 2 for k in range(N)],
    })  # fmt: skip
    assert "-999 is likely a code for a missing value" in found["dose"][0]
    assert "# missing = -999 " in job
    assert any(w.startswith("numbers such as '€ 0.50' are text") for w in found["price"])
    assert any(w.startswith("numbers such as '1 000 €' are text") for w in found["cost"])


@pytest.mark.parametrize("name", ["Y", "y ", "LABEL"])
def test_a_label_that_is_spelt_otherwise_is_suggested_with_all_names_in_quotes(tmp_path, name):
    pq.write_table(pa.table({"x": [1], name: [0]}), tmp_path / "t.parquet")
    wanted = "label" if name == "LABEL" else "y"
    said = run(tmp_path / "t.parquet", "--label", wanted, code=2)
    assert said == (
        f"Error: t.parquet: there is no label column '{wanted}'; did you mean '{name}'; it has "
        f"'x', '{name}'\n"
    )


@pytest.mark.parametrize(
    ("label", "name", "values", "is_event"),
    [
        ("days", "died", [0, 1], True),
        ("followUpTime", "Event", [False, True], True),
        ("months", "status", [1, 2], True),
        ("price", "status", [1, 2], False),
        ("days", "beds", [0, 1], False),
        ("days", "died", [0, 1, 2], False),
    ],
)
def test_a_column_beside_a_time_that_says_whether_its_end_was_seen_is_no_feature(
    tmp_path, label, name, values, is_event
):
    path, out = tmp_path / "stay.parquet", tmp_path / "job.toml"
    given = [values[k % len(values)] for k in range(N)]
    pq.write_table(
        pa.table({label: [k + 1.5 for k in range(N)], name: given, "age": range(N)}), path
    )
    text = run(path, "--label", label, "--out", out)
    told = f'task = "survival" and [columns] event = "{name}"' in text
    job = job_wire.decode(job_file.load(out))
    dropped = name in job.columns.drop
    assert (told, dropped) == (is_event, is_event)
    assert ("once it is 0 and 1" in text) == (values == [1, 2] and is_event)


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ([-1e300, 1.0, 2.0], "beyond float32 (3.4e38): a job refuses them"),
        (["0.5", "1.25", "-2e-3"], "is a category: store them as numbers"),
        (["1,000", "2,000", "3,500"], "is a category: write them without marks and units"),
        (["Zürich", "ZÃ¼rich", "Bern"], "'ZÃ¼rich' looks like UTF-8 that was read as Latin-1"),
        (["a", "", " "], "40 rows have an empty text, which is a category"),
        (["Zürich", "São Paulo", "Œuvre"], ""),
        ([-3e38, 3e38, 0.0], ""),
    ],
)
def test_cells_that_a_job_takes_otherwise_than_meant_are_named(tmp_path, values, warning):
    table = pa.table({"x": [values[k % 3] for k in range(N)], "y": [k % 2 for k in range(N)]})
    found, _ = run_table(tmp_path, table)["columns"]
    told = "; ".join(found["warnings"])
    assert warning in told
    assert bool(warning) == bool(told)


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        ([1.0, 2.0, None], "binary"),
        ([0.0, 1.0, 2.0, float("nan")], "multiclass"),
        ([0.5, 1.5], "regression"),
        ([1.0, 7.0, 30.0], "regression"),
    ],
)
def test_whole_numbers_are_classes_in_floats_too(tmp_path, labels, task):
    y = [labels[k % len(labels)] for k in range(N)]
    table = pa.table({"x": [float(k) for k in range(N)], "y": y})
    assert run_table(tmp_path, table)["task"] == task


def test_a_column_without_a_name_names_no_rows(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"": range(N), "x\ny": range(N), "y": [k % 2 for k in range(N)]}), path)
    text = run(path, "--label", "y", "--out", tmp_path / "j.toml")
    assert "names the rows" not in text
    assert "\nx\\ny: likely" in text
    date = [datetime.date(2024, 1, 1)] * N
    pq.write_table(pa.table({"x": range(N), "y": date}), path)
    assert "y: numbers or text are read as labels, not this type" in run(
        path, "--label", "y", "--out", tmp_path / "other.toml"
    )


def test_codes_that_lose_their_zeros_in_csv_are_named(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{'0' * (k % 2)}{1200 + k % 7},{k % 9},0.{k},{k % 2}" for k in range(N)]
    path.write_text("zip,n,share,y\n" + "\n".join(rows))
    found = json.loads(run(path, "--label", "y", "--out", tmp_path / "j.toml", "--json"))
    told = {c["name"]: "; ".join(c["warnings"]) for c in found["columns"]}
    assert "30 rows have leading zeros, such as 01201, which are lost" in told["zip"]
    assert not any("zeros" in told[name] for name in ("n", "share", "y"))


def test_long_names_that_begin_alike_are_cut_and_told_apart(tmp_path):
    path, names = tmp_path / "t.parquet", ["answer " * 40 + "one", "answer " * 40 + "two"]
    pq.write_table(pa.table({name: [k % 5 for k in range(N)] for name in [*names, "y"]}), path)
    lines = run(path, "--label", "y", "--out", tmp_path / "j.toml").splitlines()[2:5]
    assert max(map(len, lines)) < 120
    assert len({line[:41] for line in lines}) == 3
