"""The one-shot ``tables`` of docker-compose.yml: the Adult table, cut into each silo's volume.

Rows of it for the horizontal silos, columns of its first rows for the vertical profile's parties.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet

TABLE = Path("/demo/adult.parquet")
ROOT = Path("/tables")
SILOS = ("silo-0", "silo-1", "silo-2")
PARTIES = {
    "guest": ("label", "age", "sex", "race", "education", "native-country"),
    "host-0": ("workclass", "occupation", "hours-per-week", "fnlwgt"),
    "host-1": ("capital-gain", "capital-loss", "marital-status", "relationship"),
}
VERTICAL_ROWS = 8000
"""Each row's gradients are encrypted in each round, by as little as one old core."""


def main() -> None:
    """Cut the table, unless that has been done."""
    wanted = {f"{name}.parquet": ROOT / name / "table.parquet" for name in (*SILOS, "test")}
    _cut(TABLE, wanted, "--silos", str(len(SILOS)))
    parties = ";".join(f"{name}:{','.join(columns)}" for name, columns in PARTIES.items())
    wanted = {f"{name}.parquet": ROOT / name / "table.parquet" for name in PARTIES}
    wanted |= {f"test-{name}.parquet": ROOT / name / "test.parquet" for name in PARTIES}
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / TABLE.name
        pyarrow.parquet.write_table(
            pyarrow.parquet.read_table(TABLE).slice(0, VERTICAL_ROWS), first
        )
        _cut(first, wanted, "--parties", parties)


def _cut(table: Path, wanted: dict[str, Path], *how: str) -> None:
    if all(path.exists() for path in wanted.values()):
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "hedgerow", "split", str(table),
             *how, "--test", "0.25", "--seed", "7", "--out", folder],
            check=True,
        )  # fmt: skip
        for name, path in wanted.items():
            shutil.copyfile(Path(folder) / name, path)


if __name__ == "__main__":
    main()
