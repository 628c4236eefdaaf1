"""Arguments of the library's functions, checked by their annotations before anything runs."""

from __future__ import annotations

import ast
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np

from hedgerow.boosting.errors import InvalidJob

P = ParamSpec("P")
R = TypeVar("R")


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _by_name(value: object) -> bool:
    """Return whether a mapping's keys can be silos' names; raise where one is no such name."""
    from hedgerow.services.identity.certificates import check_name

    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    for name in value:
        check_name("silo", name)
    return True


def _path(value: object) -> bool:
    try:
        return isinstance(value, str | os.PathLike) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("True or False", lambda v: isinstance(v, bool | np.bool_)),
    "int": ("a whole number that is not negative", _whole),
    "float": ("a number", lambda v: isinstance(v, Real) and not isinstance(v, bool)),
    "str": ("a text", lambda v: isinstance(v, str)),
    "str | os.PathLike[str]": ("a path", _path),
    "str | Sequence[str]": ("a text or a list of texts", lambda v: isinstance(v, str) or _texts(v)),
    "Sequence[str]": ("a list of texts", _texts),
    "Iterable[str]": ("a list of texts", _texts),
    "Mapping[str, Any]": ("values by name", lambda v: isinstance(v, Mapping) and _texts([*v])),
    "Mapping[str, str]": (
        "a text by silo's name", lambda v: _by_name(v) and _texts([*v.values()])
    ),
    "Mapping[str, Tabular]": ("tables by silo's name", _by_name),
    "Callable": ("a function", callable),
}  # fmt: skip
_CHECKED_LATER = {"Any", "JobLike", "Tabular", "Tabular | Mapping[str, Tabular]", "object",
                  "AwaySilos", "LateSilos"}  # fmt: skip


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function; it raises :class:`InvalidJob` where an argument has a wrong type.

    An error names the argument, what was expected, and the type, never a value of a table.
    """
    signature = inspect.signature(function)
    checks = {}
    for name, parameter in signature.parameters.items():
        kind = str(parameter.annotation).removesuffix(" | None")
        kind = "Callable" if kind.startswith("Callable[") else kind
        if parameter.annotation is not parameter.empty and kind not in _CHECKED_LATER:
            checks[name] = *_EXPECTED[kind], str(parameter.annotation).endswith(" | None")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        for name, (expected, fits, optional) in checks.items():
            if name not in bound.arguments or (optional and bound.arguments[name] is None):
                continue
            value = bound.arguments[name]
            if isinstance(value, np.generic):
                value = value.item()
            elif isinstance(value, Iterable) and expected == _EXPECTED["Iterable[str]"][0]:
                value = value if isinstance(value, str) else list(value)
            if not fits(value):
                told = repr(value) if isinstance(value, int | float | str) else type(value).__name__
                raise InvalidJob(f"{name}: expected {expected}, received {told[:80]}")
            bound.arguments[name] = value
        return function(*bound.args, **bound.kwargs)

    return call


def number(name: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    """Return a parameter as the number that it is, or that its text is."""
    try:
        found = kind(value)
        if kind is float or isinstance(value, str) or found == value:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    what = "a whole number" if kind is int else "a number"
    raise InvalidJob(f"{name}: expected {what}, received {value!r}")


def _no_feature(name: str, given: Any, features: Sequence[str]) -> InvalidJob:
    some = ", ".join([*features[:20], *(["..."] if len(features) > 20 else [])])
    return InvalidJob(f"{name}: there is no feature {given!r}; expected some of {some}")


def _literal(name: str, given: Any) -> Any:
    """Return a constraint, of one that is text what it stands for."""
    if not isinstance(given, str):
        return given
    try:
        return ast.literal_eval(given)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise InvalidJob(f"{name}: expected a list, received {given!r}") from None


def monotone(given: Any, features: Sequence[str]) -> list[int]:
    """Return the monotone constraint of each feature; XGBoost has a mapping, a list or a text."""
    name = "monotone_constraints"
    given = _literal(name, given)
    if isinstance(given, Mapping):
        if unknown := [one for one in given if one not in features]:
            raise _no_feature(name, unknown[0], features)
        given = [given.get(one, 0) for one in features]
    listed = given if isinstance(given, Sequence) else np.ravel(given).tolist()
    found = [number(name, each, int) for each in listed]
    if len(found) > len(features) or not {*found} <= {-1, 0, 1}:
        raise InvalidJob(f"{name}: expected -1, 0 or 1 for each of {len(features)} features")
    return [*found, *[0] * (len(features) - len(found))] if found else []


def interactions(given: Any, features: Sequence[str]) -> list[list[str]]:
    """Return interaction constraints by the features' names."""
    name = "interaction_constraints"
    given = _literal(name, given or [])
    groups = given if isinstance(given, list | tuple) else [given]
    names: dict[Any, str] = {**dict(enumerate(features)), **{one: one for one in features}}
    for group in groups:
        if not isinstance(group, list | tuple):
            raise InvalidJob(f"{name}: expected lists of features, received {group!r}")
        if unknown := [one for one in group if one not in [*names]]:
            raise _no_feature(name, unknown[0], features)
    return [[names[one] for one in group] for group in groups]
