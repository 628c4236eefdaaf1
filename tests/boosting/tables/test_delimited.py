"""CSV files of other countries and programs."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow import csv

import hedgerow
from hedgerow.boosting.errors import DataError, DataWarning
from hedgerow.boosting.tables import RECOGNISED, delimited, read_table, stream_csv
from hedgerow.boosting.tables.delimited import Dialect, csv_options
from hedgerow.coordinator.cli import main

ROWS = {"a": [1.5, 2.0], "b": ["x", "y"]}


def read(folder: Path, text: str | bytes, dialect: Dialect = RECOGNISED) -> dict[str, list[object]]:
    path = folder / "t.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    found: dict[str, list[object]] = read_table(str(path), dialect=dialect).to_pydict()
    return found


@pytest.mark.parametrize(
    "text",
    ["a,b\n1.5,x\n2.0,y\n", "a;b\n1,5;x\n2,0;y\n", "a\tb\n1,5\tx\n2,0\ty\n", "a|b\n1.5|x\n2.0|y\n"],
)
def test_delimiter_and_decimal_comma_are_recognised(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ROWS


@pytest.mark.parametrize("mark", ["sep=;\n", "sep=;\r\n", '"sep=;"\r\n', "\ufeffsep=;\n"])
@pytest.mark.parametrize("rows", ["a;b\n1,5;x\n2,0;y\n", '"a";"b"\n1,5;"x"\n2,0;"y"\n'])
def test_the_first_line_that_excel_reads_is_no_header(tmp_path: Path, mark: str, rows: str) -> None:
    assert read(tmp_path, mark + rows) == ROWS
    assert read(tmp_path, "sep=|\na,b|c\n1|2\n") == {"a,b": [1], "c": [2]}


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b"PAR1\x15", "Parquet: name the file"),
        (b"PK\x03\x04", "as files of Excel are"),
        (b"\xd0\xcf\x11\xe0", "save the sheet as CSV"),
        (b"ARROW1\0\0", "Arrow IPC"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, first: bytes, kind: str) -> None:
    with pytest.raises(DataError, match=rf"t\.csv: expected CSV, received .*{kind}"):
        read(tmp_path, first + bytes(50))


@pytest.mark.parametrize("name", ["PAR1", "ARROW1"])
def test_a_column_may_be_called_as_other_files_begin(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, f"{name},b\n1,2\n") == {name: [1], "b": [2]}


def test_what_pyarrow_writes_is_named(tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    for rows in (table, table.slice(0, 0)):
        sink = io.BytesIO()
        pq.write_table(rows, sink)
        with pytest.raises(DataError, match="received Parquet"):
            read(tmp_path, sink.getvalue())


def test_bytes_that_no_encoding_of_ours_has_are_refused(tmp_path: Path) -> None:
    (file := tmp_path / "t.csv").write_bytes("city,label\n大阪,1\n".encode("shift_jis"))
    with pytest.raises(DataError, match=r"t.csv: expected UTF-8, .*received another encoding"):
        read_table(str(file))


@pytest.mark.parametrize("encoding", ["euc_jp", "gb18030", "koi8-r"])
def test_an_encoding_that_passes_for_windows_1252_is_warned_of(
    tmp_path: Path, encoding: str
) -> None:
    city = "Омск" if encoding == "koi8-r" else "大阪"
    (file := tmp_path / "t.csv").write_bytes(f"city,label\n{city},1\n".encode(encoding))
    with pytest.warns(DataWarning, match=r"t.csv: not UTF-8, .*name it .*`iconv") as told:
        read = read_table(str(file)).column("city").to_pylist()
    assert len(told) == 1
    assert read == [city.encode(encoding).decode("cp1252")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("encoding", ["shift_jis", "euc_jp", "koi8-r", "utf-16-le", "utf-8"])
def test_an_encoding_may_be_given(tmp_path: Path, encoding: str) -> None:
    city = "Омск" if encoding == "koi8-r" else "東京"
    data = f"{city};b\n{city};1,5\n".encode(encoding)
    assert read(tmp_path, data, Dialect(encoding=encoding)) == {city: [city], "b": [1.5]}


def test_files_are_read_as_a_block_or_a_command_says_and_not_after(tmp_path: Path) -> None:
    (file := tmp_path / "t.csv").write_bytes("市:x:label\n大阪:1,5:1\n".encode("shift_jis"))
    with hedgerow.csv_files(":", ",", "shift_jis"):
        assert read_table(str(file)).to_pydict() == {"市": ["大阪"], "x": [1.5], "label": [1]}
        words = csv_options()
    assert words == ["--delimiter=:", "--decimal=,", "--encoding=shift_jis"]
    command = ["split", str(file), "--silos=1", "--test=0", f"--out={tmp_path / 'cut'}"]
    done = CliRunner().invoke(main, [*command, *words])
    assert done.exit_code == 0, done.output
    assert read_table(str(tmp_path / "cut/silo-0.parquet")).to_pydict()["市"] == ["大阪"]
    with pytest.raises(DataError, match="received another encoding"):
        read_table(str(file))


def test_blocks_of_several_threads_end_each_their_own(tmp_path: Path) -> None:
    (file := tmp_path / "t.csv").write_bytes("a;b\n東京;1,5\n".encode("shift_jis"))
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(hedgerow.csv_files(":", "", "euc_jp"))
        second.enter_context(hedgerow.csv_files(";", ",", "shift_jis"))
        first.close()  # as another thread's, which began before
        assert read_table(str(file)).to_pydict() == {"a": ["東京"], "b": [1.5]}
    assert csv_options() == []


def test_a_wrong_encoding_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv: expected shift_jis, received another encoding"):
        read(tmp_path, b"a;b\n\xff\xff;1\n", Dialect(encoding="shift_jis"))
    for name in ("nonsense", "hex", "a\0"):
        with pytest.raises(DataError, match="encoding: expected a name such as shift_jis"):
            Dialect(encoding=name)


@pytest.mark.filterwarnings("ignore:.*taken for Windows-1252:UserWarning")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_recognised(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path, "é;b\nzürich;1\n".encode(encoding)) == {"é": ["zürich"], "b": [1]}


def test_quotes_keep_delimiters_and_line_ends(tmp_path: Path) -> None:
    text = '"a;b",c\n"x;\ny",1\n'
    assert read(tmp_path, text) == {"a;b": ["x;\ny"], "c": [1]}


def test_a_dialect_may_be_given(tmp_path: Path) -> None:
    assert read(tmp_path, "a:b\n1,5:x\n2:y\n", Dialect(":", ",")) == ROWS
    text = read(tmp_path, "a;b\n1,5;x\n", Dialect(decimal="."))
    assert text == {"a": ["1,5"], "b": ["x"]}
    with pytest.raises(DataError, match="two different characters"):
        Dialect(",", ",")


def test_one_column_under_another_delimiter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv: one column under a header with another"):
        read(tmp_path, "a;b\n1;x\n", Dialect(","))
    with pytest.raises(DataError, match=r"t\.csv: one column under a header with another"):
        read(tmp_path, "a;b\n1,5;x\n", Dialect(","))


VALUES = (
    "1", "0", "true", "FALSE", "2.5", "1e3", "inf", "2020-01-02", "2020-01-02 03:04:05",
    "2020-01-02T03:04:05.25", "2020-01-02T03:04:05Z", "2020-01-02T03:04:05.25+01:00", "03:04:05",
    "", "NA", '"a ""word"","', '"two\nlines"', "99999999999999999999", "0x10", " 7 ", "12,5",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_types_and_values_are_those_of_the_whole_file(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    kinds = [rng.choice(VALUES, size=rng.integers(1, 4)) for _ in range(8)]
    # Of most columns all but the last rows are of one kind: the first block knows no other.
    rows = [
        ";".join(str(own[0] if k < 150 else rng.choice(own)) for own in kinds) for k in range(160)
    ]
    data = "\n".join([";".join(f"c{k}" for k in range(8)), *rows, ""]).encode()
    whole = csv.read_csv(
        io.BytesIO(data),
        read_options=csv.ReadOptions(block_size=1 << 20),
        parse_options=csv.ParseOptions(delimiter=";", newlines_in_values=True),
        convert_options=csv.ConvertOptions(strings_can_be_null=True),
    )
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 1 << 9)
    found, _ = delimited.read_csv(lambda: io.BytesIO(data), "t.csv", Dialect(";", "."))
    assert found.equals(whole)
    assert found.schema == whole.schema


def test_decimal_commas_are_recognised_when_the_last_row_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 64)
    commas = "a;b\n" + "1,5;x\n" * 40
    assert read(tmp_path, commas)["a"] == [1.5] * 40
    assert read(tmp_path, commas + "no;x\n")["a"] == ["1,5"] * 40 + ["no"]


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (["0", "1,5", "10"], [0.0, 1.5, 10.0]),
        (["1,500", "2,250"], [1.5, 2.25]),
        (["1,000", "500"], ["1,000", "500"]),  # a thousand, as far as one can tell
        (["1,5", "2", "A"], ["1,5", "2", "A"]),
    ],
)
@pytest.mark.parametrize("block_bytes", [16, 4096])
def test_whole_numbers_stand_beside_decimal_commas(
    tmp_path: Path,
    given: list[str],
    right: list[object],
    block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", block_bytes)
    text = "a;b\n" + "".join(f"{each};x\n" for each in given * 9)
    assert read(tmp_path, text)["a"] == right * 9


def test_a_word_in_quotes_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NA is Namibia where it is quoted, as Arrow and R write texts; numbers keep their gaps."""
    table = pa.table({"c": ["NA", "DE", None, "null"], "x": [1, None, 2, 3]})
    csv.write_csv(table, tmp_path / "t.csv")
    assert read_table(str(tmp_path / "t.csv")).equals(table)
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 16)
    rows = 'c,x\n"DE","1.5"\n' + '"NA","NA"\nNA,""\n"",2.5\n' * 9
    found = read(tmp_path, rows)
    assert found["c"] == ["DE"] + ["NA", None, None] * 9
    assert found["x"] == [1.5] + [None, None, 2.5] * 9


