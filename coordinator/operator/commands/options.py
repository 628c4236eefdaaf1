"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from hedgerow.boosting.errors import InvalidJob

Command = TypeVar("Command", bound=Callable[..., Any])


def silo_tables(command: Command) -> Command:
    """Add ``--silo`` and ``--test``."""
    test = click.option(
        "--test",
        "tests",
        multiple=True,
        metavar="FILE",
        help="Evaluation table; for vertical jobs PARTY=FILE, once for each party.",
    )
    silo = click.option(
        "--silo",
        "silos",
        multiple=True,
        required=True,
        metavar="NAME=FILE",
        help="A silo and its table; once for each silo.",
    )
    return silo(test(command))


def csv_dialect(command: Command) -> Command:
    """Add ``--delimiter`` and ``--decimal``."""
    decimal = click.option(
        "--decimal",
        default="",
        type=click.Choice(["", ".", ","]),
        help="Decimal sign of a CSV file; recognised if not given.",
    )
    delimiter = click.option(
        "--delimiter", default="", help="Between columns of a CSV file; recognised if not given."
    )
    return delimiter(decimal(command))


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Return ``NAME=FILE`` options as a mapping.

    Raises
    ------
    InvalidJob
        An option without ``=``, a name given twice, or a file that is not there.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not name or not path:
            raise InvalidJob(f"{option} takes NAME=FILE, received {pair!r}")
        if name in found:
            raise InvalidJob(f"{option}: {name} is given twice")
        if "://" not in path and not Path(path).is_file():
            raise InvalidJob(f"{option} {name}: no file {path}")
        found[name] = path
    return found
