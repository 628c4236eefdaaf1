"""``python -m hedgerow``: the command ``hedgerow``."""

from __future__ import annotations

from hedgerow.coordinator.cli import run

if __name__ == "__main__":
    run()
