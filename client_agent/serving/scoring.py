"""Requests for scores: who may ask for what, by which model, and what is counted of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import structlog

from hedgerow.boosting.errors import (
    DataError,
    FederationError,
    InvalidJob,
    OfferRejected,
    Unauthorised,
)
from hedgerow.boosting.strategies.secureboost.model import ActivePart, is_part
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.serving import models as served
from hedgerow.client_agent.serving.config import Drift, Served, ServeSettings
from hedgerow.client_agent.serving.meter import RowMeter, renew
from hedgerow.client_agent.serving.models import (
    AnyHorizontalModel,
    HorizontalModel,
    OpenModel,
    ServedModel,
    VerticalModel,
    WindowedDrift,
)
from hedgerow.client_agent.serving.rows import PartColumns, file_stamp, open_rows, stamp
from hedgerow.services.process import settings
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.rpc.scoring import Explanation, RowToScore, Scores
from hedgerow.services.rpc.sealed import ScoringClient

log = structlog.get_logger()

LOOK_SECONDS = 2.0
"""Time between two looks for other settings, models and rows."""
OUTCOMES = ("scored", "fallback", "explained", "error")
"""How a request for scores ends."""
KIND = "Scores"
REVEALS = "To a caller of the own organisation, the scores of rows that it names."


class Scoring:
    """The models that are served, and the callers that may use them.

    Parameters
    ----------
    file : Path or None
        Of the settings: its models, callers and limits take effect when it changes.
    end : ScoringClient or None
        For vertical models.
    """

    def __init__(
        self,
        config: ServeSettings,
        file: Path | None,
        ledger: SiloLedger,
        metrics: Metrics,
        open_model: OpenModel,
        end: ScoringClient | None,
    ) -> None:
        self._config, self._file, self._ledger = config, file, ledger
        self._metrics, self._open, self._end = metrics, open_model, end
        self.models: dict[str, ServedModel] = {}
        self._stamps: dict[str, object] = {}
        self._file_stamp: object = None
        self._callers: dict[str, RowMeter] = {}
        self._asked: dict[str, RowMeter] = {}

    async def start(self) -> None:
        """Load all models.

        Raises
        ------
        FederationError
            One cannot be used.
        """
        self._file_stamp = file_stamp(self._file)
        await self._take(self._config, first=True)
        if self._end is not None:
            end = self._end
            self._metrics.parties_away.set_function(lambda: float(len(self._away(end))))

    async def follow(self) -> None:
        """Reload settings, models and rows until cancelled; unusable ones change nothing."""
        said = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                config = self._config
                found = await asyncio.to_thread(file_stamp, self._file)
                if self._file is not None and found != self._file_stamp:
                    config = await asyncio.to_thread(settings.load, ServeSettings, self._file)
                    self._narrow(config)
                await self._take(config)
                self._file_stamp, said = found, ""
            except (FederationError, OSError) as error:  # retried: a party may be away
                if str(error) != said:
                    said = str(error)
                    log.error("models not read again", why=said)

    def _narrow(self, config: ServeSettings) -> None:
        """Withdraw from callers what settings no longer give, before models are reloaded."""
        callers = {}
        for name, had in self._config.callers.items():
            if (has := config.callers.get(name)) is not None:
                models = tuple(model for model in had.models if model in has.models)
                kept = {"models": models, "explain": had.explain and has.explain}
                callers[name] = had.model_copy(update=kept)
        self._config = self._config.model_copy(update={"callers": callers})

    def close(self) -> None:
        """Write the ledger's lines of what was sent since the last ones."""
        for meter in (*self._callers.values(), *self._asked.values()):
            meter.close()

    @property
    def waiting(self) -> dict[str, tuple[str, ...]]:
        """Models that do not score now, and the parties that they wait for."""
        return {name: model.away for name, model in self.models.items() if model.away}

    async def predict(
        self, caller: str, name: str, rows: Sequence[RowToScore]
    ) -> tuple[str, Scores]:
        """Return the digest of a model, and scores of rows.

        Raises
        ------
        FederationError
            The caller may not, the rows are malformed, or a party is away.
        """
        model, meter = self._admitted(caller, name, rows)
        with self._counting(name, len(rows)) as ended:
            found = await model.score(rows)
            ended.append("fallback" if found.fallback else "scored")
        meter.sent(name, found.values.tobytes())
        return model.digest, found

    async def explain(
        self, caller: str, name: str, rows: Sequence[RowToScore], *, totals: bool
    ) -> tuple[str, Explanation]:
        """Return the digest of a model, and contributions to the margins of rows.

        Raises
        ------
        FederationError
            As :meth:`predict`.
        """
        model, meter = self._admitted(caller, name, rows)
        if not self._config.callers[caller].explain:
            raise Unauthorised(f"{caller} may not ask for contributions")
        with self._counting(name, len(rows)) as ended:
            found = await model.explain(rows, totals=totals)
            ended.append("explained")
        meter.sent(name, found.values.tobytes())
        return model.digest, found

    def model(self, caller: str, name: str) -> ServedModel:
        """Return a model that a caller may use; raises Unauthorised or NotFound."""
        rules = self._config.callers.get(caller)
        if rules is None:
            raise Unauthorised(f"{caller or 'the caller'} is not among the callers")
        if name not in rules.models:
            raise NotFound(f"{caller} has no model {name!r}")
        return self.models[name]

    def classes(self, caller: str, name: str) -> tuple[str, ...]:
        """Return the names of a model's classes."""
        return self.model(caller, name).classes

    def _admitted(
        self, caller: str, name: str, rows: Sequence[RowToScore]
    ) -> tuple[ServedModel, RowMeter]:
        model = self.model(caller, name)
        if not rows:
            raise OfferRejected("rows: expected at least one")
        meter = self._callers[caller]
        meter.admit(name, len(rows))
        return model, meter

    @contextlib.contextmanager
    def _counting(self, name: str, n_rows: int) -> Iterator[list[str]]:
        """Count the rows of a request by how it ended: what is put into the list, or an error."""
        began, ended = time.monotonic(), list[str]()
        try:
            yield ended
        finally:
            self._metrics.scored_rows.labels(name, *(ended or ("error",))).inc(n_rows)
            self._metrics.score_seconds.labels(name).observe(time.monotonic() - began)

    def _away(self, end: ScoringClient) -> set[str]:
        models = (m for m in self.models.values() if isinstance(m, VerticalModel))
        return {party for model in models for party in model.parties if end.away(party) is not None}

    async def _take(self, config: ServeSettings, *, first: bool = False) -> None:
        """Load the models that have changed, then replace all at once."""
        models, stamps = dict[str, ServedModel](), dict[str, object]()
        for name, wanted in config.models.items():
            stamps[name] = await asyncio.to_thread(_stamps, wanted)
            same = (config.ask, config.policy) == (self._config.ask, self._config.policy)
            if same and stamps[name] == self._stamps.get(name):
                models[name] = self.models[name]
                continue
            models[name] = await asyncio.to_thread(self._loaded, name, wanted, config)
            if not first and isinstance(models[name], VerticalModel):
                await models[name].check()  # type: ignore[attr-defined]
            log.info("model", name=name, digest=models[name].digest[:12])
        for name, earlier in self._config.models.items():
            now = config.models.get(name)
            if earlier.drift is not None and (now is None or now.drift is None):
                self._metrics.forget_drift(name)
        for name in models:  # there before anything is counted
            self._metrics.score_seconds.labels(name)
            for outcome in OUTCOMES:
                self._metrics.scored_rows.labels(name, outcome)
        renew(self._callers, self._ledger, KIND, REVEALS, config.callers)
        self.models, self._stamps, self._config = models, stamps, config

    def _loaded(self, name: str, wanted: Served, config: ServeSettings) -> ServedModel:
        try:
            found = served.file_digest(wanted.path)
        except OSError as error:
            raise DataError(f"models.{name}: {wanted.path}: {error.strerror}") from error
        if found != wanted.digest:
            raise DataError(
                f"models.{name}: {wanted.path} has the SHA-256 {found}, the settings say "
                f"{wanted.digest}"
            )
        if wanted.path.suffix == ".json" and is_part(wanted.path.read_bytes()):
            return self._vertical(name, wanted, config)
        model = self._open(wanted.path)
        return HorizontalModel(
            name, found, model, wanted.allow_missing, self._drift(name, model, wanted.drift, config)
        )

    def _drift(
        self, name: str, model: AnyHorizontalModel, wanted: Drift | None, config: ServeSettings
    ) -> WindowedDrift | None:
        """Return what counts a model's rows, if they are to be; its gauges are 0 until then."""
        if wanted is None:
            return None
        try:
            watch = model.watch(wanted.reference, config.max_psi(wanted))
        except DataError as error:
            raise DataError(f"models.{name}.drift: {error}") from error

        def told(indices: Mapping[str, float], drifted: tuple[str, ...]) -> None:
            self._metrics.tell_drift(name, indices, stale=bool(drifted))
            if drifted:
                log.warning("model stale", name=name, drifted=list(drifted))

        told(dict.fromkeys(watch.columns, 0.0), ())
        return WindowedDrift(watch, wanted.window_rows, told)

    def _vertical(self, name: str, wanted: Served, config: ServeSettings) -> VerticalModel:
        if wanted.drift is not None:
            raise InvalidJob(
                f"models.{name}.drift: expected none of a vertical model, whose rows no party has "
                "as a whole"
            )
        part = ActivePart.load(wanted.path.read_bytes())
        if self._end is None:
            raise InvalidJob(
                f"models.{name}: a vertical model needs coordinator and identity in the settings"
            )
        self._end.follow(part.parties[1:])
        asked = dict.fromkeys(part.parties[1:], config.ask)
        renew(self._asked, self._ledger, served.KIND, served.REVEALS, asked)
        rows = None
        if wanted.rows is not None:
            rows = open_rows(
                wanted.rows, PartColumns([*part.features, *part.base_margins], part.categories)
            )
        return VerticalModel(
            name,
            wanted.digest,
            part,
            rows,
            self._end,
            self._asked,
            allow_missing=wanted.allow_missing,
            fallback=wanted.fallback,
            timeout_seconds=config.timeout_seconds,
            patience_seconds=config.patience_seconds,
        )


def _stamps(wanted: Served) -> object:
    rows = None if wanted.rows is None else stamp(wanted.rows)
    reference = None if wanted.drift is None else file_stamp(wanted.drift.reference)
    return (wanted, file_stamp(wanted.path), rows, reference)
