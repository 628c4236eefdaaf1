"""What a table's columns are, what becomes of them in a job, and what is unusual about them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.job import DatePart, is_feature
from hedgerow.boosting.tables.prepared import category, day_of, require
from hedgerow.boosting.tables.values import beyond, float32s, is_number, is_text
from hedgerow.boosting.unusual import (
    LEAST_ROWS,
    NEAR_UNIQUE,
    SHOWN,
    alike,
    free_text,
    numbers_in,
)

RARE_ROWS = 5
"""Rows of a category below which a warning is due: it may identify people."""
_EXACT_BITS = 24
_TOLD_APART = 0.9
"""Share of different numbers that float32 tells apart, below which a warning is due."""
_AMBIGUOUS_DATE = r"^\d{1,2}[/-]\d{1,2}[/-]\d{2,4}( .*)?$"
_FEW = range(3, 51)
"""Different whole numbers of a column that may be codes."""
_MOST_CLASSES = 20
_STAND_INS = (-99, -999, -9999, -99999)
"""Smallest values of a column that are often a code for a missing one."""
_DURATION = (
    r"(.*_)?(time|day|week|month|year|hour|duration|tenure|survival|lifetime|follow_?up|futime|ttf|"
    r"tte|os|pfs|dfs)s?(_.*)?"
)
_EVENT = (
    r"(.*_)?(event|died|dead|death|deceased|fustat|status|observed|censored|censoring|cens|relapsed?|"
    r"recurred|recurrence|churn|churned|failed|failure|arrest|alive|default|defaulted)(_.*)?"
)
"""Names of labels that are times until something, and of columns whether it was seen."""
_KEY = r"(.*_)?(id|key|uuid|guid|number|no|nr|ssn|iban)|(row_)?index|row|unnamed(_\d+)?"
"""Names of columns that name rows, not what they are like."""
_NEGATIVE = r"(no|n|f|false|neg|negative|none|never|absent|absence|not?_.*|non_.*)"
"""Words of a class that says that something is not so."""
_PADDED = r"^\s*[+-]?0\d"
_PARTS = tuple(part.value for part in DatePart)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column of a table."""

    name: str
    type: str
    gaps: int
    distinct: int
    """``gaps`` and ``distinct``: rows without a value, and different values of the others."""
    range: str
    """Smallest and largest number, or the commonest values with their rows."""
    use: str
    """What a job makes of it."""
    rule: str
    """The key of ``[columns]`` of the suggested job that has it: ``dates``, ``drop`` or none."""
    warnings: list[str] = field(default_factory=list)


def facts_of(
    table: Any, label: str, id_column: str = "", where: str = "the table"
) -> tuple[list[ColumnFacts], Task]:
    """Return what is known of each column, and the task that suits the label.

    Parameters
    ----------
    table : pyarrow.Table
    label : str
        Empty for a party without labels.
    id_column : str
        The column that names the rows of a vertical party.
    where : str
        The table's name in messages.

    Raises
    ------
    DataError
        There is no such label.
    """
    import pyarrow as pa

    if label:
        try:
            require(label, table.column_names, where, "label column")
        except DataError as error:  # the table is of who asks: its other columns are no secret
            raise DataError(
                f"{str(error).rstrip('?')}; it has {str(table.column_names)[1:-1]}"
            ) from None
    kinds = {field.name: field.type for field in table.schema}
    if label and pa.types.is_nested(kinds[label]):
        raise DataError(f"label column '{label}' has type {kinds[label]}: numbers or text are read")
    columns = [_facts(table.column(name), name, label) for name in table.column_names]
    columns = [
        replace(c, use="names the rows", rule="", warnings=[])
        if id_column and c.name == id_column
        else c
        for c in columns
    ]
    if not label:
        return columns, Task.REGRESSION
    facts = next(c for c in columns if c.name == label)
    features = [c for c in columns if is_feature(c.name, label) and c.rule != "drop"]
    if not features:
        facts.warnings.append("no other column can be a feature: a job refuses the table")
    task = _task(table.column(label), facts)
    if re.fullmatch(_DURATION, _words(label)) and is_number(_plain(table.column(label)).type):
        columns = [_event(c, label) for c in columns]
        features = [c for c in features if c in columns]
    for c in features if task.of_classes else ():
        if _tells(table, c.name, label):
            c.warnings.append(
                f"it gives {label} in every row: drop it unless it is known before {label} is"
            )
    return columns, task