def test_identifiers_of_rows_are_texts_as_they_are_written(tmp_path: Path) -> None:
    ids = ["007", "7", "1e5", "1.10", "+49", "10000000000000000001", "true", "2020-01-02"]
    found = read(tmp_path, "_id,x\n" + "".join(f"{each},1\n" for each in ids))
    assert found["_id"] == ids


def test_a_row_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 64)
    assert read(tmp_path, f"a,b\n1,{'x' * 200}\n") == {"a": [1], "b": ["x" * 200]}


@pytest.mark.filterwarnings("ignore:.*taken for Windows-1252:UserWarning")
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_letters_across_blocks_of_reading_are_whole(
    tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_READ_BYTES", 7)
    text = "é,b\n" + "".join(f"zürich{'é' * k},{k}\n" for k in range(50))
    assert read(tmp_path, text.encode(encoding))["é"][49] == "zürich" + "é" * 49


def test_a_file_that_changes_between_two_readings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")

    def begin(schema: pa.Schema) -> Any:
        with path.open("a") as file:
            file.write("3,4\n")
        os.utime(path, ns=(0, 0))
        return lambda batch: None

    with pytest.raises(DataError, match=r"t\.csv has changed while a job read it"):
        stream_csv(str(path), RECOGNISED, begin)


def test_whole_numbers_beside_a_thousand_are_not_read_as_decimals(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("wage;sold\n1,5;12\n2,25;1,000\n")
    with pytest.raises(DataError, match="column 'sold': other columns have decimal commas"):
        read_table(str(path))
    found = read_table(str(path), dialect=Dialect(decimal=","))
    assert found.to_pydict() == {"wage": [1.5, 2.25], "sold": [12.0, 1.0]}
    path.write_text("wage;sold\n1,5;2,500\n2,25;1,000\n")
    assert read_table(str(path)).to_pydict() == {"wage": [1.5, 2.25], "sold": [2.5, 1.0]}


def test_a_column_whose_only_word_is_a_quoted_gap_is_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('land,size,none\n"NA",1,""\n,2,\nNA,3,NA\n')
    found = read_table(str(path))
    assert found.column("land").to_pylist() == ["NA", None, None]
    assert str(found.schema.field("none").type) == "null"
    assert found.column("size").to_pylist() == [1, 2, 3]
