"""Job files: TOML parsed straight into ``JobSpec``, which is their only schema."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Fd
from google.protobuf.message import Message

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.metrics.names import canonical
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.selection import features_by
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.bounds import cut
from hedgerow.services.wire.schema import TASKS

SEARCH = "search"
"""Table of a job file that is not the job's: what ``hedgerow search`` tries."""
_WHOLE = {Fd.CPPTYPE_INT32, Fd.CPPTYPE_INT64, Fd.CPPTYPE_UINT32, Fd.CPPTYPE_UINT64}
_UNSIGNED = {Fd.CPPTYPE_UINT32, Fd.CPPTYPE_UINT64}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_REAL = {Fd.CPPTYPE_DOUBLE, Fd.CPPTYPE_FLOAT}


def load(path: Path) -> bytes:
    """Return the serialised JobSpec of a job file.

    Raises
    ------
    InvalidJob
        The file is missing or no TOML, a key is unknown (the nearest known key is named), or a
        value has the wrong type (what was expected and received).
    """
    table = values(path)
    try:
        return of_table(table)
    except InvalidJob as error:
        raise InvalidJob(f"{path}: {error}") from error


def values(path: Path) -> dict[str, Any]:
    """Return the values of a job file, as TOML has them, with its features chosen."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return _chosen(table, path.parent)
    except InvalidJob as error:
        raise InvalidJob(f"{path}: {error}") from error
    except FileNotFoundError:
        raise InvalidJob(f"{path}: no such job file") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidJob(f"{path}: not TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"{path}: cannot be read: {type(error).__name__}") from error


def parse(text: str) -> bytes:
    """Return the serialised JobSpec of a job file's text; see :func:`load`."""
    try:
        table = tomllib.loads(_unicode(text, "a job file's text"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidJob(f"not TOML: {error}") from error
    if isinstance(table.get("features"), dict):
        raise InvalidJob(
            "features: a text has no folder that explored could be in: expected a list of columns, "
            "as `hedgerow explore RUN --job` writes it"
        )
    return of_table(table)


def of_table(table: dict[str, Any]) -> bytes:
    """Return the serialised JobSpec of a job file's values; see :func:`load`."""
    if SEARCH in table:
        raise InvalidJob(
            "[search] says what to try before there is a job: run `hedgerow search` with tables on "
            "one machine, and use the best.toml that it writes"
        )
    spec = job_pb2.JobSpec()
    table = _labels(_chosen(table, Path()))
    strategy = table.get("strategy")
    if isinstance(strategy, str) and STRATEGIES.is_foreign(strategy):
        own = job_wire.message_of(strategy)()
        if not isinstance(given := table.get(strategy, {}), dict):
            raise _wrong(strategy, "a table", given)
        _fill(own, given, strategy + ".")
        _fill(spec, {key: value for key, value in table.items() if key != strategy}, "")
        if choice := spec.WhichOneof("parameters"):
            raise InvalidJob(f"the strategy is {strategy}, but the job has a table [{choice}]")
        if strategy in table:
            job_wire.give_parameters(spec, own)
    else:
        _fill(spec, table, "")
    task = TASKS.get(spec.task, Task.BINARY)
    spec.metrics[:] = [canonical(name, task) for name in spec.metrics]
    return spec.SerializeToString(deterministic=True)


def _chosen(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a job's values with the list that a table ``[features]`` stands for."""
    given, label = table.get("features"), table.get("label", "label")
    if not isinstance(given, dict):
        return table
    first = label[0] if isinstance(label, list) and label else label
    return {**table, "features": features_by(given, str(first), folder)}


def _labels(table: dict[str, Any]) -> dict[str, Any]:
    """Return a job's values with a list of labels as its first and the others."""
    given, columns = table.get("label"), table.get("columns", {})
    if not isinstance(given, list) or not isinstance(columns, dict):
        return table
    if not given or "more_labels" in columns:
        why = "columns.more_labels beside a list" if given else "an empty list"
        raise InvalidJob(f"label: expected a column, or a list of columns, received {why}")
    first, *others = given
    more = {**columns, "more_labels": others} if others else columns
    return {**table, "label": first, **({"columns": more} if more else {})}


def keys(table: str = "") -> tuple[str, ...]:
    """Return the keys of a job file, or of one of its tables."""
    if STRATEGIES.is_foreign(table):
        return tuple(job_wire.message_of(table).DESCRIPTOR.fields_by_name)
    fields = _fields(job_pb2.JobSpec.DESCRIPTOR)
    inner: Any = fields[table].message_type if table else None
    return tuple(fields if inner is None else inner.fields_by_name)


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields that a job file has of a message."""
    return {field.name: field for field in message.fields if field.name != job_wire.EXTENSION}


def _fill(message: Message, table: dict[str, Any], where: str) -> None:
    fields = _fields(message.DESCRIPTOR)
    if isinstance(message, job_pb2.Booster):
        table = _quantiles(_directions(table))
    for key, value in table.items():
        field = fields.get(key)
        if field is None:
            raise unknown(str(key), fields, where)
        _set(message, field, value, where + key)


def _directions(booster: dict[str, Any]) -> dict[str, Any]:
    """Return ``[booster]`` with monotone constraints by name as the lists that stand for them."""
    given = booster.get("monotone_constraints")
    if not isinstance(given, dict):
        return booster
    found = {key: value for key, value in booster.items() if key != "monotone_constraints"}
    for name, value in given.items():
        if isinstance(value, bool) or value not in (-1, 0, 1):
            raise _wrong(f"booster.monotone_constraints.{name}", "-1, 0 or 1", value)
        if value:
            key = "increasing" if value > 0 else "decreasing"
            found[key] = [*found.get(key, []), name]
    return found


def _quantiles(booster: dict[str, Any]) -> dict[str, Any]:
    """Return ``[booster]`` with a list of quantiles as its first and the others."""
    given = booster.get("quantile_alpha")
    if not isinstance(given, list):
        return booster
    if not given or "more_alphas" in booster:
        why = "more_alphas beside a list" if given else "an empty list"
        raise InvalidJob(
            f"booster.quantile_alpha: expected a number, or a list of numbers, received {why}"
        )
    first, *others = given
    return {**booster, "quantile_alpha": first, **({"more_alphas": others} if others else {})}


def _set(message: Message, field: Any, value: Any, where: str) -> None:
    if _is_map(field):
        if field.name == "class_weight" and value == "balanced":
            raise InvalidJob(
                f"{where}: 'balanced' needs the number of rows of each class over all silos, which "
                "no silo tells: give a table of class = weight, rows / (classes * rows of the "
                "class), from numbers that the silos agree to tell or that are public"
            )
        if not isinstance(value, dict):
            raise _wrong(where, "a table", value)
        inner = field.message_type.fields_by_name["value"]
        for key, item in value.items():
            _unicode(key, where)
            if inner.message_type is None:
                getattr(message, field.name)[key] = _scalar(inner, item, f"{where}.{key}")
            else:
                _set(getattr(message, field.name)[key], _only(inner), item, f"{where}.{key}")
    elif field.is_repeated:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        if field.message_type is not None:
            for i, item in enumerate(value):
                _set(getattr(message, field.name).add(), _only(field), item, f"{where}[{i}]")
            return
        getattr(message, field.name).extend(
            _scalar(field, item, f"{where}[{i}]") for i, item in enumerate(value)
        )
    elif field.cpp_type == Fd.CPPTYPE_MESSAGE:
        if not isinstance(value, dict):
            raise _wrong(where, "a table", value)
        choice = field.containing_oneof
        other = message.WhichOneof(choice.name) if choice is not None else None
        if other is not None:
            raise InvalidJob(f"{where}: the job has a table [{other}] already")
        part = getattr(message, field.name)
        part.SetInParent()
        _fill(part, value, where + ".")
    else:
        setattr(message, field.name, _scalar(field, value, where))


def _prefix(enum: Any) -> str:
    """Return what all names of an enum's values begin with."""
    return str(enum.values_by_number[0].name).removesuffix("UNSPECIFIED")


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _only(field: Any) -> Any:
    """Return the only field of a map's or list's messages: a job file has its values as theirs."""
    [only] = field.message_type.fields
    return only


def _scalar(field: Any, value: Any, where: str) -> Any:
    kind = field.cpp_type
    if kind == Fd.CPPTYPE_ENUM:
        prefix = _prefix(field.enum_type)
        names = {v.name.removeprefix(prefix).lower(): v.number for v in field.enum_type.values}
        names.pop("unspecified", None)
        if not isinstance(value, str) or value not in names:
            raise _wrong(where, " or ".join(repr(name) for name in names), value)
        return names[value]
    if kind == Fd.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise _wrong(where, "true or false", value)
        return value
    if kind == Fd.CPPTYPE_STRING:
        if not isinstance(value, str):
            raise _wrong(where, "a text", value)
        return _unicode(value, where)
    if isinstance(value, bool):
        raise _wrong(where, "a number", value)
    if kind in _WHOLE:
        if not isinstance(value, int) or (kind in _UNSIGNED and value < 0):
            sign = " that is not negative" if kind in _UNSIGNED else ""
            raise _wrong(where, f"a whole number{sign}", value)
        wide = kind in (Fd.CPPTYPE_INT64, Fd.CPPTYPE_UINT64)
        limit = (64 if wide else 32) - (0 if kind in _UNSIGNED else 1)
        if not -(1 << limit) <= value < 1 << limit:
            raise _wrong(where, f"a number below 2^{limit}", value)
        return value
    assert kind in _REAL, f"{where}: a field of this kind is not for job files"
    if not isinstance(value, int | float):
        raise _wrong(where, "a number", value)
    return float(value)


def _unicode(text: str, where: str) -> str:
    """Return a text that can be written down; Python's may hold halves of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(where, "a text of Unicode characters", text[:80]) from None
    return text


def unknown(key: str, known: Iterable[str], where: str = "") -> InvalidJob:
    """Return the error of a key that is not known; it names the nearest known one."""
    known = tuple(known)
    if said := _ELSEWHERE_CALLED.get(key.replace("-", "_")):
        return InvalidJob(f"unknown key {where}{key}; {said}")
    names = _USUAL.get(key.replace("-", "_"), (key,))
    meant = [name for name in names if name in known] or _elsewhere(names)
    meant = meant or difflib.get_close_matches(key, known, 1, 0.5)
    hint = f"did you mean {meant[0]}?" if meant else f"known keys: {', '.join(known)}"
    return InvalidJob(f"unknown key {where}{key}; {hint}")


_ROUNDS = ("rounds", "generations", "trees")
_USUAL = {
    **dict.fromkeys(
        ("num_rounds", "num_round", "num_boost_round", "n_rounds", "rounds", "generations"), _ROUNDS
    ),
    "n_estimators": ("trees", *_ROUNDS),
    "n_iter_no_change": ("early_stopping_rounds",),
    "num_local_round": ("trees_per_round",),
    "learning_rate": ("eta",),
    "eval_metric": ("metrics",),
    "num_class": ("classes",),
    "objective": ("objective",),
    "reg_lambda": ("lambda",),
    "reg_alpha": ("alpha",),
    "min_split_loss": ("gamma",),
    "max_leaf_nodes": ("max_leaves",),
    "random_state": ("seed",),
    "sample_weight": ("weight",),
}
"""Usual names of XGBoost, scikit-learn and FLeXGBoost, and ours, the likeliest first."""
_ELSEWHERE_CALLED = {
    "num_clients_per_round": "FLeXGBoost's: use silos_per_round in [bagging] or [histogram]",
    "pool_size": "FLeXGBoost's: use silos, a list of names before all tables; without it all "
    "registered silos are in the job",
    "normalized_lr": 'FLeXGBoost\'s: use lr_mode = "rows" in [bagging], "plain" where it is off',
    "num_trees": "FATE's: use rounds in the strategy's table; of [fedxgbllr], trees",
    "boosting_strategy": 'FATE\'s: use mode in [secureboost], "standard", "mix" or "layered"',
    "goss_subsample": 'FATE\'s: use sampling = "goss", top_rate and other_rate in [secureboost] or '
    "[histogram]",
    "zero_as_missing": "FATE's: use missing = 0 in [columns]; of a vertical job there is none",
    "min_sample_split": "FATE's: there is none; use min_leaf in [secureboost], or min_child_weight "
    "in [booster]",
    "validation_freqs": "FATE's: there is none, for every round is scored; use validation and "
    "early_stopping_rounds in [secureboost] or [histogram]",
    "pop_size": "FedGA's: use population in [fedga]",
    "leaf_node_ratio": "FedGA's: use leaf_share in [fedga]",
    **dict.fromkeys(
        ("proximal", "epoch_choices", "server_optimiser", "server_rate", "server_momentum"),
        "of [fedxgbllr], removed: silos' weights are averaged; leave it out",
    ),
}
"""Names of the papers' codes, of FATE and of older versions that no key is like, and what to use.
"""


def _elsewhere(names: Iterable[str]) -> list[str]:
    """Return keys of these names in other tables of a job file, with where they are."""
    tables = [name for name, f in _fields(job_pb2.JobSpec.DESCRIPTOR).items() if f.message_type]
    shared = ("booster", "columns", "warm_start", "audit")
    strategies = [name for name in tables if name not in shared]
    found = []
    for name in names:
        if name in keys():
            found.append(f"{name} before all tables")
        found += [f"{name} in [{table}]" for table in shared if name in keys(table)]
        if any(name in keys(table) for table in strategies):
            found.append(f"{name} in the strategy's table")
    return found


def _wrong(where: str, expected: str, value: Any) -> InvalidJob:
    return InvalidJob(f"{where}: expected {expected}, received {value!r}")


def dump(spec: bytes) -> str:
    """Return a job file's text for a serialised JobSpec; :func:`parse` gives the same back."""
    message = job_pb2.JobSpec.FromString(spec)
    lines: list[str] = []
    tables: list[tuple[str, Message]] = []
    if message.WhichOneof("parameters") == job_wire.EXTENSION:
        tables.append((message.strategy, job_wire.parameters_of(message)))
        message.ClearField(job_wire.EXTENSION)
    _dump(message, lines, tables, "")
    while tables:
        name, part = tables.pop(0)
        lines += ["", f"[{name}]"]
        _dump(part, lines, tables, name + ".")
    return "\n".join(lines) + "\n"


def difference(one: bytes, other: bytes) -> tuple[str, str, str] | None:
    """Return the first key in which two serialised JobSpecs differ, with both values as texts."""
    ours, theirs = (_flat(tomllib.loads(dump(spec)), "") for spec in (one, other))
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            return key, *(_shown(found, key) for found in (ours, theirs))  # type: ignore[return-value]
    return None


def _flat(table: dict[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{where}{key}.") if isinstance(value, dict) else {where + key: value}
    return found


def _shown(values: dict[str, Any], key: str) -> str:
    return cut(repr(values[key]), 200) if key in values else "nothing"


def _dump(
    message: Message, lines: list[str], tables: list[tuple[str, Message]], where: str
) -> None:
    for field, value in message.ListFields():
        if _is_map(field):
            entry: Any = field.message_type
            inner = entry.fields_by_name["value"]
            pairs = (f"{_quoted(key)} = {_value(inner, value[key])}" for key in sorted(value))
            lines.append(f"{field.name} = {{{', '.join(pairs)}}}")
        elif field.is_repeated:
            lines.append(f"{field.name} = {_list(field, value)}")
        elif field.cpp_type == Fd.CPPTYPE_MESSAGE:
            tables.append((where + field.name, value))
        else:
            lines.append(f"{field.name} = {_text(field, value)}")


def _value(field: Any, value: Any) -> str:
    """Return a value of a map or list."""
    if field.message_type is None:
        return _text(field, value)
    only = _only(field)
    return _list(only, getattr(value, only.name))


def _list(field: Any, values: Iterable[Any]) -> str:
    return f"[{', '.join(_value(field, value) for value in values)}]"


def _text(field: Any, value: Any) -> str:
    if field.cpp_type == Fd.CPPTYPE_ENUM:
        name = field.enum_type.values_by_number[value].name
        return f'"{name.removeprefix(_prefix(field.enum_type)).lower()}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _CONTROLS.sub(lambda c: f"\\u{ord(c[0]):04x}", escaped) + '"'
