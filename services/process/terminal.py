"""What every command shares: ``--json``, an error as one line, tables that cut nothing off.

A command says its result once, by :func:`tell`: as a document for programs and as text for
people. docs/messages.md says how both are phrased.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any
from warnings import catch_warnings

import click

from hedgerow.boosting.errors import DataWarning, FederationError
from hedgerow.services.process.texts import one_line, visible

_KEY = "hedgerow.json"
NARROWEST = 6
"""Width to which a column of a table on a terminal may shrink."""


class Refused(click.ClickException):
    """Bad input: one line, exit code 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


_log_end: list[Callable[[str, str], None]] = []


def ends_as(say: Callable[[str, str], None]) -> None:
    """Have a process that serves say its last line like this: its name, and why it ends."""
    _log_end[:] = [say]


class _Ended(Refused):
    """What ended a process that serves: the line is the last of its log."""

    def __init__(self, process: str, why: str) -> None:
        super().__init__(f"{process}: {why}")
        self._said = process, one_line(why)

    def show(self, file: IO[Any] | None = None) -> None:
        if _log_end:
            _log_end[0](*self._said)
        else:
            click.echo(self.format_message(), file, err=True)


class _OneLine(click.Command):
    """Ends what goes wrong in a command by one line on standard error and an exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Of each command itself: click keeps the option as the first context made it.
        settings = {"help_option_names": ["-h", "--help"], **kwargs.get("context_settings", {})}
        super().__init__(*args, **{**kwargs, "context_settings": settings})

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; under ``--json`` the line is ``{"error": ...}``."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            ended = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            if not standalone_mode:
                return ended
            sys.exit(ended if isinstance(ended, int) else 0)
        except (click.ClickException, FederationError, OSError, click.Abort) as error:
            if not standalone_mode:
                raise
            problem = _problem(error)
        if "--json" in words:
            click.echo(json.dumps({"error": problem.format_message()}), err=True)
        else:
            problem.show()
        sys.exit(problem.exit_code)


def _problem(error: BaseException) -> click.ClickException:
    if isinstance(error, click.ClickException):
        return error
    if isinstance(error, click.Abort):
        return click.ClickException("interrupted")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Refused(f"{where}{error.strerror or error}")
    return Refused(str(error))


class JsonCommand(_OneLine):
    """A command with ``--json``; one that serves begins its last line with the process' name."""

    def __init__(self, *args: Any, process: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = process
        self.params.append(
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                expose_value=False,
                callback=_note,
                help="Print JSON.",
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function."""
        if self._process:
            _log_end.clear()  # until its settings say how it logs
        try:
            with catch_warnings():
                warnings.showwarning = _warned(warnings.showwarning)
                return super().invoke(ctx)
        except (FederationError, OSError) as error:
            if not self._process:
                raise
            raise _Ended(self._process, _problem(error).format_message()) from error


def _warned(others: Callable[..., None]) -> Callable[..., None]:
    """Return what shows a warning about a table as one line of standard error."""

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            click.echo(f"warning: {one_line(str(message))}", err=True)
        else:
            others(message, category, *where, **more)

    return show


class JsonGroup(_OneLine, click.Group):
    """A group of such commands."""

    command_class = JsonCommand


def command(process: str = "") -> Callable[[Callable[..., Any]], JsonCommand]:
    """Make a command of a function; ``process`` is the name of one that serves."""
    return click.command(cls=JsonCommand, process=process)


def group() -> Callable[[Callable[..., Any]], JsonGroup]:
    """Make a group of a function."""
    return click.group(cls=JsonGroup)


def _note(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.meta[_KEY] = value


def wants_json() -> bool:
    """Return whether the running command was given ``--json``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_KEY))


def utc(seconds: float) -> str:
    """Return a time as people read it, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def tell(document: Any, shown: str | Callable[[], None]) -> None:
    """Print a command's result.

    Parameters
    ----------
    document : Any
        What JSON can hold: printed in one line under ``--json``.
    shown : str or callable
        What people read instead, or what prints it.
    """
    if wants_json():
        click.echo(json.dumps(document))
    elif callable(shown):
        shown()
    else:
        click.echo(visible(shown))


def listing(
    headings: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    title: str = "",
    keep: Iterable[str] = (),
    right: Iterable[str] = (),
) -> None:
    """Print a table: framed on a terminal, plain aligned columns of full width elsewhere.

    Parameters
    ----------
    rows : iterable
        Cells; None and empty texts are shown as a dash.
    keep : iterable of str
        Headings of columns that are neither cut nor broken, however narrow the terminal is, such
        as identifiers; other cells continue on the next line.
    right : iterable of str
        Headings of numbers.
    """
    from rich.console import Console

    console, right = Console(), tuple(right)
    if not console.is_terminal:
        if title:
            click.echo(title)
        for line in aligned(headings, rows, right):
            click.echo(line)
        return
    from rich.markup import escape
    from rich.table import Table

    cells, keep = _cells(rows), tuple(keep)
    table, least = Table(title=title or None, title_justify="left"), 1
    for k, heading in enumerate(headings):
        wide = max([len(heading), *(len(row[k]) for row in cells)]) if heading in keep else None
        least += 3 + (wide or NARROWEST)
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            overflow="fold",
            no_wrap=heading in keep,
            min_width=wide,
        )
    for row in cells:
        table.add_row(*map(escape, row))
    # Wider than the terminal rather than cut: the terminal breaks its lines itself.
    console.print(table, width=max(console.width, least), crop=False)


def _cells(rows: Iterable[Iterable[object]]) -> list[list[str]]:
    return [["–" if cell in (None, "") else one_line(str(cell)) for cell in row] for row in rows]


def aligned(
    headings: Sequence[str], rows: Iterable[Iterable[object]], right: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines of a table in plain columns, as wide as their cells; see :func:`listing`."""
    cells = [list(headings), *_cells(rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        )
        yield "  ".join(padded).rstrip()
