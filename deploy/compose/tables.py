"""The one-shot ``tables`` of docker-compose.yml: the Adult table, cut into each silo's volume."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path("/tables")
SILOS = ("silo-0", "silo-1", "silo-2")


def main() -> None:
    """Cut the table, unless that has been done."""
    if all((ROOT / name / "table.parquet").exists() for name in (*SILOS, "test")):
        return
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(
            [sys.executable, "-m", "coordinator.cli", "split", "/demo/adult.parquet",
             "--silos", str(len(SILOS)), "--test", "0.25", "--seed", "7", "--out", name],
            check=True,
        )  # fmt: skip
        for part in (*SILOS, "test"):
            shutil.copyfile(Path(name) / f"{part}.parquet", ROOT / part / "table.parquet")


if __name__ == "__main__":
    main()