def warn_of_codes(columns: list[ColumnFacts], texts: Any) -> None:
    """Add a warning to columns of numbers that a CSV file writes with leading zeros.

    Parameters
    ----------
    texts : pyarrow.Table
        The file's columns as they are written.
    """
    import pyarrow.compute as pc

    for c in columns:
        if c.type in ("int64", "double") and c.use != "names the rows":
            written = texts.column(c.name).drop_null()
            padded = written.filter(pc.match_substring_regex(written, _PADDED))
            if len(padded):
                word = padded[0].as_py().strip()
                c.warnings.append(
                    f"{len(padded):,} rows have leading zeros, such as {word}, which are lost: a "
                    "CSV file has no types. Of codes write the table as Parquet, with text"
                )


def _event(facts: ColumnFacts, label: str) -> ColumnFacts:
    """Return a column that says whether the end of a time was seen as one that is left out."""
    if facts.distinct != 2 or facts.rule or not re.fullmatch(_EVENT, _words(facts.name)):
        return facts
    coded = "" if facts.range == "0 to 1" or facts.type == "bool" else ", once it is 0 and 1"
    why = (
        f"likely says whether what {label} counts to was seen, so it is no feature: for times that "
        f'are not all known, task = "survival" and [columns] event = {_quoted(facts.name)}{coded}, '
        "see docs/how-to/survival.md"
    )
    return replace(facts, use="dropped", rule="drop", warnings=[why, *facts.warnings])


def _words(name: str) -> str:
    """Return a column's name in lower case, with ``_`` between its words."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.sub(r"[^a-z0-9]+", "_", apart).strip("_")


def _tells(table: Any, name: str, label: str) -> bool:
    """Return whether a feature alone gives every row's class: by its value, or by thresholds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.table({"x": table.column(name), "y": table.column(label)})
    rows = rows.filter(pc.and_(rows["x"].is_valid(), rows["y"].is_valid())).unify_dictionaries()
    x, y = (
        chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        for chunk in (column.combine_chunks() for column in rows.columns)
    )
    kind = x.type.value_type
    if len(rows) < LEAST_ROWS or not (is_number(kind) or is_text(kind)):
        return False
    classes = np.unique(y.indices.to_numpy(), return_inverse=True)[1]
    n_rows = np.bincount(classes)
    if len(n_rows) < 2 or n_rows.min() < RARE_ROWS:
        return False
    values = x.indices.to_numpy().astype(np.int64)
    n_values = np.unique(values).size
    if np.unique(values * len(n_rows) + classes).size > n_values:
        return False
    if 2 * n_values <= len(rows):
        return True
    if not is_number(kind):
        return False
    in_order = classes[np.argsort(x.dictionary.cast(pa.float64(), safe=False).to_numpy()[values])]
    return int(np.count_nonzero(np.diff(in_order))) == len(n_rows) - 1


def identifiers(table: Any, id_column: str) -> list[str]:
    """Return sentences about how well a column names the rows of a vertical party."""
    import pyarrow as pa
    import pyarrow.compute as pc

    n_rows = table.num_rows
    if id_column not in table.column_names:
        whole = [
            name
            for name, column in zip(table.column_names, table.columns, strict=True)
            if (pa.types.is_integer(column.type) or is_text(column.type))
            and n_rows == pc.count_distinct(column.cast(pa.string())).as_py()
        ]
        known = f"; every row has a value of its own in {', '.join(whole)}" if whole else ""
        return [f"there is no column {id_column!r} that names the rows{known}: --id COLUMN"]
    try:
        column = table.column(id_column).cast(pa.string())
    except pa.ArrowException:
        return [f"column {id_column!r} cannot be read as text: it names no rows"]
    counts = pc.value_counts(column.drop_null()).field("counts")
    repeated = pc.sum(pc.if_else(pc.greater(counts, 1), counts, 0)).as_py() or 0
    left_out = column.null_count + repeated
    found = [f"{n_rows - left_out:,} of {n_rows:,} rows can be matched by {id_column}"]
    if left_out:
        found.append(
            f"{column.null_count:,} rows have no {id_column}, {repeated:,} share theirs with "
            "another row: a job leaves them out"
        )
    blank = pc.sum(pc.not_equal(column, pc.utf8_trim_whitespace(column))).as_py() or 0
    if blank:
        found.append(f"{blank:,} values of {id_column} begin or end with a blank: others' may not")
    if id_column != "_id":
        found.append(f'the agent\'s settings need: [data] id = "{id_column}"')
    return found


