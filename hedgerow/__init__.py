"""Hedgerow: gradient-boosted trees across organisations whose data must not move.

>>> import hedgerow
>>> job = hedgerow.Job("bagging", label="income", rounds=20, eta=0.1)
>>> run = hedgerow.local(job, silos={"north": north, "south": south}, test=test)  # doctest: +SKIP
>>> run.model.predict_proba(new)  # doctest: +SKIP

What these names stand for is imported when it is first used, so that ``import hedgerow`` is quick.
The folders of the repository (``boosting``, ``crypto``, ...) are parts of this package by links, so
that what is installed is ``hedgerow`` and nothing else (docs/adr/0001-one-package.md).
"""

from __future__ import annotations

import importlib

_LIBRARY = "hedgerow.coordinator.operator.library"
_PLACES = {
    "Client": f"{_LIBRARY}.clients",
    "Exploration": f"{_LIBRARY}.exploration",
    "FederationError": "hedgerow.boosting.errors",
    "Frame": f"{_LIBRARY}.frames",
    "Job": f"{_LIBRARY}.jobs",
    "Model": f"{_LIBRARY}.scoring",
    "Plan": f"{_LIBRARY}.jobs",
    "Run": f"{_LIBRARY}.running",
    "RunFailed": f"{_LIBRARY}.running",
    "connect": f"{_LIBRARY}.clients",
    "csv_files": "hedgerow.boosting.tables.delimited",
    "cv": f"{_LIBRARY}.crossing",
    "explore": f"{_LIBRARY}.exploration",
    "join": "hedgerow.joining",
    "load": f"{_LIBRARY}.models",
    "local": f"{_LIBRARY}.running",
    "plan": f"{_LIBRARY}.jobs",
    "Search": f"{_LIBRARY}.searching",
    "Site": "hedgerow.joining",
    "search": f"{_LIBRARY}.searching",
    "simulate": f"{_LIBRARY}.simulating",
    "split": f"{_LIBRARY}.simulating",
}
"""Where a public name is defined; ``__init__.pyi`` says the same to type checkers."""


def __getattr__(name: str) -> object:
    """Import what a public name stands for, once."""
    if name == "__version__":
        from importlib.metadata import version

        return globals().setdefault(name, version("hedgerow"))
    if name not in _PLACES:
        raise AttributeError(f"module 'hedgerow' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    """Return the public names beside those that are imported."""
    return sorted({*globals(), *_PLACES, "__version__"})
