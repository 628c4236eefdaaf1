"""Served models: horizontal ones score rows by themselves, vertical ones with the other parties."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import (
    DataError,
    LimitReached,
    OfferRejected,
    PolicyDeclined,
    Unreachable,
)
from hedgerow.boosting.strategies.secureboost.directions import ActiveTrees, by_party, unpacked
from hedgerow.boosting.strategies.secureboost.divisions import Bits, Divisions
from hedgerow.boosting.strategies.secureboost.model import WHOLE, ActivePart
from hedgerow.client_agent.serving.batches import Batches, PartyBits
from hedgerow.client_agent.serving.meter import RowMeter
from hedgerow.client_agent.serving.rows import MemoryRows, PartColumns, RowStore
from hedgerow.services.rpc.scoring import Explanation, RowToScore, Scores
from hedgerow.services.rpc.sealed import ScoringClient
from hedgerow.services.wire.answers import MOST_ID, Question

log = structlog.get_logger()

Floats = NDArray[np.float64]
NOT_SCORED = "the row of this identifier cannot be scored"
"""The same whichever party lacks it: where somebody is a customer is no caller's business."""
_COUNTED_ROWS = 256
_TOLD_DIGITS = 2
"""Of an index: one row of a window of a thousand hardly ever moves these."""
_SHOWN = 10
"""Names of features in an error."""
KIND = "Identifiers"
REVEALS = (
    "The identifiers of the rows that are scored, and when, to each party whose features the model "
    "has; not the score, the caller or the row's way through the trees."
)


class ServedModel(Protocol):
    """A model that can be asked."""

    name: str
    digest: str
    classes: tuple[str, ...]

    @property
    def inputs(self) -> Mapping[str, bool]:
        """Features that an instance has, in order, and whether each is a text."""

    @property
    def away(self) -> tuple[str, ...]:
        """Parties without which it does not score, and that are not there."""

    async def score(self, rows: Sequence[RowToScore]) -> Scores:
        """Return predictions."""

    async def explain(self, rows: Sequence[RowToScore], *, totals: bool) -> Explanation:
        """Return contributions, of parties where ``totals``."""


class AnyHorizontalModel(Protocol):
    """A horizontal model as :func:`hedgerow.load` returns it."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of classes."""

    @property
    def inputs(self) -> Mapping[str, bool]:
        """Features in order, and whether each is a text."""

    def score(self, rows: Any) -> tuple[Floats, Mapping[int, tuple[str, ...]]]:
        """Return predictions of an Arrow table, and by row the features of unknown texts."""

    def contributions(self, rows: Any) -> Floats:
        """Return contributions of an Arrow table, (n_rows, n_outputs, n_features + 1)."""

    def watch(self, reference: Path, max_psi: float) -> DriftWatch:
        """Return what compares scored rows with a reference; raises DataError."""


class DriftWatch(Protocol):
    """Counts of scored rows by the cells of a reference; no row is kept."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are compared."""

    def count(self, rows: Any) -> int:
        """Count the rows of an Arrow table; return how many there are since the last result."""

    def result(self) -> tuple[Mapping[str, float], tuple[str, ...]]:
        """Return each column's index, and the columns that have drifted; count from 0 again."""


OpenModel = Callable[[Path], AnyHorizontalModel]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class WindowedDrift:
    """Drift of the rows that a model scores, told once a window is full.

    Rows wait until :data:`_COUNTED_ROWS` are there, since counting a few costs as much; then counts
    are all that is kept.

    Parameters
    ----------
    told : callable
        Called with each column's index, rounded, and those that have drifted.
    """

    def __init__(
        self,
        watch: DriftWatch,
        window_rows: int,
        told: Callable[[Mapping[str, float], tuple[str, ...]], None],
    ) -> None:
        self._watch, self._window_rows, self._told = watch, window_rows, told
        self._waiting: list[Any] = []
        self._lock = asyncio.Lock()
        self.drifted: tuple[str, ...] = ()
        """Columns of the last full window that have."""

    async def add(self, table: Any) -> None:
        """Count an Arrow table's rows."""
        import pyarrow as pa

        self._waiting.append(table)
        if sum(own.num_rows for own in self._waiting) < _COUNTED_ROWS:
            return
        tables, self._waiting = self._waiting, []
        async with self._lock:
            try:
                whole = pa.concat_tables(tables, promote_options="permissive")
                if await asyncio.to_thread(self._watch.count, whole) < self._window_rows:
                    return
                indices, self.drifted = await asyncio.to_thread(self._watch.result)
            except Exception as error:  # tables and references may be anything; scores are told
                n_rows, why = sum(own.num_rows for own in tables), type(error).__name__
                log.warning("rows not counted for drift", rows=n_rows, error=why)
                return
            self._told({k: round(v, _TOLD_DIGITS) for k, v in indices.items()}, self.drifted)


