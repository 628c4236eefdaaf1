"""Each kernel in C gives what the Python function beside it gives, to the byte."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine import ranking, sorting, sparse, survival
from hedgerow.boosting.engine.kernels import possible
from hedgerow.boosting.strategies.bagging import Bagging
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.secureboost import candidates, divisions
from hedgerow.crypto.masking import fields
from hedgerow.crypto.native import kernels
from hedgerow.crypto.native.kernels import Kernel, PointerArray, Strided
from tests.adversary.arena import VARIANTS, UrgentLink, Variant, _horizontal, variant
from tests.federation.test_secureboost_directions import Parts

ROOT = Path(kernels.__file__).parents[2]
LIBRARIES = sorted(
    f"{path.parents[1].name}/{path.stem}" for path in ROOT.glob("*/native/*.c")
    if "common.h" in path.read_text()
)  # fmt: skip
EXPONENTIAL = {"lambdas", "logistic", "regression", "softmax"}
"""Of which the last bits are those of an exponential: NumPy's and the C library's differ."""

ROOM = {
    "partition_rows": (4,), "lambdas": (5,), "divide_rows": (2,), "cut_feature": (8, 9, 10),
    "walk_structures": tuple(range(7, 15)),
}  # fmt: skip
"""Which of a kernel's arrays are room to work in, which NumPy has of its own."""

pytestmark = pytest.mark.skipif(
    not all(kernels.functions_of(one) for one in LIBRARIES), reason="no kernel was built"
)


def _each(change: Callable[[Any], Any], given: Any) -> Any:
    if isinstance(given, tuple):
        parts = [_each(change, one) for one in given]
        return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)
    return change(given)


def _copied(one: Any) -> Any:
    if isinstance(one, Strided):
        return Strided(np.array(one.array, copy=True, order="K"))
    if isinstance(one, PointerArray):
        return PointerArray(np.array(one.arrays))
    return np.array(one, copy=True, order="K") if isinstance(one, np.ndarray) else one


def _widened(one: Any, kinds: Iterator[str]) -> Any:
    if not isinstance(_plain(one), np.ndarray):
        return one
    made = np.array(_plain(one), np.dtype(next(kinds)), copy=True, order="K")
    return type(one)(made) if isinstance(one, (Strided, PointerArray)) else made


def _plain(one: Any) -> Any:
    if isinstance(one, PointerArray):
        return np.array(one.arrays)
    return one.array if isinstance(one, Strided) else one


