"""``hedgerow split``: one table cut into silos or parties."""

from __future__ import annotations

from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FOLDER, csv_dialect
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("data")
@click.option("--silos", type=click.IntRange(min=1), help="Number of silos.")
@click.option(
    "--scheme",
    default="iid",
    show_default=True,
    help="iid, linear, square, label-skew:ALPHA or column:NAME (a value a silo).",
)
@click.option(
    "--parties",
    help='Cut by columns: "guest:label,f0,f1;host:f2,f3"; "*" is all features that no party names.',
)
@click.option("--test", type=float, default=0.0, show_default=True, help="Share of test rows.")
@click.option(
    "--stratify",
    is_flag=True,
    help="Give the test part and silos of iid, linear and square each label's share.",
)
@click.option(
    "--group",
    default="",
    help="Column whose values are dealt in place of rows, such as a ranking's query.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--label",
    default="label",
    show_default=True,
    help="Label column, for label-skew, --stratify and --parties.",
)
@click.option("--out", type=FOLDER, required=True, help="Folder.")
@csv_dialect
def split(
    data: str,
    silos: int | None,
    scheme: str,
    parties: str | None,
    test: float,
    stratify: bool,
    group: str,
    seed: int,
    label: str,
    out: Path,
) -> None:
    """Cut DATA (Parquet, CSV, LIBSVM) into the tables of silos, to try a federation on one machine.

    Writes OUT/silo-0.parquet, OUT/silo-1.parquet, ... and OUT/test.parquet; with --parties
    OUT/PARTY.parquet and OUT/test-PARTY.parquet.
    """
    from hedgerow.boosting.tables import read_table
    from hedgerow.coordinator.operator import tables

    table = read_table(data)
    pieces = tables.cut(
        table, silos, scheme, parties, test, seed, label, stratify=stratify, group=group
    )
    paths = tables.write_pieces(pieces, out)
    keys = ("file", "rows", "columns", "key")
    files = [
        dict(zip(keys, (str(path), *piece.table.shape, piece.key), strict=True))
        for piece, path in zip(pieces, paths, strict=True)
    ]
    left_out = 0 if parties else table.num_rows - sum(p.table.num_rows for p in pieces)

    def show() -> None:
        n = 4 if any(piece.key for piece in pieces) else 3
        listing(
            ("file", "rows", "columns", "key")[:n],
            ((Path(str(f["file"])).name, f"{f['rows']:,}", f["columns"], f["key"])[:n]
             for f in files),
            title=str(out),
            right=("rows", "columns"),
        )  # fmt: skip
        if left_out:
            click.echo(f"{left_out} rows have no value in the key column: they are in no silo")

    tell({"files": files, "rows_without_key": left_out}, show)
