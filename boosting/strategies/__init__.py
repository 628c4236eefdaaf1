"""The strategies, one protocol a module, and the table that names them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boosting.ports import Strategy

TABLE: dict[str, tuple[str, str]] = {
    "bagging": ("boosting.strategies.bagging", "Bagging"),
    "fedxgbllr": ("boosting.strategies.fedxgbllr", "FedXGBllr"),
    "histogram": ("boosting.strategies.histogram", "Histogram"),
    "fedga": ("boosting.strategies.fedga", "FedGA"),
    "dp_tree": ("boosting.strategies.dp_tree", "DPTree"),
    "secureboost": ("boosting.strategies.secureboost", "SecureBoost"),
}
"""Name in job files to module and dataclass; a module is imported when it is asked for."""


def strategy_type(name: str) -> type[Strategy]:
    """Return the dataclass of a strategy; its name is a key of :data:`TABLE`."""
    module, kind = TABLE[name]
    found: type[Strategy] = getattr(importlib.import_module(module), kind)
    return found