@dataclass(slots=True)
class HorizontalModel:
    """A model that one silo has as a whole."""

    name: str
    digest: str
    model: AnyHorizontalModel
    allow_missing: bool = False
    drift: WindowedDrift | None = None
    classes: tuple[str, ...] = field(init=False)
    inputs: Mapping[str, bool] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = self.model.classes
        self.inputs = self.model.inputs

    @property
    def away(self) -> tuple[str, ...]:
        """Nobody is needed."""
        return ()

    async def score(self, rows: Sequence[RowToScore]) -> Scores:
        """Return predictions; see :class:`ServedModel`."""
        table, errors = self._table(rows)
        values, unknown = self.model.score(table)
        tell_unknown(self.name, unknown)
        found = Scores(values, errors, unknown=unknown)
        if self.drift is not None:
            await self.drift.add(table)
        return found

    async def explain(self, rows: Sequence[RowToScore], *, totals: bool) -> Explanation:
        """Return contributions; see :class:`ServedModel`."""
        table, errors = self._table(rows)
        values = await asyncio.to_thread(self.model.contributions, table)
        return Explanation(tuple(self.inputs), values, errors)

    def _table(self, rows: Sequence[RowToScore]) -> tuple[Any, dict[int, str]]:
        import pyarrow as pa

        if any(row.features is None for row in rows):
            raise OfferRejected("rows: expected objects with the model's features")
        names = tuple(self.inputs)
        check_brought([row.features for row in rows], names, allow_missing=self.allow_missing)
        try:
            columns = {name: [(row.features or {}).get(name) for row in rows] for name in names}
            return pa.table(columns), {}
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise OfferRejected("rows: a feature has values of several types") from None
        except OverflowError:
            raise OfferRejected("rows: a feature has a number that is too large") from None


def tell_unknown(model: str, unknown: Mapping[int, tuple[str, ...]]) -> None:
    """Tell the operator in how many rows a feature has a text that the model does not know."""
    if unknown:
        columns = Counter(name for names in unknown.values() for name in names)
        log.warning("unknown categories, taken as missing", model=model, rows=dict(columns))


def check_brought(
    rows: Sequence[Mapping[str, Any] | None], names: Sequence[str], *, allow_missing: bool
) -> None:
    """Check that callers bring the features of a model, and no others; None brings nothing.

    Raises
    ------
    OfferRejected
        Names the first row that does not.
    """
    known = set(names)
    for k, row in enumerate(rows):
        if row is None:
            continue
        if foreign := next((name for name in row if name not in known), ""):
            raise OfferRejected(f"rows: the model has no feature {foreign!r}")
        if not allow_missing and (absent := [name for name in names if name not in row]):
            shown = ", ".join(absent[:_SHOWN]) + (" …" if len(absent) > _SHOWN else "")
            raise OfferRejected(
                f"instances[{k}]: {len(absent)} of {len(names)} features are not there: {shown}; "
                "null says that a value is missing, and allow_missing = true of the model in the "
                "settings takes such rows"
            )