def _plain(column: Any) -> Any:
    import pyarrow as pa

    is_dictionary = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_dictionary else column


def _facts(column: Any, name: str, label: str) -> ColumnFacts:
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pa.types.is_dictionary(column.type)
    column = _plain(column)
    coded &= pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    if is_text(column.type):  # Arrow counts no text of views, and no numbers of half precision
        column = column.cast(pa.large_string())
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    text, number = is_text(column.type), is_number(column.type)
    n_rows, gaps = len(column), column.null_count
    temporal = pa.types.is_temporal(column.type)
    distinct = pc.count_distinct(column).as_py() if text or number or temporal else 0
    feature, usable = is_feature(name, label), text or number or pa.types.is_null(column.type)
    counts = _counts(column) if text else []
    key = re.fullmatch(_KEY, _words(name)) is not None
    warnings = list(_warnings(column, distinct, counts, key)) if feature or name == label else []
    dates = feature and _are_dates(column, counts)
    if feature and not usable and not dates:
        warnings.append("a job refuses this type: drop it, or turn it into numbers or text")
    if name == label:
        use = "label"
        refused = ["numbers or text are read as labels, not this type"] * (not usable)
        warnings = [*refused, *_of_label(distinct, gaps, n_rows, text), *_merged(column, distinct)]
        warnings += _alike(counts)
    elif not feature:
        use = "left out, by its name"
    elif dates:
        use = "numbers: " + ", ".join(_PARTS)
    elif not usable:
        use = "dropped"
    else:
        use = f"{distinct} categories" if text or coded else "number"
    alone = any(w.startswith(("likely", "constant", "dates of", "infinite")) for w in warnings)
    shown = ", ".join(f"{shorten(word, SHOWN, placeholder='…')} ({n})" for n, word in counts[:3])
    if number and distinct:
        ends = pc.min_max(column).as_py()
        shown = f"{_short(ends['min'])} to {_short(ends['max'])}"
    if temporal and gaps < n_rows and not pa.types.is_duration(column.type):
        with suppress(ArithmeticError, ValueError, pa.ArrowException):  # no date of Python's
            ends = pc.min_max(column).as_py()
            shown = f"{ends['min']} to {ends['max']}"
    rule = "drop" if feature and (alone or not (usable or dates)) else "dates" if dates else ""
    if rule == "drop":
        use = "dropped"
    kind = "text" if text else str(column.type)
    return ColumnFacts(name, kind, gaps, distinct, shown, use, rule, warnings)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _counts(column: Any) -> list[tuple[int, str]]:
    """Return (rows, value) of a text column, the commonest first."""
    import pyarrow.compute as pc

    found = (entry.values() for entry in pc.value_counts(column).to_pylist())
    return sorted(((n, v) for v, n in found if v is not None), key=lambda e: (-e[0], e[1]))


def _are_dates(column: Any, counts: list[tuple[int, str]]) -> bool:
    """Return whether all values are dates that a job reads."""
    import pyarrow as pa

    try:
        return (
            pa.types.is_date(column.type)
            or pa.types.is_timestamp(column.type)
            or (bool(counts) and all(day_of(word) for _, word in counts))
        )
    except ValueError:
        return False


