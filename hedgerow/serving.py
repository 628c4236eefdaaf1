"""``hedgerow serve``: scores of models on request; needs the extra ``serve``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from hedgerow.boosting.errors import FederationError
from hedgerow.services.process.terminal import command, wants_json

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.scoring import Floats, Model


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model of the library as the server asks it."""

    model: Model

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of classes."""
        return self.model.classes

    @property
    def features(self) -> tuple[str, ...]:
        """Names of features."""
        return self.model.features

    def score(self, rows: Any) -> Floats:
        """Return predictions of an Arrow table."""
        dataset = self.model.coded(rows, "the rows")
        return self.model.predictions(self.model.margins(dataset))

    def contributions(self, rows: Any) -> Floats:
        """Return contributions of an Arrow table."""
        found = self.model.shap(rows)
        return found if found.ndim == 3 else found[:, np.newaxis]


def _open(path: Path) -> _Opened:
    from hedgerow.coordinator.operator.library.models import open_model

    return _Opened(open_model(path))


@command("serve")
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="TOML file of settings."
)
def main(config: Path) -> None:
    """Serve scores of models by HTTP; with the other parties' agents where a model is vertical."""
    from hedgerow.client_agent.serving.config import ServeSettings
    from hedgerow.client_agent.serving.process import check, run
    from hedgerow.crypto.allocator import keep_freed_memory
    from hedgerow.services.process import logs, settings
    from hedgerow.services.process.private import keep_private

    keep_freed_memory()
    try:
        loaded = settings.load(ServeSettings, config)
        logs.configure(json=loaded.log_json or wants_json(), level=loaded.log_level)
        check(loaded)
        keep_private(loaded.state)
        asyncio.run(run(loaded, config, _open))
    except ModuleNotFoundError as error:
        raise FederationError(f"{error.name} is missing: pip install 'hedgerow[serve]'") from error


if __name__ == "__main__":
    main()