class VerticalModel:
    """The active party's part, and the parties that it asks.

    Parameters
    ----------
    meters : Mapping
        Rows about which each party is asked.
    allow_missing : bool
        Whether rows that callers bring may lack features.
    fallback : bool
        Whether the leading trees of the active party score while a party is away.
    timeout_seconds, patience_seconds : float
        As in the settings.
    """

    def __init__(
        self,
        name: str,
        digest: str,
        part: ActivePart,
        rows: RowStore | None,
        end: ScoringClient,
        meters: Mapping[str, RowMeter],
        *,
        allow_missing: bool,
        fallback: bool,
        timeout_seconds: float,
        patience_seconds: float,
    ) -> None:  # fmt: skip
        self.name, self.digest, self._part, self._rows = name, digest, part, rows
        self._end, self._meters = end, meters
        self._timeout, self._patience = timeout_seconds, patience_seconds
        self.classes = tuple(part.classes)
        self._columns = PartColumns([*part.features, *part.base_margins], part.categories)
        self.inputs = {name: name in part.categories for name in self._columns.names}
        self._allow_missing = allow_missing
        self._divisions, self._forest = Divisions.of(part), ActiveTrees.of(part)
        self._own = ActiveTrees.of(part, own=True) if fallback else None
        self._model = bytes.fromhex(part.digest)
        self.parties = tuple(
            party
            for party, n in zip(self._forest.parties, self._forest.n_divisions[1:], strict=True)
            if n
        )
        most = min((meter.limits.max_rows for meter in meters.values()), default=4096)
        self._batches = Batches(self._asked, most)

    @property
    def away(self) -> tuple[str, ...]:
        """Parties that are away; nobody where the own trees score without them."""
        if self._own is not None:
            return ()
        return tuple(party for party in self.parties if self._end.away(party) is not None)

    async def check(self) -> None:
        """Ask every party whether it has its part of the model.

        Raises
        ------
        FederationError
            One is away, or has it not.
        """
        question = Question(self._model, ())
        deadline = time.monotonic() + self._timeout
        await asyncio.gather(*(self._ask(p, question, deadline) for p in self.parties))

    async def score(self, rows: Sequence[RowToScore]) -> Scores:
        """Return predictions; see :class:`ServedModel`."""
        own, start, asked, errors, unknown = await self._directions(rows)
        if asked.away and self._own is not None:
            bits = self._own.joined(own[:, : self._own.n_divisions[0]], {})
            margins = self._own.margins(bits, start)
        else:
            margins = self._forest.margins(self._forest.joined(own, asked.bits), start)
        values = metrics.link(self._part.objective, margins.astype(np.float64))
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        tell_unknown(self.name, unknown)
        return Scores(values, errors, bool(asked.away), unknown)

    async def explain(self, rows: Sequence[RowToScore], *, totals: bool) -> Explanation:
        """Return contributions; see :class:`ServedModel`."""
        own, start, asked, errors, _ = await self._directions(rows)
        if asked.away:
            raise Unreachable(f"{asked.away}: the whole model cannot be explained")
        bits = self._forest.joined(own, asked.bits)
        values = await asyncio.to_thread(self._forest.contributions, bits, start)
        if totals:
            values, names = by_party(values, self._forest.players)
        else:
            names = tuple(
                self._part.features[k]
                if party == self._part.party
                else f"{party}:{k}"
                if k != WHOLE
                else party
                for party, k in self._forest.players
            )
        return Explanation(names, values, errors)

    async def _directions(
        self, rows: Sequence[RowToScore]
    ) -> tuple[
        Bits, NDArray[np.float32] | None, PartyBits, dict[int, str], dict[int, tuple[str, ...]]
    ]:
        """Return the active party's directions, base margins, what others say, errors of rows.

        The last are, by row, the features of unknown texts that a caller brings.

        What a caller brings is checked before its rows share a batch with others'.
        """
        ids = [row.id for row in rows]
        if self.parties and not all(0 < len(i) <= MOST_ID for i in ids):
            raise OfferRejected(
                f"rows: a vertical model needs an identifier of each, of at most {MOST_ID} "
                "characters"
            )
        X, errors, unknown = await self._own_values(rows)
        own, start = self._divisions.directions(X), None
        if self._part.base_margins:
            start = X[:, len(self._part.features) :]
            without = np.asarray(np.isnan(start).any(axis=1))
            bare = [k for k in np.flatnonzero(without).tolist() if k not in errors]
            looked = {k: NOT_SCORED for k in bare if rows[k].features is None}
            errors |= dict.fromkeys(bare, "the row has no base margin") | looked
            self._note(self._part.party, "no base margin", len(looked))
            start = np.where(without[:, None], np.float32(0), start)
        asked = await self._batches.ask(ids)
        return own, start, asked, {**asked.unknown, **errors}, unknown

    async def _asked(self, ids: Sequence[str]) -> PartyBits:
        """Ask all parties about rows, at the same time."""
        question, deadline = Question(self._model, tuple(ids)), time.monotonic() + self._timeout
        answers = await asyncio.gather(
            *(self._ask(party, question, deadline) for party in self.parties),
            return_exceptions=True,
        )
        bits: dict[str, Bits] = {}
        unknown: dict[int, str] = {}
        for party, answer in zip(self.parties, answers, strict=True):
            if isinstance(answer, Unreachable) and self._own is not None:
                return PartyBits({}, {}, str(answer))
            if isinstance(answer, BaseException):
                raise answer
            bits[party], missing = answer
            unknown |= dict.fromkeys(missing, NOT_SCORED)
            self._note(party, "no row of an identifier", len(missing))
        return PartyBits(bits, unknown)

    async def _own_values(
        self, rows: Sequence[RowToScore]
    ) -> tuple[NDArray[np.float32], dict[int, str], dict[int, tuple[str, ...]]]:
        """Return the active party's columns, base margins last, and the rows that it has not.

        The last are, by row, the features of unknown texts that a caller brings.
        """
        names = self._columns.names
        check_brought([r.features for r in rows], names, allow_missing=self._allow_missing)
        brought = [k for k, row in enumerate(rows) if row.features is not None]
        looked = [k for k, row in enumerate(rows) if row.features is None]
        X = np.full((len(rows), len(self._columns.names)), np.nan, np.float32)
        errors: dict[int, str] = {}
        unknown: dict[int, tuple[str, ...]] = {}
        if brought:
            X[brought], told = self._columns.brought([rows[k].features or {} for k in brought])
            unknown = {brought[k]: names for k, names in told.items()}
        if looked:
            if self._rows is None:
                raise OfferRejected("rows: this server has no table; bring the features")
            ids = [rows[k].id for k in looked]
            if isinstance(self._rows, MemoryRows):
                X[looked], present = self._rows.find(ids)
            else:
                X[looked], present = await asyncio.to_thread(self._rows.find, ids)
            missing = np.flatnonzero(~present).tolist()
            errors = {looked[k]: NOT_SCORED for k in missing}
            self._note(self._part.party, "no row of an identifier", len(missing))
        return X, errors, unknown

    def _note(self, party: str, why: str, n_rows: int) -> None:
        """Tell the operator, and no caller, which party cannot score rows; never which rows."""
        if n_rows:
            log.info("rows not scored", model=self.name, party=party, why=why, rows=n_rows)

    async def _ask(
        self, party: str, question: Question, deadline: float
    ) -> tuple[Bits, tuple[int, ...]]:
        """Return a party's directions, and positions of rows that it has not."""
        if question.ids:
            self._meters[party].admit(self._part.model, len(question.ids))
            self._meters[party].sent(self._part.model, "\n".join(question.ids).encode())
        while True:
            away = self._end.away(party)
            left = deadline - time.monotonic()
            if left <= 0 or (away is not None and away >= self._patience):
                raise Unreachable(f"party {party} is away")
            if away is not None:
                await asyncio.sleep(0.02)
                continue
            try:
                future = self._end.ask(party, question)
                answer = await asyncio.wait_for(asyncio.wrap_future(future), left)
                break
            except TimeoutError:
                self._end.silent(party, future)
                raise Unreachable(
                    f"party {party} has not answered within {self._timeout:g} s"
                ) from None
            except Unreachable:  # it went away meanwhile, and may be back soon
                continue
        if answer.refusal:
            refused = LimitReached if answer.later else PolicyDeclined
            raise refused(f"party {party} refused: {answer.refusal}")
        n_divisions = self._forest.n_divisions[1 + self._forest.parties.index(party)]
        if answer.n_divisions != n_divisions:
            raise DataError(
                f"party {party} has {answer.n_divisions} divisions in this model, its active "
                f"party counts {n_divisions}"
            )
        bits = unpacked(answer.directions, len(question.ids), n_divisions, party)
        return bits, answer.unknown
