"""Libraries that few tests need: all workers import all test modules, and few run these tests."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # what pytest asks of everything that it collects
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
