"""The example of a strategy that is a package of its own, installed for this process."""

from __future__ import annotations

import importlib
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hedgerow.boosting import registry

SOURCE = Path(__file__).resolve().parents[1] / "examples/strategy-plugin"
NAME = "random-forest"


@cache
def installed() -> Any:
    """Return the package's module; from now on this process knows its strategy by its entry."""
    folder = Path(tempfile.mkdtemp(prefix="plugin-"))
    entry(folder, "hedgerow-forest", NAME, "hedgerow_forest:STRATEGY")
    sys.path[:0] = [str(SOURCE)]
    return importlib.import_module("hedgerow_forest")


def entry(
    folder: Path, distribution: str, name: str, value: str, group: str = "hedgerow.strategies"
) -> None:
    """Write what an installer writes of a distribution with one entry."""
    about = folder / f"{distribution.replace('-', '_')}-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n"
    )
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    sys.path[:0] = [str(folder)]
    importlib.invalidate_caches()
    registry._shipped.cache_clear()
