"""Ranges and choices of parameters, and the one way to say that a value is outside of them."""

from __future__ import annotations

from collections.abc import Iterable

from hedgerow.boosting.errors import InvalidJob


def within(
    table: str, name: str, value: float, least: float, most: float, *, below: bool = False
) -> None:
    """Raise :class:`InvalidJob` unless a parameter is in [least, most], or in [least, most).

    Parameters
    ----------
    table : str
        Table of the job file, for the message: ``[table] name: expected ..., received ...``.
    below : bool
        Whether ``most`` itself is outside.
    """
    if not least <= value <= most or (below and value == most):
        end = "below" if below else "to"
        raise InvalidJob(f"[{table}] {name}: expected {least} {end} {most}, received {value}")


def one_of(table: str, name: str, value: object, known: Iterable[object]) -> None:
    """Raise :class:`InvalidJob` unless a parameter is one of the known values."""
    choices = tuple(known)
    if value not in choices:
        raise InvalidJob(
            f"[{table}] {name}: expected one of {', '.join(map(str, choices))}, received {value!r}"
        )