def _warnings(
    column: Any, distinct: int, counts: list[tuple[int, str]], key: bool
) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, known = column.type, len(column) - column.null_count
    whole, dates = pa.types.is_integer(kind), _are_dates(column, counts)
    ids = whole or bool(counts)
    if is_number(kind) and not whole and known and not pa.types.is_boolean(kind):
        # pandas makes floats of whole numbers of which some are missing.
        numbers = column.drop_null().cast(pa.float64(), safe=False).to_numpy()
        ids = column.null_count > 0 and bool(np.all(numbers == np.rint(numbers)))
    if not known:
        yield "constant: it has no value at all"
    elif distinct == 1 and not column.null_count:
        yield "constant: it has one value only"
    elif distinct == known >= LEAST_ROWS and ids and not dates:
        yield "likely an identifier: every row has a value of its own"
    elif ids and key and distinct > NEAR_UNIQUE * max(known, LEAST_ROWS) and not dates:
        yield f"likely an identifier, by its name: {distinct:,} values in {known:,} rows"
    elif not dates:
        yield from free_text(distinct if counts else 0, known)
    if counts and pc.all(pc.match_substring_regex(column, _AMBIGUOUS_DATE)).as_py():
        yield "dates of which the day may be the month: write YYYY-MM-DD"
    if large := beyond(column, _EXACT_BITS):
        yield large
    elif not whole:
        yield from _merged(column, distinct)
    yield from _alike(counts)
    if is_number(kind) and not whole and np.isinf(float32s(column)).any():
        yield "infinite values, or some beyond float32 (3.4e38): a job refuses them"
    if code := _stand_in(column):
        yield f"{code} is likely a code for a missing value: [columns] missing = {code}, if it is"
    if not dates:
        yield from numbers_in([word for _, word in counts])
    if n_empty := sum(n for n, word in counts if not word.strip()):
        yield (
            f"{n_empty:,} rows have an empty text, which is a category, and in CSV missing: store "
            "null where there is none"
        )
    if broken := [word for _, word in counts if _is_misread(word)]:
        yield (
            f"{broken[0]!r} looks like UTF-8 that was read as Latin-1: save the file in one "
            "encoding, UTF-8"
        )
    rare = [] if dates else [word for n, word in counts if n < RARE_ROWS]
    if rare and distinct < known:
        some = "1 rare category" if len(rare) == 1 else f"{len(rare)} rare categories"
        yield f"{some} with fewer than {RARE_ROWS} rows: all silos learn of it"


def _is_misread(word: str) -> bool:
    """Return whether a text is what another encoding makes of letters in UTF-8."""
    try:
        return not word.isascii() and not word.encode("cp1252").decode("utf-8").isascii()
    except UnicodeError:
        return False


def _alike(counts: list[tuple[int, str]]) -> list[str]:
    """Return a warning where texts differ by case or blanks only, at most."""
    words = tuple(sorted(word for _, word in counts))
    told = alike(Schema((Feature("", words),), "", Task.REGRESSION, 0))
    return [one.partition(": ")[2] for one in told]


