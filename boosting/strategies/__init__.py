"""The strategies, one protocol a module, and the table that names them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hedgerow.boosting.ports import Strategy

TABLE: dict[str, tuple[str, str]] = {
    "bagging": ("hedgerow.boosting.strategies.bagging.parameters", "Bagging"),
    "fedxgbllr": ("hedgerow.boosting.strategies.fedxgbllr.parameters", "FedXGBllr"),
    "histogram": ("hedgerow.boosting.strategies.histogram.parameters", "Histogram"),
    "fedga": ("hedgerow.boosting.strategies.fedga.parameters", "FedGA"),
    "dp_tree": ("hedgerow.boosting.strategies.dp_tree.parameters", "DPTree"),
    "secureboost": ("hedgerow.boosting.strategies.secureboost.parameters", "SecureBoost"),
}
"""Name in job files to module and dataclass; a module is imported when it is asked for."""


def strategy_type(name: str) -> type[Strategy]:
    """Return the dataclass of a strategy; its name is a key of :data:`TABLE`."""
    module, kind = TABLE[name]
    found: type[Strategy] = getattr(importlib.import_module(module), kind)
    return found
