"""Where ``train`` runs: in a federation, in silos of this process, or here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from xgboost.collective import get_processor_name

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.coordinator.operator.library.jobs import Job, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.running import Run

if TYPE_CHECKING:
    import pyarrow as pa

    from hedgerow.services.wire.job_view import FinishedRound
    from hedgerow.xgboost.scripted import SiteGradients, SiteMetric

__all__ = [
    "CommunicatorContext",
    "communicator_print",
    "get_processor_name",
    "get_rank",
    "get_world_size",
    "is_distributed",
    "simulate",
]

COLUMNS = (
    "silos of a histogram job have rows of their own; columns of the same people are a job of "
    "secureboost: hedgerow.Job('secureboost')"
)
"""Why no site has some columns of all rows."""


class Collective(Protocol):
    """A site's place in a federation, and how it trains there."""

    rank: int

    @property
    def world_size(self) -> int:
        """How many sites there are."""

    def train(
        self,
        job: Job,
        table: pa.Table,
        tests: Mapping[str, pa.Table],
        *,
        validation: pa.Table | None = None,
        on_round: Callable[[FinishedRound], bool | None] | None = None,
        gradients: SiteGradients | None = None,
        metrics: Mapping[str, SiteMetric] | None = None,
    ) -> Run:
        """Train; ``on_round`` is called with each round, and ends training where it is true."""


@dataclass(frozen=True)
class Joined:
    """The context that ``train`` runs in."""

    site: Collective
    settings: Mapping[str, Any]
    """Keys of a job file that all jobs of this context have, unless their parameters say others."""
    local: bool
    """Whether all rows are here: any set is scored then, and a job waits for the script."""


_joined: Joined | None = None


def joined() -> Joined | None:
    """Return the context that this process is in; None outside of one.

    A script that :func:`hedgerow.join` has made a site is in one, too.
    """
    joining = sys.modules.get("hedgerow.joining")
    if _joined is not None or joining is None or not joining.open_sites:
        return _joined
    if len(joining.open_sites) > 1:
        names = ", ".join(site.silo for site in joining.open_sites)
        raise InvalidJob(f"this process has joined as {names}: expected one site a process")
    return Joined(joining.open_sites[0], {}, local=False)


@contextmanager
def _within(site: Collective, settings: Mapping[str, Any], *, local: bool) -> Iterator[None]:
    """Let ``train`` of this process, in all of its threads, run at a site."""
    global _joined
    if _joined is not None:
        raise InvalidJob("this process is in a context already: leave that one first")
    _joined = Joined(site, settings, local)
    try:
        yield
    finally:
        _joined = None


def get_rank() -> int:
    """Return this site's number, from 0; 0 outside of a context."""
    return context.site.rank if (context := joined()) else 0


def get_world_size() -> int:
    """Return how many sites there are; 1 outside of a context."""
    return context.site.world_size if (context := joined()) else 1


def is_distributed() -> bool:
    """Whether this is inside a context."""
    return joined() is not None


def communicator_print(msg: Any) -> None:
    """Print a message here, as XGBoost does."""
    print(str(msg).strip(), flush=True)