def _merged(column: Any, distinct: int) -> Iterator[str]:
    """Yield a warning where many numbers are one to the trees."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if distinct and is_number(column.type):
        apart = pc.count_distinct(column.cast(pa.float64(), safe=False).cast(pa.float32())).as_py()
        if apart < _TOLD_APART * distinct:
            yield f"float32 tells {apart:,} of {distinct:,} values apart: subtract what all share"


def _of_label(distinct: int, gaps: int, n_rows: int, text: bool) -> Iterator[str]:
    if gaps:
        yield (
            f"{gaps} of {n_rows} labels are missing: a job leaves these rows out where it has "
            'missing_label = "drop", else it refuses the table'
        )
    if not n_rows:
        yield "the table has no rows: nothing can be learnt"
    elif distinct < 2:
        yield "one class only: nothing can be learnt"
    elif text and distinct > max(_MOST_CLASSES, NEAR_UNIQUE * (n_rows - gaps)):
        yield f"likely names or free text: {distinct:,} classes in {n_rows - gaps:,} rows"


def _task(column: Any, facts: ColumnFacts) -> Task:
    import pyarrow as pa
    import pyarrow.compute as pc

    if facts.type == "text" or pa.types.is_dictionary(column.type):
        return Task.BINARY if facts.distinct <= 2 else Task.MULTICLASS
    if not is_number(column.type):
        return Task.REGRESSION
    values = {v for v in pc.unique(column).to_pylist()[: _MOST_CLASSES + 3] if v == v} - {None}
    if values <= {0, 1} or values <= {-1, 1}:
        return Task.BINARY
    # pandas makes floats of whole numbers of which some are missing.
    if len(values) == 2 and all(value % 1 == 0 for value in values):
        return Task.BINARY
    # From 1 they are classes, too: the job then has a class 0, to which no row belongs.
    whole = values in (set(range(len(values))), set(range(1, len(values) + 1)))
    return Task.MULTICLASS if whole and len(values) <= _MOST_CLASSES else Task.REGRESSION


def job_file(name: str, table: Any, label: str, task: Task, columns: list[ColumnFacts]) -> str:
    """Return the text of a job to start from."""
    return (
        f"# A job to start from: hedgerow plan, hedgerow local, hedgerow submit.\n"
        f"name = {_quoted(name)}\n"
        'strategy = "histogram"   # for three silos or more; others: docs/which-strategy.md\n'
        f"label = {_quoted(label)}\n"
        f'task = "{task.value}"   # binary, multiclass, regression, survival or ranking\n'
        "# features = [...]   # all columns; or name those to use\n"
        f"metrics = {json.dumps(list(metrics.defaults(task)))}   # the first decides early stops\n"
        "seed = 1\n# min_silos = 3   # silos with rows, without which the job does not start\n\n"
        + _rules(table, label, task, columns)
        + "[histogram]\nrounds = 20   # each a tree of all silos' rows, a class\n\n"
        "[booster]   # XGBoost's parameters, with its defaults\neta = 0.3\nmax_depth = 6\n"
        + "".join(
            f"# monotone_constraints = {{{_quoted(c.name)} = 1}}   # predictions never fall "
            "with it; -1: never rise\n"
            for c in [c for c in columns if c.use == "number"][:1]
        )
    )


_KNOWN_RANGES: tuple[tuple[str, tuple[float, float]], ...] = (
    (r"age|years?_old", (0, 120)),
    (r"(hours?|hrs)_(per|a|in)_week", (0, 168)),
    (r"(hours?|hrs)_(per|a|in)_day|hour(_of_day)?", (0, 24)),
    (r"month(_of_year)?", (1, 12)),
    (r"day(_of_month)?", (1, 31)),
    (r"weekday|day_of_week|dow", (0, 7)),
    (r"(.*_)?(percent|percentage|pct)", (0, 100)),
    (r"(.*_)?(ratio|share|fraction|probability|prob)", (0, 1)),
    (r"latitude|lat", (-90, 90)),
    (r"longitude|lon|lng", (-180, 180)),
    (r"bmi|body_mass_index", (10, 80)),
)
"""Ranges that a column's name alone tells, in lower case with ``_`` between words."""


@dataclass(frozen=True, slots=True)
class PrivateDomain:
    """What a job of private_boost must declare of a table's columns, from names and types only."""

    ranges: dict[str, tuple[float, float]]
    """Suggested by names and types."""
    unranged: tuple[str, ...]
    """Numbers of which no name tells a range."""
    unlisted: tuple[str, ...]
    """Categories, which have to be listed."""
    dates: tuple[str, ...]
    """Their parts become numbers, each with a range."""
    unreadable: tuple[str, ...]
    """Of types that no job reads."""


def private_domain(schema: Any, label: str, task: Task) -> PrivateDomain:
    """Return what names and types tell of the domain.

    Parameters
    ----------
    schema : pyarrow.Schema
        No value of the table is read.
    """
    import pyarrow as pa

    ranges: dict[str, tuple[float, float]] = {}
    found: dict[str, list[str]] = {
        key: [] for key in ("unranged", "unlisted", "dates", "unreadable")
    }
    for column in schema:
        name, kind = column.name, column.type
        if not is_feature(name, label) and not (name == label and task is Task.REGRESSION):
            continue
        known = next((r for p, r in _KNOWN_RANGES if re.fullmatch(p, _words(name))), None)
        if pa.types.is_boolean(kind):
            ranges[name] = (0, 1)
        elif pa.types.is_dictionary(kind) or is_text(kind):
            found["unlisted"].append(name)
        elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            found["dates"].append(name)
        elif not is_number(kind):
            found["unreadable"].append(name)
        elif known:
            ranges[name] = known
        else:
            found["unranged"].append(name)
    return PrivateDomain(ranges, **{key: tuple(names) for key, names in found.items()})


