"""``check``, ``split`` and ``plan`` of tables of any Arrow types: what is asked, or one line."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hedgerow.coordinator.cli import main

NAMES = ("age", "a b", "=1+1", "ümlaut", "x\ny", "_meta", "label_2", "a" * 300, "0", "'", "a.b")
EXTREMES = {
    "int8": [-128, 127], "uint64": [0, 2**64 - 1], "int64": [-(2**63), 2**63 - 1],
    "float": [0.0, -0.0, 1e-45, 3e38], "double": [1e308, 5e-324, -1.0, 0.1],
    "bool": [True, False], "string": ["", "a", " a", "NA", "é", "x" * 500, "1,5", "2020-01-02"],
}  # fmt: skip


def drawn(kind: Any, n: int, rng: np.random.Generator) -> list[Any]:
    """Return values of a type, some of them missing, few or many different ones."""
    if pa.types.is_null(kind):
        return [None] * n
    if pa.types.is_dictionary(kind):
        return drawn(kind.value_type, n, rng)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [drawn(kind.value_type, int(k), rng) for k in rng.integers(0, 3, n)]
    if pa.types.is_struct(kind):
        return [{"a": value} for value in drawn(pa.int8(), n, rng)]
    if pa.types.is_map(kind):
        return [[("k", 1)] for _ in range(n)]
    if pa.types.is_decimal(kind):
        pool: list[Any] = [decimal.Decimal(int(k)) / 4 for k in rng.integers(-99, 99, 9)]
    elif pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        pool = [b"abcd", b"\x00\xff\x00\xff"]
    elif pa.types.is_temporal(kind):
        wide = 32 if getattr(kind, "bit_width", 64) == 32 else 64
        most = 86_399 if pa.types.is_time(kind) else 10**9 if wide == 64 else 40_000
        numbers = rng.integers(0 if pa.types.is_time(kind) else -most, most, 9)
        if pa.types.is_date64(kind):
            numbers = numbers // 10**5 * 86_400_000
        pool = pa.array(numbers, pa.int64() if wide == 64 else pa.int32()).cast(kind).to_pylist()
        pool = [value for value in pool if not isinstance(value, datetime.timedelta) or value]
    else:
        pool = EXTREMES.get(str(kind), [0, 1, 2, 3])
        if str(kind) in ("large_string", "string_view"):
            pool = EXTREMES["string"]
        if pa.types.is_floating(kind) and rng.random() < 0.2:
            pool = [*pool, float("nan"), float("inf")]
        if rng.random() < 0.3 and pa.types.is_string(kind):
            pool = [f"text {k}" for k in range(n)]
    pool = pool or [None]
    some = [pool[int(k)] for k in rng.integers(0, len(pool), n)]
    return [None if gap else value for gap, value in zip(rng.random(n) < 0.2, some, strict=True)]


KINDS = (
    pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(),
    pa.float64(), pa.decimal128(9, 2), pa.decimal256(40, 2), pa.date32(), pa.date64(),
    pa.time32("s"), pa.time64("ns"), pa.timestamp("us"), pa.timestamp("s", "UTC"),
    pa.duration("ms"), pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary(4),
    pa.list_(pa.int8()), pa.large_list(pa.string()), pa.struct({"a": pa.int8()}),
    pa.map_(pa.string(), pa.int8()), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int16(), pa.int64()),
)  # fmt: skip
LABELS = (pa.int8(), pa.bool_(), pa.string(), pa.float64(), *KINDS)


def table_of(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([0, 1, 2, 7, 60]))
    names = [NAMES[k] for k in rng.permutation(len(NAMES))[: rng.integers(0, 6)]]
    columns = {}
    for name in [*names, "label"]:
        kinds = LABELS if name == "label" else KINDS
        kind = kinds[int(rng.integers(0, len(kinds)))]
        values = drawn(kind, n, rng)
        if pa.types.is_float16(kind):
            values = [None if v is None else np.float16(v) for v in values]
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        made = pa.array(values, plain)
        columns[name] = made.dictionary_encode().cast(kind) if plain != kind else made
    return pa.table(columns)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(120))
def test_any_table_is_read_or_refused_in_one_line(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    path = str(tmp_path / "t.parquet")
    try:
        pq.write_table(table_of(seed), path)
    except pa.ArrowNotImplementedError:
        pytest.skip("Parquet has no such type")
    out, job = str(tmp_path / "out"), str(tmp_path / "job.toml")

    def called(*words: str) -> int:
        done = CliRunner().invoke(main, [*words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        if done.exit_code:
            assert len(done.stderr.strip().splitlines()) <= 2, done.stderr
            assert "internal" not in done.stderr
        return done.exit_code

    called("check", path, "--label", "label", "--out", job)
    called("check", path, "--vertical", "--id", str(rng.choice(["age", "_id", "a b"])))
    schemes = ("iid", "linear", "label-skew:0.5", "column:age", "column:label")
    scheme = ["--scheme", str(rng.choice(schemes)), *(["--stratify"] if rng.random() < 0.4 else [])]
    called("split", path, "--silos", "2", *scheme, "--label", "label", "--out", out)
    called("split", path, "--parties", "a:label;b:*", "--out", out)
    called("plan", job, "--silo", f"a={path}", "--silo", f"b={path}")
