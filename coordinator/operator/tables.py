"""One table cut into those of silos (by rows) or of parties (by columns), to simulate a federation.

Which rows are test rows depends on the seed and the number of rows alone (stratified, on the labels
too), so that runs with different silos are scored on the same rows.
"""

from __future__ import annotations

import fnmatch
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, DataWarning
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


def split_test(
    n_rows: int, share: float, seed: int, strata: NDArray[np.int64] | None = None
) -> tuple[Rows, Rows]:
    """Return (training rows, test rows), each rising.

    Parameters
    ----------
    share : float
        Share of test rows, at least 0 and below 1; their number is rounded down.
    strata : ndarray of shape (n_rows,), optional
        Each row's class, of which both parts get their shares.
    """
    if not 0.0 <= share < 1.0:
        raise DataError(f"the share of test rows is at least 0 and below 1, not {share:g}")
    rng = np.random.default_rng([seed, _TEST])
    n_test = int(n_rows * share)
    if strata is None:
        order = rng.permutation(n_rows)
        return np.sort(order[n_test:]), np.sort(order[:n_test])
    training, held_out = _deal(np.arange(n_rows), (n_rows - n_test, n_test), rng, strata)
    return np.sort(training), np.sort(held_out)


def split_rows(
    table: Any,
    silos: int | None,
    scheme: str,
    test: float,
    seed: int,
    label: str = "label",
    *,
    stratify: bool = False,
    group: str = "",
) -> list[Piece]:
    """Return the tables of silos, then that of the test rows if there are any; raises DataError.

    Parameters
    ----------
    table : pyarrow.Table
    silos : int or None
        Number of silos; only the scheme ``column`` does without.
    scheme : str
        ``iid``: shuffled, equal sizes, a remainder to the first. ``linear``, ``square``:
        shuffled, silo k gets a share of k + 1 or its square. ``label-skew:ALPHA``, also called
        ``dirichlet:ALPHA``: of each label the silos get shares drawn from Dirichlet(ALPHA); a
        number with more than 20 values is cut at its 10 deciles first. ``column:NAME``: a value a
        silo, the most frequent first; with fewer silos than values the next value goes to the silo
        with fewest rows.
    label : str
        Column that ``label-skew`` and ``stratify`` look at.
    stratify : bool
        Give the test part, and the silos of ``iid``, ``linear`` and ``square``, each label's share
        (of a number with more than 20 values, each tenth's), to within two rows.
    group : str
        Column whose values are dealt in place of rows: all rows of one go to one part, as those of
        a ranking's query.
    """
    if group:
        return _split_groups(table, silos, scheme, test, seed, group, stratify=stratify)
    kind, _, argument = scheme.partition(":")
    if kind not in ("column", *_SKEWED) and scheme not in _SHARES:
        raise DataError(f"there is no scheme '{scheme}': {SCHEMES}")
    if stratify and scheme not in _SHARES:
        _needs_test(test, f"silos of {kind}")
    strata = _strata(table, label) if stratify else None
    training, held_out = split_test(table.num_rows, test, seed, strata)
    rng = np.random.default_rng([seed, _SILOS])
    keys: list[str] = []
    if kind == "column":
        parts, keys = _by_value(table, argument, training, silos)
    elif kind in _SKEWED:
        parts = _skewed(table, label, training, _count(silos), argument, rng)
    else:
        own = None if strata is None else strata[training]
        parts = _proportional(training, _SHARES[kind](_count(silos)), rng, own)
    pieces = [
        Piece(f"silo-{k}", table.take(np.sort(rows)), keys[k] if keys else "")
        for k, rows in enumerate(parts)
    ]
    if len(held_out):
        pieces.append(Piece("test", table.take(held_out)))
    return pieces


def _split_groups(
    table: Any,
    silos: int | None,
    scheme: str,
    test: float,
    seed: int,
    group: str,
    *,
    stratify: bool,
) -> list[Piece]:
    """Return the pieces of :func:`split_rows` where rows of one value of a column stay together."""
    if stratify or scheme not in _SHARES:
        raise DataError(
            f"rows of one '{group}' stay together: expected scheme {', '.join(_SHARES)}, not "
            f"stratified, received {scheme}{' and stratify' * stratify}"
        )
    codes, values = _codes(table, group)
    if (codes < 0).any():
        raise DataError(f"column '{group}': some rows have no value")
    training, held_out = split_test(len(values), test, seed)
    rng = np.random.default_rng([seed, _SILOS])
    parts = _proportional(training, _SHARES[scheme](_count(silos)), rng, None)
    named = [(f"silo-{k}", part) for k, part in enumerate(parts)]
    named += [("test", held_out)] if len(held_out) else []
    return [Piece(name, table.take(np.flatnonzero(np.isin(codes, part)))) for name, part in named]


