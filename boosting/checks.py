"""Ranges and choices of parameters, types of what files have, and how errors name them."""

from __future__ import annotations

import dataclasses
import functools
import sys
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hedgerow.boosting.errors import DataError, InvalidJob

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_ROWS = 1 << 53
"""A row count that a silo states is below this: sums of them stay exact in float64."""
_hints = functools.cache(typing.get_type_hints)


def within(
    table: str, name: str, value: float, least: float, most: float, *, below: bool = False
) -> None:
    """Raise :class:`InvalidJob` unless a parameter is in [least, most], or in [least, most).

    Parameters
    ----------
    table : str
        Table of the job file, for the message: ``[table] name: expected ..., received ...``; ""
        for a key outside of all tables.
    below : bool
        Whether ``most`` itself is outside.
    """
    if not least <= value <= most or (below and value == most):
        end = "below" if below else "to"
        where = f"[{table}] {name}" if table else name
        raise InvalidJob(f"{where}: expected {least} {end} {most}, received {value}")


def one_of(table: str, name: str, value: object, known: Iterable[object]) -> None:
    """Raise :class:`InvalidJob` unless a parameter is one of the known values."""
    choices = tuple(known)
    if value not in choices:
        raise InvalidJob(
            f"[{table}] {name}: expected one of {', '.join(map(str, choices))}, received {value!r}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Within:
    """A range beside a parameter's type; see :func:`within`."""

    least: float
    most: float
    below: bool = False

    def check(self, table: str, name: str, value: Any) -> None:
        """Raise :class:`InvalidJob` for a value outside."""
        within(table, name, value, self.least, self.most, below=self.below)


class OneOf(tuple[Any, ...]):
    """The choices beside a parameter's type; see :func:`one_of`."""

    def check(self, table: str, name: str, value: object) -> None:
        """Raise :class:`InvalidJob` for another value."""
        one_of(table, name, value, self)


def check_declared(table: str, parameters: DataclassInstance) -> None:
    """Check parameters by the ranges and choices beside their types, each value of a tuple."""
    for name, rules in _declared(type(parameters)).items():
        given = getattr(parameters, name)
        for rule in rules:
            for value in given if isinstance(given, tuple) else (given,):
                if value is not None:
                    rule.check(table, name.rstrip("_"), value)


@functools.cache
def _declared(kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    hints = typing.get_type_hints(kind, include_extras=True).items()
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints}


def only_with(
    condition: object, needed: str, table: str, parameters: DataclassInstance, *names: str
) -> None:
    """Raise :class:`InvalidJob` where a parameter would have no effect in a job.

    Parameters
    ----------
    condition : object
        Whether the parameters have an effect; nothing is checked then.
    needed : str
        When they have one, for the message.
    names : str
        Parameters that keep their default otherwise.
    """
    if condition:
        return
    for field in dataclasses.fields(parameters):
        value = getattr(parameters, field.name)
        if field.name in names and value != field.default:
            raise InvalidJob(
                f"[{table}] {field.name.rstrip('_')}: it would have no effect; expected {needed}, "
                f"or its default {field.default!r}, received {value!r}"
            )


def on_cpus(device: str) -> None:
    """Raise :class:`InvalidJob` for a GPU in a strategy whose trees grow from sums."""
    if device != "cpu":
        raise InvalidJob(
            "[booster] device: expected cpu, for only trees of bagging and fedxgbllr, which stock "
            f"XGBoost grows in the silos, can grow on GPUs, received {device!r}"
        )


def check_gpu(device: str, tree_method: str) -> None:
    """Raise :class:`InvalidJob` for a device that XGBoost has not, or not with a tree method."""
    one_of("booster", "device", device, ("cpu", "cuda"))
    if device == "cuda" and tree_method == "exact":
        raise InvalidJob(
            "[booster] tree_method: expected hist or approx with device = 'cuda', received 'exact'"
        )


def follows(strategy: str, booster: DataclassInstance, names: Iterable[str]) -> None:
    """Raise :class:`InvalidJob` where ``[booster]`` has what a strategy does not follow."""
    others = {field.name for field in dataclasses.fields(booster)} - {"objective", *names}
    only_with(False, f"a strategy other than {strategy}", "booster", booster, *others)


def read_as(kind: Any, value: Any, name: str = "value") -> Any:
    """Return what JSON has of a type: of a dataclass's fields, of lists, tuples and mappings.

    Parameters
    ----------
    kind : type
        ``str``, ``int`` (64 bits), ``float`` (finite), ``bool``, ``Any``, a dataclass, or a list, a
        tuple or a mapping of these.

    Raises
    ------
    DataError
        Another type, a missing field, or one that is not known; names it.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (list, tuple) and isinstance(value, list):
        return origin(read_as(arguments[0], item, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {
            read_as(arguments[0], key, name): read_as(arguments[1], item, name)
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        hints = _hints(kind)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        needed = {
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
        wrong = sorted((needed - value.keys()) | (value.keys() - fields.keys()))
        if wrong:
            raise DataError(f"{wrong[0][:80]}: missing, or not known")
        return kind(**{name: read_as(hints[name], item, name) for name, item in value.items()})
    if kind is float:
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
    elif type(value) is kind and (kind is not int or -1 << 63 <= value < 1 << 63):
        return value
    raise DataError(f"{name}: expected {getattr(kind, '__name__', kind)}")
