"""One table cut into those of silos (by rows) or of parties (by columns), to simulate a federation.

Which rows are test rows depends on the seed and the number of rows alone, so that runs with
different silos are scored on the same rows.
"""

from __future__ import annotations

import fnmatch
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.job import is_feature
from hedgerow.crypto.durable import write_atomically

Rows = NDArray[np.intp]

_TEST, _SILOS = 0, 1
"""Purposes of the two random streams of a seed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of a split: its stem, its table, and of which key value it is, if of one."""

    name: str
    table: Any
    key: str = ""


def split_test(n_rows: int, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return (training rows, test rows), each rising.

    Parameters
    ----------
    share : float
        Share of test rows, at least 0 and below 1; their number is rounded down.
    """
    if not 0.0 <= share < 1.0:
        raise DataError(f"the share of test rows is at least 0 and below 1, not {share:g}")
    order = np.random.default_rng([seed, _TEST]).permutation(n_rows)
    n_test = int(n_rows * share)
    return np.sort(order[n_test:]), np.sort(order[:n_test])


def split_rows(
    table: Any, silos: int | None, scheme: str, test: float, seed: int, label: str = "label"
) -> list[Piece]:
    """Return the tables of silos, then that of the test rows if there are any.

    Parameters
    ----------
    table : pyarrow.Table
    silos : int or None
        Number of silos; only the scheme ``column`` does without.
    scheme : str
        ``iid``: shuffled, equal sizes, a remainder to the first. ``linear``, ``square``:
        shuffled, silo k gets a share of k + 1 or its square. ``label-skew:ALPHA``: of each label
        the silos get shares drawn from Dirichlet(ALPHA); a number with more than 20 values is
        cut at its 10 deciles first. ``column:NAME``: a value a silo, the most frequent first;
        with fewer silos than values the next value goes to the silo with fewest rows.
    test : float
        Share of test rows.
    seed : int
    label : str
        Column that ``label-skew`` looks at.

    Raises
    ------
    DataError
    """
    training, held_out = split_test(table.num_rows, test, seed)
    rng = np.random.default_rng([seed, _SILOS])
    kind, _, argument = scheme.partition(":")
    keys: list[str] = []
    if kind == "column" and argument:
        parts, keys = _by_value(table, argument, training, silos)
    elif kind == "label-skew":
        parts = _skewed(table, label, training, _count(silos), argument, rng)
    elif scheme in _SHARES:
        parts = _proportional(training, _SHARES[scheme](_count(silos)), rng)
    else:
        raise DataError(
            f"there is no scheme '{scheme}': iid, linear, square, label-skew:ALPHA or column:NAME"
        )
    pieces = [
        Piece(f"silo-{k}", table.take(np.sort(rows)), keys[k] if keys else "")
        for k, rows in enumerate(parts)
    ]
    if len(held_out):
        pieces.append(Piece("test", table.take(held_out)))
    return pieces


def split_parties(
    table: Any, parties: str, test: float, seed: int, label: str = "label"
) -> list[Piece]:
    """Return the tables of the parties, then those of their test rows if there are any.

    Parameters
    ----------
    table : pyarrow.Table
    parties : str
        ``guest:label,f0,f1;host:f2,f3``; a name may have the wildcards ``*`` and ``?``, and
        ``*`` alone is every column that no party names otherwise. Wildcards mean features only:
        a label is with the party that names it, and with no other. Each party gets its columns
        and ``_id``: the table's, else the row number.
    label : str

    Raises
    ------
    DataError
        The text is malformed or names a column that is not there.
    """
    columns = _parse_parties(parties, table.column_names, label)
    if "_id" not in table.column_names:
        table = table.append_column("_id", [np.arange(table.num_rows)])
    training, held_out = split_test(table.num_rows, test, seed)
    pieces = []
    for prefix, rows in (("", training), ("test-", held_out)):
        if prefix and not len(rows):
            continue
        for party, names in columns.items():
            pieces.append(Piece(prefix + party, table.select(["_id", *names]).take(rows)))
    return pieces


def write_pieces(pieces: Sequence[Piece], folder: Path) -> list[Path]:
    """Write each piece to ``folder/<name>.parquet`` and remove silos of an earlier, larger split.

    Raises
    ------
    DataError
        The folder cannot be written.
    """
    import pyarrow.parquet as pq

    paths = []
    for piece in pieces:
        out = io.BytesIO()
        pq.write_table(piece.table, out, compression="zstd")
        path = folder / f"{piece.name}.parquet"
        try:
            write_atomically(path, out.getvalue(), mode=0o644)
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from error
        paths.append(path)
    for stale in folder.glob("silo-*.parquet"):
        if stale not in paths and re.fullmatch(r"silo-\d+\.parquet", stale.name):
            stale.unlink(missing_ok=True)
    return paths


_SHARES: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "iid": lambda n: np.ones(n),
    "linear": lambda n: np.arange(1.0, n + 1.0),
    "square": lambda n: np.arange(1.0, n + 1.0) ** 2,
}


def _count(silos: int | None) -> int:
    if silos is None or silos < 1:
        raise DataError("--silos N is needed, at least 1")
    return silos


def _proportional(rows: Rows, shares: NDArray[np.float64], rng: np.random.Generator) -> list[Rows]:
    """Deal shuffled rows in whole parts of the shares; what rounding leaves goes to the first."""
    sizes = np.floor(len(rows) * shares / shares.sum() + 1e-9).astype(np.int64)
    sizes[: len(rows) - sizes.sum()] += 1
    if (sizes == 0).any():
        raise DataError(f"{len(rows)} rows are too few for {len(shares)} silos of this scheme")
    return np.split(rng.permutation(rows), np.cumsum(sizes)[:-1])


def _codes(table: Any, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a column as codes (-1 for null) into its values, by falling count, then by text."""
    import difflib

    import pyarrow as pa
    import pyarrow.compute as pc

    if name not in table.column_names:
        near = difflib.get_close_matches(name, table.column_names, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise DataError(f"there is no column '{name}'{hint}")
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    counts = [entry.values() for entry in pc.value_counts(column).to_pylist()]
    ranked = sorted((-n, str(value), value) for value, n in counts if value is not None)
    values = [value for _, _, value in ranked]
    codes = pc.index_in(column, value_set=pa.array(values, column.type))
    return np.asarray(pc.fill_null(codes, -1).to_numpy(), dtype=np.int64), values


def _by_value(
    table: Any, name: str, training: Rows, silos: int | None
) -> tuple[list[Rows], list[str]]:
    codes, values = _codes(table, name)
    wanted = len(values) if silos is None else _count(silos)
    if not 0 < wanted <= len(values):
        raise DataError(f"column '{name}' has {len(values)} values, for {wanted} silos")
    parts: list[list[Rows]] = [[] for _ in range(wanted)]
    keys: list[list[str]] = [[] for _ in range(wanted)]
    sizes = [0] * wanted
    own = codes[training]
    for code, value in enumerate(values):
        target = code if code < wanted else sizes.index(min(sizes))
        rows = training[own == code]
        parts[target].append(rows)
        keys[target].append(str(value))
        sizes[target] += len(rows)
    return [np.concatenate(part) for part in parts], [", ".join(key) for key in keys]


def _skewed(
    table: Any, label: str, training: Rows, silos: int, alpha: str, rng: np.random.Generator
) -> list[Rows]:
    try:
        concentration = float(alpha)
    except ValueError:
        concentration = 0.0
    if not 0.0 < concentration < float("inf"):
        raise DataError("label-skew needs a number above 0, such as label-skew:0.5")
    codes, values = _codes(table, label)
    if len(values) > 20 and all(isinstance(value, int | float) for value in values):
        numbers = np.array([*values, np.nan], dtype=np.float64)[codes]
        deciles = np.nanquantile(numbers, np.arange(0.1, 0.95, 0.1))
        codes = np.searchsorted(deciles, numbers)
    parts: list[list[Rows]] = [[] for _ in range(silos)]
    for code in np.unique(codes[training]):
        rows = rng.permutation(training[codes[training] == code])
        shares = rng.dirichlet(np.full(silos, concentration))
        ends = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, ends), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def _parse_parties(text: str, names: Sequence[str], label: str) -> dict[str, list[str]]:
    import difflib

    features = [name for name in names if is_feature(name, label)]
    columns: dict[str, list[str]] = {}
    others = ""
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        party, colon, listed = (part.strip() for part in entry.partition(":"))
        if not colon or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", party):
            raise DataError(f"'{entry}': PARTY:COLUMN,COLUMN is expected, parties set apart by ';'")
        if party in columns:
            raise DataError(f"party '{party}' is there twice")
        found: list[str] = []
        for pattern in filter(None, (part.strip() for part in listed.split(","))):
            if pattern == "*" and pattern not in names:
                if others:
                    raise DataError(f"party '{party}': '*' is what party '{others}' has already")
                others = party
                continue
            matches = [pattern] if pattern in names else fnmatch.filter(features, pattern)
            if not matches:
                near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.5)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise DataError(f"party '{party}': there is no column '{pattern}'{hint}")
            found += [name for name in matches if name not in found and name != "_id"]
        columns[party] = found
    if others:
        named = {name for found in columns.values() for name in found}
        columns[others] += [name for name in features if name not in named]
    for party, found in columns.items():
        if not found:
            raise DataError(f"party '{party}' has no columns")
    for name in names:
        owners = [party for party, found in columns.items() if name in found]
        if len(owners) > 1 and not is_feature(name, label):
            raise DataError(
                f"label '{name}' is with the parties {' and '.join(owners)}, expected one"
            )
    if not columns:
        raise DataError("--parties names no party")
    return columns