@dataclass
class _Silos:
    """Silos of this process, to which the rows of each training are dealt."""

    world_size: int
    seed: int
    crypto: bool
    rank: int = 0
    grown: dict[str, bytes] = field(default_factory=dict)
    """Models of the trainings so far, by SHA-256, as silos of a federation keep them."""

    def train(
        self,
        job: Job,
        table: pa.Table,
        tests: Mapping[str, pa.Table],
        *,
        validation: pa.Table | None = None,
        on_round: Callable[[FinishedRound], bool | None] | None = None,
        gradients: SiteGradients | None = None,
        metrics: Mapping[str, SiteMetric] | None = None,
    ) -> Run:
        """Train as ``hedgerow.simulate`` does; any set is one of ``tests`` here."""
        units = np.arange(table.num_rows)
        if job.parameters.columns.qid:  # queries are dealt whole
            units = table.column(job.parameters.columns.qid).to_numpy()
        order = np.random.default_rng(self.seed).permutation(int(units.max(initial=-1)) + 1)
        parts = np.array_split(order, self.world_size)
        rows = [np.flatnonzero(np.isin(units, part)) for part in parts]
        dealt = {f"silo-{k}": table.take(own) for k, own in enumerate(rows)}
        job = job.on(dealt, has_test=bool(tests))
        own = {name: table_of(job.parameters, name, part) for name, part in dealt.items()}
        if gradients is not None:
            for name, part in zip(own, rows, strict=True):
                own[name] = replace(own[name], gradients=gradients.of(part))
        scored = {
            name: replace(table_of(job.parameters, name, part), metric=(metrics or {}).get(name))
            for name, part in tests.items()
        }
        told, starting = job.parameters.warm_start, b""
        if told is not None:
            if told.model not in self.grown:
                raise InvalidJob(
                    "xgb_model: expected a booster that train has returned in this context"
                )
            starting = self.grown[told.model]
        conditions = Conditions(
            starting_model=starting,
            crypto=self.crypto,
            codecs=self.crypto,
            watch=on_round or (lambda finished: None),
        )
        result = federate(job, own, conditions, scored or None)
        folder = Path(tempfile.mkdtemp(prefix="hedgerow-run-"))
        try:
            result.write(folder)
            model = result.files[MODEL_FILE]
            self.grown[hashlib.sha256(model).hexdigest()] = model
            return Run(folder, temporary=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def simulate(
    silos: int = 3, *, seed: int = 0, crypto: bool = False, **settings: Any
) -> Iterator[None]:
    """Deal the rows of each training in this context to silos of this process.

    The model is that of a federation whose silos have these rows: for trying what a script does
    before data is elsewhere.

    Parameters
    ----------
    silos : int
        How many; one is pooled training by the same engine.
    seed : int
        By which rows are dealt.
    crypto : bool
        Whether sums are masked, too; the model is the same.
    **settings
        As of :class:`CommunicatorContext`: ``hedgerow_min_cell=1`` and other keys of a job file.
    """
    if silos < 1:
        raise InvalidJob(f"silos: expected at least 1, received {silos}")
    site = _Silos(silos, seed, crypto)
    with _within(site, _settings_of(settings), local=True):
        yield


class CommunicatorContext:
    """XGBoost's context, by its plugin's arguments: the same script runs in every organisation.

    Parameters
    ----------
    dmlc_communicator : str
        ``federated``.
    hedgerow_identity : path
        This silo's folder: see :func:`hedgerow.join`.
    federated_server_address : str, optional
        ``HOST:PORT`` of the coordinator, where it is not the folder's.
    federated_world_size, federated_rank : int, optional
        How many sites there are, and which one this is.
    hedgerow_silos : sequence of str, optional
        Names of all sites, of which no others are taken.
    hedgerow_wait : float
        Seconds to wait for the others.
    **settings
        ``hedgerow_KEY`` for keys of a job file that all trainings have.

    Raises
    ------
    InvalidJob
        An argument that there is not, or that the folder has.
    """

    def __init__(
        self,
        *,
        hedgerow_identity: str | os.PathLike[str] | None = None,
        hedgerow_silos: Sequence[str] | None = None,
        hedgerow_wait: float = 600.0,
        **arguments: Any,
    ) -> None:
        self.args = arguments
        given = {name.lower(): value for name, value in arguments.items()}
        kind = given.pop("dmlc_communicator", None)
        if kind != "federated":
            raise InvalidJob(
                f"dmlc_communicator: expected 'federated', received {kind!r}; silos of this "
                "process are simulate's"
            )
        if hedgerow_identity is None:
            raise InvalidJob("hedgerow_identity: expected this silo's folder, received none")
        names = {"federated_server_address": "server", "federated_world_size": "world_size",
                 "federated_rank": "rank"}  # fmt: skip
        self._join = {ours: given.pop(name, None) for name, ours in names.items()}
        for name in given:
            if re.fullmatch("federated_(server|client)_(cert|key)(_path)?", name):
                raise InvalidJob(f"{name}: keys and certificates are in hedgerow_identity's folder")
        own = {"identity": hedgerow_identity, "silos": hedgerow_silos, "wait": hedgerow_wait}
        self._join |= own
        self._settings = _settings_of(given)
        self._open: ExitStack | None = None

    def __enter__(self) -> dict[str, Any]:
        from hedgerow.joining import join

        with ExitStack() as opened:
            site = opened.enter_context(join(**self._join))
            opened.enter_context(_within(site, self._settings, local=False))
            self._open = opened.pop_all()
        return self.args

    def __exit__(self, *raised: Any) -> None:
        assert self._open is not None
        self._open.__exit__(*raised)


def _settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a job file that arguments ``hedgerow_KEY`` give."""
    for name in arguments:
        if name in ("data_split_mode", "dsplit"):
            raise InvalidJob(f"{name}: {COLUMNS}")
        if not name.startswith("hedgerow_"):
            raise InvalidJob(f"{name}: there is no such argument; keys of a job are hedgerow_KEY")
    return {name.removeprefix("hedgerow_"): value for name, value in arguments.items()}