def _arrays(given: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(given, tuple):
        for one in given:
            yield from _arrays(one)
    elif isinstance(_plain(given), np.ndarray):
        yield _plain(given)


def _equal(name: str, one: Any, other: Any) -> bool:
    if name in EXPONENTIAL and one.dtype == np.float32:
        return np.allclose(one, other, rtol=1e-5, atol=1e-7, equal_nan=True)
    return bool(one.tobytes() == other.tobytes())


def _written(name: str, result: Any, arrays: list[Any]) -> tuple[Any, list[Any]]:
    """Return what callers read: the result, and arrays without what is left in a buffer."""
    if name == "radix_sort":
        return None, [arrays[bool(result)]]
    if name == "present_keys":
        arrays[1] = arrays[1][:result]
    if name == "halves":
        _, low, high, starts, _ = arrays
        arrays = [low[: starts[result]], high[:result], starts[: result + 1]]
    return result, [one for k, one in enumerate(arrays) if k not in ROOM.get(name, ())]


class Compared:
    """Calls of kernels, each made of C and of Python; and again with arrays of wider types."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.unequal: list[str] = []

    def call(self, honest: Any, kernel: Kernel, *arguments: Any) -> Any:
        types = [kernels._CODES[one.dtype] for one in _arrays(arguments)]
        for declared in kernels.functions_of(kernel._library)[kernel._name]:
            key = (kernel._library, kernel._name, " ".join(declared.arrays))
            wider = all(
                np.can_cast(old, new) for old, new in zip(types, declared.arrays, strict=True)
            )
            if wider and list(declared.arrays) != types and self.seen[key] < 5:
                kinds = iter(declared.arrays)
                self.compare(
                    honest,
                    kernel,
                    _each(lambda one, kinds=kinds: _widened(one, kinds), arguments),
                )
        return self.compare(honest, kernel, arguments)

    def compare(self, honest: Any, kernel: Kernel, arguments: tuple[Any, ...]) -> Any:
        copies = _each(_copied, arguments)
        result = honest(kernel, *arguments)
        expected = kernel.reference(*_each(_plain, copies))
        types = " ".join(kernels._CODES[one.dtype] for one in _arrays(arguments))
        self.seen[kernel._library, kernel._name, types] += 1
        found, own = _written(kernel._name, result, list(_arrays(arguments)))
        expected, others = _written(kernel._name, expected, list(_arrays(copies)))
        same = all(map(_equal, repeat(kernel._name), own, others))
        # A kernel that may lack memory returns 0 where its twin returns nothing.
        if not same or (expected is not None and found != expected):
            self.unequal.append(f"{kernel._name} {types}")
        return result


def _wide(strategy: Any, **booster: Any) -> Variant:
    """Return a job whose columns have more bins than a byte can number."""
    of = _horizontal(strategy, **booster)
    features = (Feature("age"), Feature("site", tuple(map(str, range(300)))))
    schema = Schema(features, "label", Task.BINARY, 2)
    tables = {}
    for k in range(3):
        rng = np.random.default_rng(k)
        X = np.stack([rng.normal(size=320), rng.permutation(320) % 300], axis=1).astype("f4")
        X[:7, 0] = np.nan
        y = (X[:, 1] % 7 + np.nan_to_num(X[:, 0]) > 3).astype(np.float64)
        tables[f"silo-{k}"] = Dataset(schema, X, y, None)
    return replace(of, tables=tables)


def _jobs() -> Iterator[Variant]:
    yield from map(variant, VARIANTS)
    yield _horizontal(Histogram(rounds=1, multi_output=True, binning="summary"), Task.MULTICLASS)
    yield _wide(Histogram(rounds=1, binning="summary", coarse_bits=5), max_bin=512)
    yield _wide(Histogram(rounds=1, binning="summary", dropout_recovery=False), max_bin=512)
    yield _wide(Bagging(rounds=1), max_bin=512)


def _drawn(seed: int) -> None:
    """Call kernels that small jobs do not call."""
    rng = np.random.default_rng(seed)
    keys = [np.sort(rng.integers(0, 9, n).astype(np.uint32)) for n in rng.integers(0, 12, 2)]
    sorting._count_pairs(*keys)
    crowded = np.where(rng.random(20_000) < 0.02, rng.normal(size=20_000), 1 + seed % 2 / 100)
    crowded[rng.random(20_000) < 0.1 * (seed % 3)] = np.nan
    crowded *= 1 + rng.random(20_000) / 1000
    column = sorting.SortedColumn.of(crowded.astype(np.float32))
    column.count_below(rng.integers(0, 1 << 32, 99))
    n_rows, n_cells, n_nodes, n_values = 20, int(rng.integers(0, 9)), 3, 2
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 5, 9))]).astype(np.int64)
    sparse._sum_cells(
        starts, rng.integers(0, n_rows, starts[-1]).astype(np.int32),
        rng.integers(0, 9, n_cells), rng.integers(-1, n_nodes, n_rows).astype(np.int32),
        rng.integers(-9, 9, (n_rows, n_values)), 1,
        np.zeros((n_nodes, n_cells + 1, n_values), np.int64),
    )  # fmt: skip
    times = np.sort(rng.lognormal(size=(n_rows, 2)), axis=1).astype(np.float32)
    times[:4] = [[0, 1], [1, np.inf], [2, 2], [0, np.inf]]
    for n_weights in (0, n_rows):
        survival.failure_times(
            seed % 3, 0.5 + seed / 16, rng.normal(size=n_rows).astype(np.float32), times,
            rng.random(n_weights).astype(np.float32),
            *map(Strided, np.zeros((2, n_rows), np.float32)),
        )  # fmt: skip
    grades = rng.integers(0, 2 + 2 * (seed % 3 < 2), n_rows)
    ranking.write_gradients(
        seed % 3, 4, np.round(rng.normal(size=n_rows), 1).astype(np.float32),
        np.stack([grades, np.sort(rng.integers(0, 3, n_rows))], axis=1),
        *np.zeros((2, n_rows), np.float32), by_distance=bool(seed % 2),
    )  # fmt: skip
    widths = rng.integers(1, 5, 4)
    offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    missing, chained, mirrored = rng.random((3, 4)) < 0.5
    both = missing & ~chained  # divisions from the right, as DivisionTable.of has them
    mirrored &= both
    sizes = widths - 1 + missing + both * (widths - 1 + mirrored)
    counts = rng.integers(0, 5, (n_nodes, offsets[-1]))
    candidates._merge(
        offsets, np.cumsum(sizes) - sizes, missing, mirrored, chained,
        counts, counts.sum(axis=1) // 4 + rng.integers(0, 9, n_nodes),
        rng.random(sizes.sum()) < 0.7, rng.integers(0, 4, 4), np.zeros(sizes.sum(), np.bool_),
    )  # fmt: skip
    for wide in (2, 4):  # sums that rows can have, and ones that they cannot
        bins = rng.integers(0, 9, (3, int(offsets[-1]), wide))
        bins[0, 0, seed % wide] -= 9 * (seed % 3)
        totals = bins.sum(axis=1) << (45 if seed % 2 else 0)
        totals[seed % 3, 1] -= seed % 5
        possible(PointerArray(bins), totals, offsets, 1 << 20, 1 << 40)
    left = np.array([1, 3, -1, -2, -3, 6, -4, -5], np.int32)  # two trees
    divisions._reach(
        rng.random((n_rows, 3)) < 0.5, np.array([0, 5], np.int32), left,
        rng.integers(0, 3, 8).astype(np.int32), np.zeros((n_rows, 2), np.float32),
    )  # fmt: skip


@cache
def compared() -> Compared:
    """Return what all small jobs, and some draws, have called."""
    found = Compared()
    honest = Kernel.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "__call__", lambda kernel, *given: found.call(honest, kernel, *given))
        for of in _jobs():
            of.run(UrgentLink, "twins")
        parts = Parts(Task.BINARY)
        directions = parts.directions()[:40]
        parts.forest.margins(directions)
        parts.forest.contributions(directions)
        for seed in range(20):
            _drawn(seed)
    return found


def test_kernels_give_what_their_python_functions_give() -> None:
    assert not compared().unequal


def declared() -> set[tuple[str, str, str]]:
    return {
        (library, name, " ".join(one.arrays))
        for library in LIBRARIES
        for name, own in kernels.functions_of(library).items()
        for one in own
    }


def test_every_kernel_and_type_of_array_was_compared() -> None:
    assert declared() - compared().seen.keys() == set()


def test_only_kernels_and_their_parts_have_no_types() -> None:
    found = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    [modules] = [one["module"] for one in found if "disallow_untyped_defs" in one]
    assert modules
    for module in modules:
        tree = ast.parse(
            (ROOT / f"{module.removeprefix('hedgerow.').replace('.', '/')}.py").read_text()
        )
        defined = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
        bare = {each.name: each for each in defined if each.returns is None}
        known = [each for each in bare.values() if "kernel" in map(_decorator, each.decorator_list)]
        assert known, f"{module} has no kernel: its functions have types"
        for each in known:
            called = {n.id for n in ast.walk(each) if isinstance(n, ast.Name)} & bare.keys()
            known += [bare[name] for name in called if bare[name] not in known]
        assert bare.keys() == {each.name for each in known}, module


def _decorator(node: ast.expr) -> str:
    return str(getattr(getattr(node, "func", None), "id", ""))


def _words(n: int = 3, kind: Any = np.uint64) -> np.ndarray[Any, Any]:
    return np.arange(n).astype(kind)


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ((_words(kind=np.int64), _words(), _words()), TypeError),
        ((_words(kind=np.complex64), _words(), _words()), TypeError),
        ((_words(), _words(6)[::2], _words()), ValueError),
    ],
)
def test_arrays_that_a_kernel_does_not_take_are_refused(
    arrays: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises((error, BufferError)):
        fields._add(*arrays, np.uint64(1))
    assert arrays[0].tolist() == _words().tolist()


def test_arrays_of_which_one_differs_are_refused() -> None:
    for other in (_words(2), _words(kind=np.int64), _words(6)[::2]):
        with pytest.raises(ValueError, match="of one type and shape"):
            PointerArray([_words(), other])


def test_a_kernel_writes_to_no_array_that_is_read_only() -> None:
    into = _words()
    into.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        fields._add(into, _words(), _words(), np.uint64(1))
    assert into.tolist() == _words().tolist()


@pytest.mark.process  # cffi asks the linker's own program for a library that it cannot open
def test_without_a_library_the_python_function_runs_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def added() -> tuple[Any, list[int]]:
        into = _words() << np.uint64(62)
        carry = fields._add(into, into.copy(), _words(), np.uint64(1))
        return int(carry), into.tolist()

    expected = added()
    monkeypatch.setattr(kernels, "_ROOT", tmp_path)
    (tmp_path / "crypto/native").mkdir(parents=True)
    try:
        for name, content in {
            "none": b"",
            "so": b"no library",
            "decl": b"u8 nothing(u8 a);",
        }.items():
            if content:
                (tmp_path / f"crypto/native/fields.{name}").write_bytes(content)
            kernels.functions_of.cache_clear()
            assert added() == expected
        assert caplog.text.count("kernels of crypto/fields run as Python: ") == 3
        assert "run as Python: they were not built" in caplog.text
    finally:
        kernels.functions_of.cache_clear()
