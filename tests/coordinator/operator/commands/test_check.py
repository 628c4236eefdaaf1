import json

import pytest
from click.testing import CliRunner

from hedgerow.boosting.dataset import Task
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
    assert "dates" in columns["day"]["warnings"][0]
    assert columns["city"]["use"] == "4 categories"
    assert columns["city"]["warnings"][0].startswith("1 rare categories with fewer than 5 rows")
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
    assert (found.task, found.label, found.features) == (Task.BINARY, "income", ("city", "[age]"))
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


def test_a_label_that_is_not_there_is_one_line(data, tmp_path):
    assert "no label column 'incom'" in run(data, "--label", "incom", code=2)
