"""``hedgerow serve``: scores of models on request; needs the extra ``serve``."""

from __future__ import annotations

import asyncio
import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from hedgerow.boosting.errors import DataWarning, FederationError
from hedgerow.services.process.terminal import command, wants_json

if TYPE_CHECKING:
    from hedgerow.client_agent.serving.config import ServeSettings
    from hedgerow.coordinator.operator.drifting import Counted
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
    def inputs(self) -> Mapping[str, bool]:
        """Features in order, and whether each is a text."""
        schema, known = self.model.schema, self.model.ensemble.category_names
        if schema is not None:
            return {feature.name: feature.is_categorical for feature in schema.features}
        texts = known or ((),) * self.model.n_features
        return {name: bool(words) for name, words in zip(self.model.features, texts, strict=True)}

    def score(self, rows: Any) -> tuple[Floats, dict[int, tuple[str, ...]]]:
        """Return predictions of an Arrow table, and by row the features of unknown texts."""
        from hedgerow.client_agent.serving.rows import unknown_texts

        dataset = self.model.coded(rows, "the rows")
        unknown = unknown_texts(dataset.X, rows, dataset.schema.features)
        return self.model.predictions(self.model.margins(dataset)), unknown

    def contributions(self, rows: Any) -> Floats:
        """Return contributions of an Arrow table."""
        found = self.model.shap(rows)
        return found if found.ndim == 3 else found[:, np.newaxis]

    def watch(self, reference: Path, max_psi: float) -> _Watch:
        """Return what compares scored rows with a reference; raises DataError."""
        from hedgerow.coordinator.operator.library.reference import load

        return _Watch(self.model, load(reference), max_psi)


class _Watch:
    """Counts of scored rows by the cells of a reference."""

    def __init__(self, model: Model, told: dict[str, Any], max_psi: float) -> None:
        from hedgerow.coordinator.operator.library import reference

        self._model, self._max_psi = model, max_psi
        self._told = reference.beside(model, told)
        self._counts: tuple[Counted, ...] = ()
        self._n_rows = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are compared."""
        score = [self._told["score"]["name"]] if "score" in self._told else []
        return (*(one["name"] for one in self._told["columns"]), *score)

    def count(self, rows: Any) -> int:
        """Count the rows of an Arrow table; return how many there are since the last result."""
        from hedgerow.coordinator.operator import drifting
        from hedgerow.coordinator.operator.library import reference

        data = self._model.coded(rows, "the rows")
        scores = reference.scores_of(self._model, data)
        now = drifting.counted(self._told, data, "the rows", scores)
        if self._counts:
            now = tuple(a.and_of(b) for a, b in zip(self._counts, now, strict=True))
        self._counts, self._n_rows = now, self._n_rows + data.n_samples
        return self._n_rows

    def result(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Return each column's index, and the columns that have drifted; count from 0 again."""
        from hedgerow.coordinator.operator import drifting

        found = drifting.compared(self._counts)
        self._counts, self._n_rows = (), 0
        indices = {one.column: one.psi for one in found}
        return indices, tuple(drifting.worst(found, self._max_psi))


def _open(path: Path) -> _Opened:
    from hedgerow.coordinator.operator.library.models import open_model

    return _Opened(open_model(path))


def _settings_of(run: Path, port: int, reference: Path | None) -> tuple[ServeSettings, str]:
    """Return settings that serve a run, or a model file, on loopback, and the model's name."""
    from hedgerow.client_agent.serving.config import (
        LOOPBACK,
        Caller,
        Drift,
        Served,
        ServeSettings,
    )
    from hedgerow.coordinator.operator.library.models import owners, report_of

    file = run
    if run.is_dir():
        report = report_of(run)
        if report["strategy"] == "secureboost":
            raise FederationError(
                f"{run}: a vertical model is scored with the other parties' agents: "
                "`hedgerow help serve.toml` has the settings for --config"
            )
        if silos := owners(run):
            raise FederationError(
                f"{run}: each silo has a model of its own: serve "
                + " or ".join(str(run / "silos" / silo / "model.ubj") for silo in silos)
            )
        if not report["model"]:
            raise FederationError(f"{run}: the run ended without a model")
        file = run / str(report["model"])
    folder = (run if run.is_dir() else run.parent).resolve()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in folder.name)
    try:
        served = Served(
            path=file, digest=hashlib.sha256(file.read_bytes()).hexdigest(),
            drift=None if reference is None else Drift(reference=reference),
        )  # fmt: skip
    except OSError as error:
        raise FederationError(f"{file}: {error.strerror}") from error
    caller = Caller(
        models=(name,), explain=True, max_rows=65_536, rows_per_minute=10**9, rows_per_day=10**12
    )
    made = ServeSettings(
        listen=f"127.0.0.1:{port}", models={name: served}, callers={LOOPBACK: caller},
        state=folder / "serve",
    )  # fmt: skip
    return made, name


@command("serve")
@click.argument("run", required=False, type=click.Path(path_type=Path, exists=True))
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings.")
@click.option("--port", type=click.IntRange(0, 65535), default=8480, help="Of RUN; 0: a free one.")
@click.option(
    "--reference",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Of RUN: counts by `hedgerow reference`, to compare scored rows with.",
)
def main(run: Path | None, config: Path | None, port: int, reference: Path | None) -> None:
    """Serve scores of models by HTTP; with the other parties' agents where a model is vertical.

    RUN, a run folder or a model file, is served on this machine alone. With --config it is what
    the settings say: `hedgerow help serve.toml`.
    """
    from hedgerow.client_agent.serving.config import ServeSettings
    from hedgerow.client_agent.serving.process import run as serve
    from hedgerow.crypto.allocator import keep_freed_memory
    from hedgerow.services.process import logs
    from hedgerow.services.process.private import keep_private

    if (run is None) == (config is None):
        raise click.UsageError("expected either RUN or --config FILE")
    if config is not None and reference is not None:
        raise click.UsageError("--reference is of RUN; with --config it is models.NAME.drift")
    keep_freed_memory()
    warnings.simplefilter("ignore", DataWarning)  # what it would say of a row is in the answer
    try:
        import starlette  # noqa: F401  before it is said where to post to
        import uvicorn  # noqa: F401

        open_model = _open
        if run is not None:
            loaded, name = _settings_of(run, port, reference)
            logs.configure(json=wants_json(), level=loaded.log_level)
            open_model = lambda path: _open(run)  # noqa: E731
            example = {"instances": [dict.fromkeys(open_model(run).inputs)]}
            click.echo(
                f"POST {json.dumps(example)} to http://127.0.0.1:{port}/v1/models/{name}:predict",
                err=True,
            )
        else:
            assert config is not None
            loaded = logs.configured(ServeSettings, config)
        keep_private(loaded.state)
        asyncio.run(serve(loaded, config, open_model))
    except ModuleNotFoundError as error:
        raise FederationError(f"{error.name} is missing: pip install 'hedgerow[serve]'") from error


if __name__ == "__main__":
    main()
