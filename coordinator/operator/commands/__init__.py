"""The operator's commands, one module a command or family; loaded when they are called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from hedgerow.boosting.errors import FederationError


class Refused(click.ClickException):
    """Bad input: one line, exit code 2."""

    exit_code = 2


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what the project raises for bad input into one line and exit code 2."""
    try:
        yield
    except FederationError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Refused(f"{where}{error.strerror or error}") from error