def split_parties(
    table: Any,
    parties: str,
    test: float,
    seed: int,
    label: str = "label",
    *,
    stratify: bool = False,
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
    stratify : bool
        Give the test part each label's share.

    Raises
    ------
    DataError
        The text is malformed or names a column that is not there.
    """
    columns = _parse_parties(parties, table.column_names, label)
    if "_id" not in table.column_names:
        table = table.append_column("_id", [np.arange(table.num_rows)])
    if stratify:
        _needs_test(test, "parties")
    strata = _strata(table, label) if stratify else None
    training, held_out = split_test(table.num_rows, test, seed, strata)
    pieces = []
    for prefix, rows in (("", training), ("test-", held_out)):
        if prefix and not len(rows):
            continue
        for party, names in columns.items():
            pieces.append(Piece(prefix + party, table.select(["_id", *names]).take(rows)))
    return pieces


def cut(
    table: Any,
    silos: int | None,
    scheme: str,
    parties: str | None,
    test: float,
    seed: int,
    label: str = "label",
    *,
    stratify: bool = False,
    group: str = "",
) -> list[Piece]:
    """Return the pieces of :func:`split_parties` where ``parties`` are given, else of silos.

    Raises
    ------
    DataError
    """
    if parties is None:
        return split_rows(table, silos, scheme, test, seed, label, stratify=stratify, group=group)
    if group:
        raise DataError("parties are cut by columns: they go without group")
    if silos is not None or scheme != "iid":
        raise DataError("parties are cut by columns: they go without silos and scheme")
    return split_parties(table, parties, test, seed, label, stratify=stratify)


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


SCHEMES = "iid, linear, square, label-skew:ALPHA (or dirichlet:ALPHA) or column:NAME"
"""How rows are dealt to silos, as messages name it."""

_SKEWED = ("label-skew", "dirichlet")

_SHARES: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "iid": lambda n: np.ones(n),
    "linear": lambda n: np.arange(1.0, n + 1.0),
    "square": lambda n: np.arange(1.0, n + 1.0) ** 2,
}


def listed_schemes(text: str) -> list[str]:
    """Return the schemes of a list with commas; the name of a column may have some, too."""
    plain, named = "|".join(_SHARES), "|".join(("column", *_SKEWED))
    found = re.split(rf",(?=\s*(?:(?:{plain})\s*(?:,|$)|(?:{named}):))", text)
    if any(not scheme.strip() or scheme.rstrip().endswith(",") for scheme in found):
        raise DataError(f"scheme: expected {SCHEMES} between commas, received {text!r}")
    return [scheme.strip() for scheme in found]


def _count(silos: int | None) -> int:
    if silos is None or silos < 1:
        raise DataError("silos: expected a number of at least 1: --silos N, in Python silos=N")
    return silos


def _proportional(
    rows: Rows,
    shares: NDArray[np.float64],
    rng: np.random.Generator,
    strata: NDArray[np.int64] | None,
) -> list[Rows]:
    """Deal shuffled rows in whole parts of the shares; what rounding leaves goes to the first."""
    sizes = np.floor(len(rows) * shares / shares.sum() + 1e-9).astype(np.int64)
    sizes[: len(rows) - sizes.sum()] += 1
    if (sizes == 0).any():
        raise DataError(f"{len(rows)} rows are too few for {len(shares)} silos of this scheme")
    if strata is not None:
        return _deal(rows, sizes.tolist(), rng, strata)
    return np.split(rng.permutation(rows), np.cumsum(sizes)[:-1])


def _deal(
    rows: Rows, sizes: Sequence[int], rng: np.random.Generator, strata: NDArray[np.int64]
) -> list[Rows]:
    """Deal rows, shuffled within their class and one class after another, evenly to parts.

    The turns of a part of m rows are at (j + 1/2) / m of the way, as in Webster's apportionment:
    of any stretch of rows each part gets its share, to within two.
    """
    order = rng.permutation(len(rows))
    order = order[np.argsort(strata[order], kind="stable")]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    turns = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    dealt = owners[np.argsort(turns, kind="stable")]
    return [rows[order[dealt == part]] for part in range(len(sizes))]


def _needs_test(test: float, what: str) -> None:
    if not test:
        raise DataError(f"{what} follow their own rule: only a test part could be stratified")


def _strata(table: Any, label: str) -> NDArray[np.int64]:
    """Return each row's class; of a number with more than 20 values, its tenth of the rows."""
    codes, values = _codes(table, label)
    if len(values) > 20 and all(isinstance(value, int | float) for value in values):
        numbers = np.array([*values, np.nan], dtype=np.float64)[codes]
        deciles = np.nanquantile(numbers, np.arange(0.1, 0.95, 0.1))
        codes = np.searchsorted(deciles, numbers)
    return codes


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
    if pa.types.is_float16(column.type):  # Arrow counts none
        column = column.cast(pa.float32())
    if pa.types.is_nested(column.type):
        raise DataError(f"column '{name}' has type {column.type}, whose values are no keys")
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
    if without := int((own < 0).sum()):
        warn(
            f"column '{name}': {without:,} of {len(own):,} rows have no value, and are in no silo",
            DataWarning,
            stacklevel=2,
        )
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
    if not len(training):
        raise DataError("there are no rows to deal to silos")
    codes = _strata(table, label)
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
        raise DataError("parties: expected one at least, received none")
    return columns
