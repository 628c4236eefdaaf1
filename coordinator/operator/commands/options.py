"""Options that several commands have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.coordinator.operator import federations

if TYPE_CHECKING:
    from hedgerow.services.rpc.jobs import JobClient

Command = TypeVar("Command", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
RUN = click.Path(path_type=Path, exists=True, file_okay=False)
"""The folder of a finished run."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """How an operator reaches a coordinator: by options, the environment, or `hedgerow use`."""

    coordinator: str | None
    identity: Path | None
    server_name: str | None

    def needed(self) -> CoordinatorOptions:
        """Return this where it is complete.

        Raises
        ------
        click.UsageError
            Coordinator or identity is missing; says how both can be given.
        """
        for name, value in (("coordinator", self.coordinator), ("identity", self.identity)):
            if not value:
                raise click.UsageError(
                    f"no {name}: give --{name}, set HEDGEROW_{name.upper()}, or name a federation "
                    "once with `hedgerow use NAME --coordinator HOST:PORT --identity DIR`"
                )
        return self

    def client(self) -> JobClient:
        """Return a client of the coordinator."""
        from hedgerow.coordinator.operator.library.clients import client_for

        self.needed()
        assert self.coordinator
        assert self.identity
        return client_for(self.coordinator, self.identity, self.server_name)


def connected(*, required: bool = True) -> Callable[[Command], Command]:
    """Add the options that every command to a coordinator has, as one ``connection``.

    Parameters
    ----------
    required : bool
        Whether the command does nothing without.
    """
    options = (
        click.option(
            "--coordinator",
            envvar="HEDGEROW_COORDINATOR",
            metavar="HOST:PORT",
            help="Coordinator to talk to.",
        ),
        click.option(
            "--identity",
            envvar="HEDGEROW_IDENTITY",
            type=FOLDER,
            help="Folder with the operator's tls.key, tls.crt and ca.crt.",
        ),
        click.option(
            "--server-name",
            envvar="HEDGEROW_SERVER_NAME",
            help="Name in the coordinator's certificate where it is not the host.",
        ),
    )

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_connection(
            coordinator: str | None, identity: Path | None, server_name: str | None, **others: Any
        ) -> Any:
            known = federations.current()
            found = CoordinatorOptions(
                coordinator or known.coordinator,
                identity or known.identity,
                server_name or (None if coordinator else known.server_name),
            )
            return command(connection=found.needed() if required else found, **others)

        made: Any = with_connection
        for option in reversed(options):
            made = option(made)
        return made  # type: ignore[no-any-return]

    return decorate


def run_out(command: Command, *, what: str = "Run folder to write.") -> Command:
    """Add ``--out`` and ``--overwrite``."""
    overwrite = click.option(
        "--overwrite", is_flag=True, help="Take the result of an earlier run out of the folder."
    )
    return click.option("--out", type=FOLDER, required=True, help=what)(overwrite(command))


overwrite_option = click.option("--overwrite", is_flag=True, help="Replace a file that is there.")


def check_free(out: Path, overwrite: bool) -> None:
    """Raise :class:`DataError` where ``--out`` is there already and may not be replaced."""
    if out.exists() and not overwrite:
        raise DataError(f"--out: {out} is there already; --overwrite replaces it")


def silos_option(command: Command, *, required: bool = True) -> Command:
    """Add ``--silo``, and how tables are read that are CSV files."""
    return click.option(
        "--silo",
        "silos",
        multiple=True,
        required=required,
        metavar="NAME=FILE",
        help="A silo and its table; once for each silo.",
    )(csv_dialect(command))


def silo_tables(command: Command, *, required: bool = True) -> Command:
    """Add ``--silo`` and ``--test``."""
    test = click.option(
        "--test",
        "tests",
        multiple=True,
        metavar="FILE",
        help="Test rows: FILE for the model of all, SILO=FILE for rows of one silo.",
    )
    return silos_option(test(command), required=required)


ids_option = click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="[PARTY=]COLUMN",
    help="Column that names the rows, of a party or of all, where it is not _id.",
)


def parse_ids(given: Iterable[str], parties: Iterable[str]) -> dict[str, str]:
    """Return each party's column of identifiers; raises InvalidJob for a party that is none."""
    found = dict.fromkeys(parties, "_id")
    for text in given:
        party, equals, column = text.rpartition("=")
        if not column or (equals and party not in found):
            raise InvalidJob(f"--id takes COLUMN or PARTY=COLUMN, received {text!r}")
        found |= {party: column} if equals else dict.fromkeys(found, column)
    return found


may_send = click.option(
    "--may-send",
    "may_send",
    multiple=True,
    type=click.Choice(["hashes"]),
    help="What silos send in this run only: hashes of every row, of simfl.",
)


def csv_dialect(command: Command) -> Command:
    """Add ``--delimiter``, ``--decimal`` and ``--encoding``, by which it reads CSV files."""

    @functools.wraps(command)
    def run(*args: Any, delimiter: str, decimal: str, encoding: str, **more: Any) -> Any:
        from hedgerow.boosting.tables.delimited import csv_files

        with csv_files(delimiter, decimal, encoding):
            return command(*args, **more)

    decimal = click.option(
        "--decimal",
        default="",
        type=click.Choice(["", ".", ","]),
        help="Decimal sign of a CSV file; recognised if not given.",
    )
    delimiter = click.option(
        "--delimiter", default="", help="Between columns of a CSV file; recognised if not given."
    )
    encoding = click.option(
        "--encoding", default="",
        help="Of a CSV file, such as shift_jis; UTF-8, UTF-16 or Windows-1252 if not given.",
    )  # fmt: skip
    return cast("Command", delimiter(decimal(encoding(run))))


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
