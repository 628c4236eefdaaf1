import json

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
        ("x,y\n1,0.5\n2,7.25\n", "y", "regression", None),
        ("x,y\n1,2\n2,4\n3,4\n", "y", "binary", None),
        ("x,y\n1,a\n2,a\n", "y", "binary", "one class only: nothing can be learnt"),
        (
            "x,y\n1,0\n2,\n3,1\n",
            "y",
            "binary",
            "1 of 3 labels are missing: a job refuses the table",
        ),
    ],
)
def test_the_task_follows_the_label(tmp_path, text, label, task, warning):
    path = tmp_path / "t.csv"
    path.write_text(text)
    found = json.loads(run(path, "--label", label, "--out", tmp_path / "j.toml", "--json"))
    assert found["task"] == task
    assert found["columns"][1]["warnings"] == ([warning] if warning else [])


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
