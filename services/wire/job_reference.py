"""Every key of a job file: type, default, limits, meaning, and the strategies that follow it.

Nothing here is written down twice. Types are the message's; meanings are the comments of the proto
and the strings under the strategies' parameters; and limits are what a job itself answers when a
key has a value that cannot be: ``expected 1 to 100000, received ...``.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor as Fd

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters, strategy_of
from hedgerow.boosting.registry import NAMES, STRATEGIES
from hedgerow.services.wire import job as job_wire

_NUMBERS = {Fd.CPPTYPE_DOUBLE: "number", Fd.CPPTYPE_FLOAT: "number"}
_WORDS = {Fd.CPPTYPE_STRING: "text", Fd.CPPTYPE_BOOL: "true or false", **_NUMBERS}
_IMPOSSIBLE = (10**12, -1, 1e30, -1.0, "~", ("~",))
_POSSIBLE = (0.5, 0.25, 2, 3, 7, 1.5, 100, "lossguide", "approx", "gradient_based", (1,), (0.9,),
             "logistic", "cuda", "margin**2")  # fmt: skip
"""One of them is a value other than the default that any key of [booster] may have."""
_OBJECTIVES = ("binary:logistic", "binary:logitraw", "reg:squarederror")
_UNNAMED = {"lambda": "L2 term."}
"""Keys that are words of Python, which a stub cannot have."""
_NO_EFFECT = re.compile(r"it would have no effect; expected (.*), or its default")
_ROLE = re.compile(r":\w+:`~?(?:\w+\.)*(\w+)`")
_EXPECTED = re.compile(r"expected (.*), received", re.DOTALL)


class JobKey(NamedTuple):
    """A key of a job file."""

    table: str
    """Table that it is in; empty above all tables."""
    key: str
    kind: str
    default: str
    """As TOML; ``required``, or empty where nothing is set."""
    limits: str
    """What values it may have, and when it has an effect."""
    about: str
    """What it means."""
    strategies: tuple[str, ...]
    """Those that follow it."""


@cache
def keys_of(strategy: str = "") -> tuple[JobKey, ...]:
    """Return the keys of a strategy's jobs, or all of them.

    Raises
    ------
    InvalidJob
        There is no such strategy; the nearest one is named.
    """
    if strategy:
        job_wire.check_strategy(strategy)
    return tuple(_keys((strategy,) if strategy else NAMES))


def _keys(among: tuple[str, ...]) -> Iterator[JobKey]:
    fields = job_pb2.JobSpec.DESCRIPTOR.fields
    example = job_wire.decode(job_pb2.JobSpec(strategy="bagging").SerializeToString())
    for field in fields:
        if field.message_type is None:
            default = getattr(example, field.name, None)
            default = {
                "strategy": "required",
                "name": "the strategy",
                "max_attempts": str(job_wire.DEFAULT_MAX_ATTEMPTS),
            }.get(field.name) or _literal(default)
            about = _comments(job_pb2.JobSpec.DESCRIPTOR).get(field.name, "")
            yield JobKey("", field.name, _kind(field), default, "", about, among)
    for table in ("columns", "booster"):
        message: Any = job_pb2.JobSpec.DESCRIPTOR.fields_by_name[table].message_type
        for field in message.fields:
            default = _default(type(getattr(example, table)), field.name)
            follow, limits = among, ""
            if table == "booster":
                follow = tuple(one for one in among if _follows(one, field.name))
                limits = _limits("booster", field.name, follow)
            about = _comments(message).get(field.name, "") or _UNNAMED.get(field.name, "")
            if follow:
                yield JobKey(table, field.name, _kind(field), default, limits, about, follow)
    message = job_pb2.WarmStart.DESCRIPTOR
    for field in message.fields:
        follow = tuple(one for one in among if not strategy_of(one).starts_anew)
        about = _comments(message).get(field.name, "")
        if follow:
            yield JobKey("warm_start", field.name, _kind(field), "", "", about, follow)
    message = job_pb2.ReleaseAudit.DESCRIPTOR
    for field in message.fields:
        default = {"approvers": "required"}.get(field.name, "")
        limits = "0 … 1" if field.has_presence else ""
        about = _comments(message).get(field.name, "")
        yield JobKey("audit", field.name, _kind(field), default, limits, about, among)
    for name in among:
        message = job_wire.message_of(name).DESCRIPTOR
        parameters = strategy_of(name).parameters
        told = _described(parameters)
        for field in message.fields:
            default = _default(parameters, field.name)
            comment = "" if STRATEGIES.is_foreign(name) else _comments(message).get(field.name, "")
            about = told.get(field.name) or comment
            limits = _limits(name, field.name, (name,))
            yield JobKey(name, field.name, _kind(field), default, limits, about, (name,))


def _kind(field: Any) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        inner = value.message_type.fields[0] if value.message_type is not None else value
        return f"table of {_kind(inner)}"
    if field.message_type is not None:
        return f"list of {_kind(field.message_type.fields[0])}"
    if field.cpp_type == Fd.CPPTYPE_ENUM:
        prefix = field.enum_type.name
        prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", prefix).upper() + "_"
        names = (value.name.removeprefix(prefix).lower() for value in field.enum_type.values)
        word = " or ".join(f'"{name}"' for name in names if name != "unspecified")
    else:
        word = _WORDS.get(field.cpp_type, "whole number")
    return f"list of {word}" if field.is_repeated else word


def _default(kind: Any, name: str) -> str:
    field = next(f for f in dataclasses.fields(kind) if f.name.rstrip("_") == name)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    return _literal(field.default)


def _literal(value: Any) -> str:
    if value is None or value is dataclasses.MISSING or value == ():
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Task):
        return f'"{value.value}"'
    return f'"{value}"' if isinstance(value, str) else str(value)


@cache
def _comments(message: Any) -> dict[str, str]:
    """Return the proto's comments of a message's fields, which its stub has as docstrings."""
    folder, _, name = message.file.name.removesuffix(".proto").rpartition("/")
    stub = files(folder.replace("/", ".")).joinpath(f"{name}_pb2.pyi").read_text(encoding="utf-8")
    body = next(
        node.body for node in ast.parse(stub).body
        if isinstance(node, ast.ClassDef) and node.name == message.name
    )  # fmt: skip
    return _texts(body)


def _texts(body: list[ast.stmt]) -> dict[str, str]:
    """Return the strings under the fields of a class, and the docstrings of its properties."""
    found = {}
    for before, node in zip(body, [*body[1:], None], strict=True):
        text = None
        if isinstance(before, ast.FunctionDef):
            text = ast.get_docstring(before)
            name = before.name
        elif isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            name = before.target.id
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = str(node.value.value)
        if text:
            found[name] = " ".join(text.split())
    return found


def _described(kind: Any) -> dict[str, str]:
    """Return what a class says of its fields: under them, or in numpy's ``Parameters``."""
    with suppress(OSError):  # no source
        [own] = ast.parse(inspect.getsource(kind)).body
        assert isinstance(own, ast.ClassDef)
        if texts := _texts([node for node in own.body if not isinstance(node, ast.FunctionDef)]):
            return {name.rstrip("_"): _unmarked(text) for name, text in texts.items()}
    lines = (kind.__doc__ or "").partition("----------\n")[2].splitlines()
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        if re.fullmatch(r"    [\w, ]+ : .*", line):
            names = line.partition(" : ")[0].split(",")
        elif re.fullmatch(r"    \w.*", line):
            break
        for name in (name.strip() for name in names if line.startswith("        ")):
            found[name.rstrip("_")] = f"{found.get(name.rstrip('_'), '')} {line.strip()}".strip()
    return {name: _unmarked(text) for name, text in found.items()}


