"""CSV files as people have them: delimiter, decimal sign and encoding recognised or given.

Files are read as streams, twice or more: first for what they are known by and how they are written,
then for the rows, under the types that their first block has. Where later rows need other types,
those of all blocks are looked at, and the rows are read again, so that the types are those that
Arrow gives a file that is read whole.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from warnings import warn

from hedgerow.boosting.errors import DataError, DataWarning
from hedgerow.boosting.tables.indexes import ID

Open = Callable[[], io.RawIOBase | io.BufferedIOBase]
"""Opens a file again, from its first byte."""

_DELIMITERS = ",;\t|"
_DECIMAL_COMMA = r"^\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*$"
_WHOLE = r"^\s*[+-]?\d+\s*$"
_THOUSANDS = r"^\s*[+-]?[1-9]\d{0,2},\d{3}\s*$"
_OTHERS = {
    b"PAR1\x15": "Parquet: name the file .parquet",
    b"PK\x03\x04": "a ZIP archive, as files of Excel are: save the sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "a file of Excel: save the sheet as CSV (UTF-8)",
    b"ARROW1\0": "Arrow IPC: write it as Parquet",
}
_CONVERT = (
    "name it (encoding of an agent's [data], --encoding, hedgerow.csv_files) or convert it, as by "
    "`iconv -f ENCODING -t UTF-8 OLD > NEW`"
)
_RECOGNISED = {"utf-8-sig", "utf-16", "cp1252"}
_BLOCK_BYTES = 4 << 20
_LONGEST_ROW_BYTES = 1 << 30
_READ_BYTES = 1 << 20
_UNFIT = re.compile(r"In CSV column #(\d+): ")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written; what is empty is recognised."""

    delimiter: str = ""
    """One character between columns: the commonest of comma, semicolon, tab and bar in the
    header."""
    decimal: str = ""
    """``.`` or ``,``: a comma where columns are divided otherwise and numbers have one."""
    id_column: str = ID
    """A column that is text as it is written, as ``_id`` is."""
    as_text: bool = False
    """Whether all columns are."""
    encoding: str = ""
    """Python's name of it, such as ``shift_jis``."""

    def __post_init__(self) -> None:
        try:
            codecs.getincrementaldecoder(self.encoding or "utf-8")
            "a".encode(self.encoding or "utf-8")  # hex is a codec, and not of texts
        except (LookupError, ValueError):
            raise DataError(
                f"encoding: expected a name such as shift_jis, received {self.encoding!r}"
            ) from None
        if len(self.delimiter.encode()) > 1 or self.decimal not in ("", ".", ","):
            raise DataError("delimiter: expected one character of ASCII; decimal: '.' or ','")
        if self.delimiter and self.delimiter == self.decimal:
            raise DataError("delimiter and decimal: expected two different characters")


_DIALECTS = [Dialect()]
"""Of files of which nothing else says how they are written; the last one counts."""


@contextmanager
def csv_files(delimiter: str = "", decimal: str = "", encoding: str = "") -> Iterator[None]:
    """Say how CSV files are written that are read in this block, by path.

    What is empty is recognised. It is of the whole process, and of those that runs start.

    Parameters
    ----------
    delimiter : str
        One character between columns.
    decimal : str
        ``.`` or ``,``.
    encoding : str
        Python's name of it, such as ``shift_jis``.

    Raises
    ------
    DataError
        There is no such encoding, or a mark is none.
    """
    own = Dialect(delimiter, decimal, encoding=encoding)
    _DIALECTS.append(own)
    try:
        yield
    finally:  # of several threads' blocks another one may be the last
        del _DIALECTS[max(k for k, one in enumerate(_DIALECTS) if one is own)]


def csv_options() -> list[str]:
    """Return the options by which a command reads CSV files as this process does."""
    names = ("delimiter", "decimal", "encoding")
    return [f"--{name}={value}" for name in names if (value := getattr(_DIALECTS[-1], name))]


def read_csv(source: Open, name: str, dialect: Dialect) -> tuple[Any, str]:
    """Return a CSV file as a ``pyarrow.Table``, and the digest of its bytes; see :func:`stream`."""
    import pyarrow as pa

    parts: list[Any] = []
    schema: Any = None

    def begin(found: Any) -> Callable[[Any], None]:
        nonlocal schema
        schema = found
        parts.clear()
        return parts.append

    digest = stream(source, name, dialect, begin)
    return pa.Table.from_batches(parts, schema), digest


