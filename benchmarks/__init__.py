"""Side-by-side measurements; each prints a table of what was measured."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def tables_folder(text: str) -> Path:
    """Return the folder of ``--data``, which is ``HEDGEROW_DATA`` where it is not given.

    Raises
    ------
    argparse.ArgumentTypeError
        It has no Parquet files.
    """
    folder = Path(text)
    if not any(folder.glob("*.parquet")):
        raise argparse.ArgumentTypeError(
            f"'{text}' has no Parquet files; name the folder of the tables of docs/results.md by "
            "--data or HEDGEROW_DATA"
        )
    return folder


def add_data(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark of those tables its option ``--data``."""
    default = os.environ.get("HEDGEROW_DATA", "data")
    parser.add_argument("--data", type=tables_folder, default=default, help="folder of tables")