def _unmarked(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _example(strategy: str, task: Task) -> JobParameters:
    """Return a job of a strategy with defaults only, but for parameters that have none."""
    kind = strategy_of(strategy).parameters
    given: dict[str, Any] = {
        field.name: 1.0 if "float" in str(field.type) else "active"
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    classes = 3 if task is Task.MULTICLASS else 0
    made = job_wire.decode(job_pb2.JobSpec(strategy="bagging").SerializeToString())
    values: dict[str, Any] = {"parameters": kind(**given), "task": task, "classes": classes}
    return dataclasses.replace(made, min_silos=3, label="label", **values)


def _refusal(job: JobParameters) -> str:
    """Return why a job is refused, or nothing."""
    try:
        job.check_columns()
        job.parameters.validate(job)
    except (FederationError, TypeError, ValueError) as error:
        return str(error)
    return ""


def _with(job: JobParameters, table: str, name: str, value: Any) -> JobParameters:
    place = "booster" if table == "booster" else "parameters"
    part: Any = getattr(job, place)
    attribute = next(f.name for f in dataclasses.fields(part) if f.name.rstrip("_") == name)
    changed: dict[str, Any] = {place: dataclasses.replace(part, **{attribute: value})}
    return dataclasses.replace(job, **changed)


def _limits(table: str, name: str, of: Iterable[str]) -> str:
    """Return what jobs of some strategies expect of a key, each text once."""
    found: dict[str, None] = {}
    only: dict[str, None] = {}
    for strategy in of:
        for task in Task:
            for value in _IMPOSSIBLE:
                said = _said(strategy, task, table, name, value)
                effect, expected = _NO_EFFECT.search(said), _EXPECTED.search(said)
                if effect:
                    only[f"only with {effect[1]}"] = None
                elif expected and f"{name}:" in said:
                    found[_plain(expected[1])] = None
                    break
    return "; ".join([*found, *only])


def _said(strategy: str, task: Task, table: str, name: str, value: Any) -> str:
    """Return how a job refuses a value; a limit that moves with ``rounds`` is called that."""
    job = _example(strategy, task)
    said = _refusal(_with(job, table, name, value))
    rounds = getattr(job.parameters, "rounds", None)
    if rounds is None or name == "rounds":
        return said
    more = _refusal(_with(_with(job, strategy, "rounds", rounds + 1), table, name, value))
    return said if more == said else re.sub(rf"\b{rounds}\b", "rounds", said, count=1)


def _plain(text: str) -> str:
    """Return a range without what floating point makes of its ends."""
    text = re.sub(r" to inf$", " or more", text)
    # A run of whole numbers is a range, too.
    text = re.sub(r"\b(\d+), (?:\d+, ){6,}(\d+)$", r"\1 to \2", text)
    return text.removeprefix("one of ").replace(" to ", " … ")


def _follows(strategy: str, name: str) -> bool:
    """Return whether a strategy takes another value than the default for a key of [booster]."""
    return any(
        _refusal(job) == "" and not _refusal(_with(job, "booster", name, value))
        for value in (_OBJECTIVES if name == "objective" else _POSSIBLE)
        for job in _variants(strategy)
        if getattr(Booster(), name, None) != value
    )


@cache
def _variants(strategy: str) -> list[JobParameters]:
    found = []
    objectives = (
        None, "reg:tweedie", "reg:pseudohubererror", "reg:quantileerror",
        "huber", "fair", "tweedie",
    )  # fmt: skip
    for task in Task:
        for objective in objectives if task is Task.REGRESSION else (None,):
            found.append(_with(_example(strategy, task), "booster", "objective", objective))
            if objective == "reg:quantileerror":  # of histogram jobs with leaves of many rows
                found.append(_with(found[-1], "booster", "min_child_weight", 10.0))
        # Which rows are drawn says something only where some are.
        found.append(_with(_example(strategy, task), "booster", "subsample", 0.5))
        found.append(_with(_example(strategy, task), "booster", "loss", "label * margin**4"))
    return found