def stream(
    source: Open, name: str, dialect: Dialect, begin: Callable[[Any], Callable[[Any], None]]
) -> str:
    """Give the rows of a CSV file to a sink in parts, and return the digest of its bytes.

    Where no encoding is given, UTF-8 is expected, UTF-16 recognised by its mark, and what is
    neither is read as Windows-1252, with a warning: that other codes are of other letters is seen
    by some bytes only.

    Parameters
    ----------
    source : callable
        Opens the file.
    begin : callable
        From a ``pyarrow.Schema`` to what takes a ``pyarrow.RecordBatch``. It is called again, for
        all rows again, where later rows have shown that types are other ones.

    Raises
    ------
    DataError
        Empty, of another kind or encoding, rows of unequal length, or one column whose header has
        another delimiter; or the file changes while it is read.
    """
    usual = _DIALECTS[-1]
    dialect = replace(
        dialect,
        delimiter=dialect.delimiter or usual.delimiter,
        decimal=dialect.decimal or usual.decimal,
        encoding=dialect.encoding or usual.encoding,
    )
    seen = _look(source, name, dialect.encoding)
    if not seen.has_text:
        raise DataError(f"{name}: expected a header, the file is empty")
    header = re.sub(r'"[^"]*"', "", seen.header)
    delimiter = dialect.delimiter or seen.separator or max(_DELIMITERS, key=header.count)
    if delimiter not in header and any(mark in header for mark in _DELIMITERS):
        raise DataError(
            f"{name}: one column under a header with another delimiter than {delimiter!r}; "
            "set delimiter"
        )
    decimal, id_column = dialect.decimal or ".", dialect.id_column
    parser = _Parser(source, name, seen, delimiter, decimal, id_column, dialect.as_text)
    has_commas = parser.give(begin)
    if has_commas and not (dialect.decimal or dialect.as_text) and delimiter != ",":
        if parser.doubtful:
            raise DataError(
                f"{name}: column '{parser.doubtful[0]}': other columns have decimal commas, and "
                "here whole numbers stand beside such as 1,000, which may be a thousand: write "
                "numbers without marks between digits, or set decimal"
            )
        _Parser(source, name, seen, delimiter, ",", dialect.id_column).give(begin)
    return seen.digest


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a file is known by, and how it is written."""

    digest: str
    encoding: str
    header: str
    has_quotes: bool
    has_text: bool
    separator: str
    """What a first line such as ``sep=;``, which Excel reads, says of the others; else empty."""


def _look(source: Open, name: str, given: str) -> _Seen:
    """Read a file once; raises DataError where it is of another kind."""
    digest, has_quotes, has_text = hashlib.sha256(), False, False
    decoder = codecs.getincrementaldecoder("utf-8")()
    encoding, first = "", b""
    with source() as file:
        for block in iter(lambda: file.read(_READ_BYTES), b""):
            if not encoding:
                if kind := next((k for mark, k in _OTHERS.items() if block.startswith(mark)), ""):
                    raise DataError(f"{name}: expected CSV, received {kind}")
                marked = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
                encoding = marked.get(block[:2], "utf-8-sig")
            if encoding == "utf-8-sig":
                try:
                    decoder.decode(block)
                except UnicodeDecodeError:
                    encoding = "cp1252"
            digest.update(block)
            has_quotes = has_quotes or b'"' in block
            has_text = has_text or bool(block.strip())
    if encoding == "utf-8-sig":
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            encoding = "cp1252"
    encoding = given or encoding
    with source() as file, _Utf8(file, encoding or "utf-8-sig", name) as text:
        for block in iter(lambda: text.read(_READ_BYTES), b""):
            first += block
            if first.count(b"\n") > 1:
                break
    if encoding == "cp1252" and not given:
        said = "not UTF-8, and taken for Windows-1252, of Western Europe; if it is another encoding"
        warn(f"{name}: {said}, {_CONVERT}", DataWarning, stacklevel=2)
    has_text = has_text and bool(first.strip() or len(first) >= _READ_BYTES)
    lines = [line.decode() for line in first.split(b"\n", 2)[:2]]
    mark = re.fullmatch(r'"?sep=(.)"?\s*', lines[0].removeprefix("\ufeff"))
    header = lines[-1] if mark else lines[0]
    return _Seen(
        digest.hexdigest(), encoding, header, has_quotes, has_text, mark[1] if mark else ""
    )


class _Utf8(io.RawIOBase):
    """A file in an encoding as a stream of UTF-8, which keeps the digest of what it has read."""

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase, encoding: str, name: str) -> None:
        self._file, self._name = file, name
        self._wanted = "UTF-8, UTF-16 with its mark or Windows-1252"
        self._wanted = self._wanted if encoding in _RECOGNISED else encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._left = b""
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        wanted = _LONGEST_ROW_BYTES if size is None or size < 0 else size
        parts, found = [self._left], len(self._left)
        while found < wanted:
            block = self._file.read(_READ_BYTES) or b""
            self._digest.update(block)
            try:
                text = self._decoder.decode(block, final=not block).encode()
            except UnicodeDecodeError:
                raise DataError(
                    f"{self._name}: expected {self._wanted}, received another encoding: {_CONVERT}"
                ) from None
            parts.append(text)
            found += len(text)
            if not block:
                break
        data = b"".join(parts)
        self._left = data[wanted:]
        return data[:wanted]

    def hexdigest(self) -> str:
        """Return the digest of the whole file."""
        for block in iter(lambda: self._file.read(_READ_BYTES), b""):
            self._digest.update(block)
        return self._digest.hexdigest()


@dataclass
class _Parser:
    """Reads the rows of one file."""

    source: Open
    name: str
    seen: _Seen
    delimiter: str
    decimal: str
    id_column: str = ID
    as_text: bool = False
    block_bytes: int = field(default_factory=lambda: _BLOCK_BYTES)
    doubtful: list[str] = field(default_factory=list)
    """Columns of whole numbers and what may be thousands or have three decimals."""
    _empty: list[int] = field(default_factory=list)
    """Places of columns without any value."""

    def give(self, begin: Callable[[Any], Callable[[Any], None]]) -> bool:
        """Give all rows to a sink; return whether a column of text is one of decimal commas."""
        import pyarrow as pa

        kinds: dict[int, Any] = {}  # by place, where the first block's are not those of all
        if self.as_text:
            kinds = dict.fromkeys(range(len(self._names())), pa.string())
        while True:
            try:
                has_commas = self._try(begin, kinds)
                words = self._words_only()
                if not words:
                    return has_commas
                kinds |= words
            except pa.ArrowInvalid as error:
                unfit = _UNFIT.match(str(error))
                if unfit is not None:
                    kinds = self._wider(kinds, int(unfit[1]))
                elif "straddling" in str(error) and self.block_bytes < _LONGEST_ROW_BYTES:
                    self.block_bytes = _LONGEST_ROW_BYTES
                else:  # the text of the error quotes the row
                    counts = re.search(r"Expected (\d+) columns, got (\d+)", str(error))
                    why = (
                        f": a row has {counts[2]} columns, the header {counts[1]}" if counts else ""
                    )
                    raise DataError(f"{self.name} is not a CSV file{why}") from error
            except pa.ArrowException as error:
                raise DataError(f"{self.name} is not a CSV file") from error

    def _try(self, begin: Callable[[Any], Callable[[Any], None]], kinds: dict[int, Any]) -> bool:
        import pyarrow as pa

        with self.source() as file, _Utf8(file, self.seen.encoding, self.name) as text:
            reader = self._reader(text, kinds)
            take = begin(reader.schema)
            texts = [k for k, field in enumerate(reader.schema) if pa.types.is_string(field.type)]
            self._empty = [k for k, f in enumerate(reader.schema) if pa.types.is_null(f.type)]
            quoted = self._texts(reader.schema.names, quoted=False) if self._quotes(texts) else None
            found: dict[int, set[str]] = {k: set() for k in texts}
            for batch in reader:
                if quoted is not None:
                    batch = _with_words(batch, next(quoted), texts)
                take(batch)
                for k in texts:
                    found[k] |= _written(batch.column(k), found[k])
            if text.hexdigest() != self.seen.digest:
                raise DataError(f"{self.name} has changed while a job read it")
        self.doubtful = [
            reader.schema.names[k] for k, own in found.items() if own == {"whole", "thousand"}
        ]
        return any(
            "other" not in own and ("comma" in own or own == {"thousand"}) for own in found.values()
        )

    def _words_only(self) -> dict[int, Any]:
        """Return text as the type of columns in which all words would mean a gap without quotes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        empty = self._empty if self.seen.has_quotes else []
        found: set[int] = set()
        for batch in self._texts(self._names(), quoted=False) if empty else ():
            found |= {k for k in empty if pc.any(pc.not_equal(batch.column(k), "")).as_py()}
        return dict.fromkeys(sorted(found), pa.string())

    def _quotes(self, texts: list[int]) -> bool:
        """Return whether words in quotes may be among texts that without quotes mean a gap."""
        return self.seen.has_quotes and bool(texts)

    def _reader(self, text: _Utf8, kinds: dict[int, Any], *, quoted: bool = True) -> Any:
        """Return a reader of batches; columns are read by the types at their places.

        Identifiers of rows are texts as they are written, else 007 and 7 would be one row.

        Parameters
        ----------
        quoted : bool
            Whether words in quotes may mean a gap, as those without do.
        """
        import pyarrow as pa
        from pyarrow import csv

        names = self._names() if kinds else []
        return csv.open_csv(
            text,
            read_options=csv.ReadOptions(
                block_size=self.block_bytes, skip_rows=int(bool(self.seen.separator))
            ),
            parse_options=csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=self.seen.has_quotes
            ),
            convert_options=csv.ConvertOptions(
                strings_can_be_null=True,
                quoted_strings_can_be_null=quoted,
                decimal_point=self.decimal,
                column_types={names[place]: kind for place, kind in kinds.items()}
                | {ID: pa.string(), self.id_column: pa.string()},
            ),
        )

    def _names(self) -> list[str]:
        with self.source() as file, _Utf8(file, self.seen.encoding, self.name) as text:
            names: list[str] = self._reader(text, {}).schema.names
            return names

    def _wider(self, kinds: dict[int, Any], unfit: int) -> dict[int, Any]:
        """Return types by place, one wider than before; at first those that all blocks need.

        Parameters
        ----------
        unfit : int
            Place of the column whose type has not been that of all its values.
        """
        import pyarrow as pa

        order = _order()
        if kinds:
            nearest = kinds[unfit]
            return kinds | {unfit: order[order.index(nearest) + 1]}
        names = self._names()
        found = [0] * len(names)
        for batch in self._texts(names):
            for k, column in enumerate(self._guess(batch)):
                # A type that is none of these has no mixture with another but text.
                kind = column.type if column.type in order else pa.string()
                place = order.index(kind)
                found[k] = max(found[k], place)
        twice = {name for name, n in Counter(names).items() if n > 1}  # one type by name for both
        return {
            k: pa.string() if names[k] in twice else order[place] for k, place in enumerate(found)
        }

    def _texts(self, names: list[str], *, quoted: bool = True) -> Iterator[Any]:
        """Yield all rows as texts."""
        import pyarrow as pa

        kinds = dict.fromkeys(range(len(names)), pa.string())
        with self.source() as file, _Utf8(file, self.seen.encoding, self.name) as text:
            yield from self._reader(text, kinds, quoted=quoted)

    def _guess(self, batch: Any) -> Any:
        """Return the schema that Arrow gives texts."""
        from pyarrow import csv

        out = io.BytesIO()
        csv.write_csv(batch, out)
        return csv.read_csv(
            io.BytesIO(out.getvalue()),
            read_options=csv.ReadOptions(block_size=max(out.tell(), 1)),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                strings_can_be_null=True, decimal_point=self.decimal
            ),
        ).schema