def private_job_file(name: str, label: str, task: Task, domain: PrivateDomain) -> str:
    """Return the text of a private job to start from, with blanks for what has to be declared."""
    parts = ", ".join(f'"{part}"' for part in _PARTS)
    columns = [f"# dates = {{{_quoted(date)} = [{parts}]}}" for date in domain.dates]
    if domain.unreadable:
        columns.append(f"drop = [{', '.join(map(_quoted, domain.unreadable))}]")
    lines = [
        "# A private job to start from. Ranges and lists come from what is known without the",
        "# rows: a codebook, a law, a protocol. What follows from rows tells of them, and no noise",
        "# covers it.",
        f"name = {_quoted(name)}",
        'strategy = "private_boost"   # docs/strategies/private_boost.md',
        f"label = {_quoted(label)}",
        f'task = "{task.value}"   # binary, multiclass, regression, survival or ranking',
        "min_silos = 3",
        "",
        "[private_boost]",
        "epsilon = 1.0   # the whole budget, of one row",
        "delta = 1e-5   # rows of all silos together, to the power of -1.1, is usual",
        "",
        *(["[columns]", *columns, ""] if columns else []),
        "[columns.ranges]   # least and largest number; the order of magnitude will do",
        *(
            f"{_quoted(column)} = [{least:g}, {most:g}]   # by its name: is it right?"
            for column, (least, most) in domain.ranges.items()
        ),
        *(f"# {_quoted(column)} = [ , ]" for column in domain.unranged),
        "",
        "[columns.levels]   # all categories",
        *(f"# {_quoted(column)} = [ , ]" for column in domain.unlisted),
    ]
    return "\n".join(lines) + "\n"


def _stand_in(column: Any) -> int:
    """Return a column's smallest number where it is likely a code for a missing one, else 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_number(column.type):
        return 0
    column = column.cast(pa.float64(), safe=False)
    least = pc.min(column).as_py()
    is_code = least in _STAND_INS and pc.sum(pc.equal(column, least)).as_py() > 1
    return int(least) if is_code else 0


def _rules(table: Any, label: str, task: Task, columns: list[ColumnFacts]) -> str:
    """Return the table ``[columns]`` of a job to start from."""
    import pyarrow.compute as pc

    parts = ", ".join(f'"{part}"' for part in _PARTS)
    dates = ", ".join(f"{_quoted(c.name)} = [{parts}]" for c in columns if c.rule == "dates")
    dropped = [c for c in columns if c.rule == "drop"]
    drop = ", ".join(_quoted(c.name) for c in dropped)
    codes = [
        _quoted(c.name)
        for c in columns
        if c.use == "number" and "int" in c.type and c.distinct in _FEW
    ]
    lines = ["[columns]   # how columns become features; every silo does the same"]
    lines += [f"dates = {{{dates}}}"] if dates else []
    lines += [f"# {_quoted(c.name)}: {c.warnings[0]}" for c in dropped if c.warnings]
    lines += [f"drop = [{drop}]"] if drop else []
    if codes:
        lines.append(f"# categorical = [{', '.join(codes)}]   # where the numbers are codes")
    if any(c.name == label and c.gaps for c in columns):
        lines.append('missing_label = "drop"   # rows without a label are left out')
    stand_ins = [
        (c.name, code)
        for c in columns
        if c.use == "number"
        if (code := _stand_in(_plain(table.column(c.name))))
    ]
    if stand_ins:
        told = ", ".join(f"{code} in {_quoted(name)}" for name, code in stand_ins)
        code = stand_ins[0][1]
        lines.append(f"# missing = {code}   # where it stands for a missing value: {told}")
    lines.append('# rename = {"their name" = "ours"}   # where silos have other names for a column')
    found = [entry.values() for entry in pc.value_counts(table.column(label)).to_pylist()]
    rows = {value: n for value, n in found if value is not None}
    if task is Task.BINARY and len(rows) == 2 and not set(rows) <= {0, 1, -1}:
        names = {value: str(category(value, label)) for value in rows}
        order = {v: re.fullmatch(_NEGATIVE, _words(name)) is not None for v, name in names.items()}
        rare, other = sorted(rows, key=lambda value: (order[value], rows[value], value))
        rare, other = _quoted(names[rare]), _quoted(names[other])
        lines.append(f"positive = {rare}   # the class whose probability is given; else {other}")
    return "\n".join(lines) + "\n\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
