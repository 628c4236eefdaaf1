import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.coordinator.operator.commands.split import split


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("f0,f1,label\n" + "".join(f"{k},{k % 7},{k % 2}\n" for k in range(100)))
    return path


def run(*arguments, code=0):
    result = CliRunner().invoke(split, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_split_writes_silos_and_test_rows(data, tmp_path):
    out = tmp_path / "made" / "here"
    shown = run(data, "--silos", 3, "--test", 0.25, "--seed", 7, "--out", out)
    assert "silo-2.parquet" in shown
    sizes = {p.stem: pq.read_table(p).num_rows for p in out.iterdir()}
    assert sizes == {"silo-0": 25, "silo-1": 25, "silo-2": 25, "test": 25}


def test_split_by_columns_writes_parties(data, tmp_path):
    run(data, "--parties", "guest:label,f0;host:f1", "--test", 0.2, "--out", tmp_path / "o")
    assert sorted(p.stem for p in (tmp_path / "o").iterdir()) == [
        "guest",
        "host",
        "test-guest",
        "test-host",
    ]


def test_a_stratified_split_is_that_of_python(data, tmp_path):
    given = {"silos": 3, "test": 0.2, "seed": 5, "stratify": True}
    told = run(
        data, "--silos", 3, "--test", 0.2, "--seed", 5, "--stratify", "--out", tmp_path / "o"
    )
    assert "silo-2" in told
    pieces = hedgerow.split(data, **given)
    assert list(pieces) == ["silo-0", "silo-1", "silo-2", "test"]
    for name, piece in pieces.items():
        assert piece.equals(pq.read_table(tmp_path / f"o/{name}.parquet"))
    assert not pieces["test"].equals(hedgerow.split(data, **given | {"stratify": False})["test"])


def test_split_lists_its_files_as_json(data, tmp_path):
    told = json.loads(run(data, "--scheme", "column:f1", "--out", tmp_path / "o", "--json"))
    assert [file["key"] for file in told["files"]][:2] == ["0", "1"]
    assert sum(file["rows"] for file in told["files"]) == 100
    assert told["rows_without_key"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--silos", 2, "--parties", "a:f0"], "go without silos"),
        (["--silos", 2, "--stratify", "--scheme", "column:f1"], "follow their own rule"),
        (["--silos", 2, "--scheme", "zigzag"], "no scheme 'zigzag'"),
        (["--silos", 0], "0 is not in the range"),
        ([], "silos: expected a number of at least 1: --silos N"),
    ],
)
def test_bad_use_is_one_line_and_code_2(data, tmp_path, arguments, message):
    assert message in run(data, *arguments, "--out", tmp_path / "o", code=2)


def test_a_missing_file_is_one_line_and_code_2(tmp_path):
    told = run(tmp_path / "none.csv", "--silos", 2, "--out", tmp_path / "o", code=2)
    assert "none.csv: there is no such file" in told