def _with_words(batch: Any, words: Any, texts: list[int]) -> Any:
    """Return a batch whose texts have the words in quotes that would mean a gap without, as NA."""
    import pyarrow.compute as pc

    for k in texts:
        own = words.column(k)
        kept = pc.if_else(pc.equal(own, ""), None, own)
        batch = batch.set_column(k, batch.schema.field(k), kept)
    return batch


def _written(column: Any, before: set[str]) -> set[str]:
    """Return how texts are written: with a decimal comma, as whole numbers, or otherwise.

    Such as 1,000 is a thousand where others are whole numbers, as far as one can tell.
    """
    import pyarrow.compute as pc

    known = column.drop_null()
    if "other" in before or not len(known):
        return set()
    ways = {"comma": _DECIMAL_COMMA, "whole": _WHOLE, "thousand": _THOUSANDS}
    has = {way: pc.match_substring_regex(known, each) for way, each in ways.items()}
    has["other"] = pc.invert(pc.or_(has["comma"], has["whole"]))
    has["comma"] = pc.and_not(has["comma"], has["thousand"])
    return {way for way, rows in has.items() if pc.any(rows).as_py()}


def _order() -> list[Any]:
    """Return the types that Arrow tries one after another; texts are of the last but one."""
    import pyarrow as pa

    return [
        pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), pa.timestamp("s"),
        pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"), pa.float64(),
        pa.string(), pa.binary(),
    ]  # fmt: skip
