"""Where ``train`` runs: in a federation, in silos of this process, or here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from xgboost.collective import get_processor_name

from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.library.jobs import Job, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.running import Run

if TYPE_CHECKING:
    import pyarrow as pa

    from hedgerow.services.wire.job_view import FinishedRound

__all__ = [
    "CommunicatorContext",
    "communicator_print",
    "get_processor_name",
    "get_rank",
    "get_world_size",
    "is_distributed",
    "simulate",
]


class Site(Protocol):
    """A site's place in a federation, and how it trains there."""

    rank: int
    world_size: int

    def train(
        self,
        job: Job,
        table: pa.Table,
        tests: Mapping[str, pa.Table],
        *,
        on_round: Callable[[FinishedRound], bool | None] | None = None,
    ) -> Run:
        """Train; where ``on_round`` returns true, with the rounds so far."""


@dataclass(frozen=True)
class Joined:
    """The context that ``train`` runs in."""

    site: Site
    settings: Mapping[str, Any]
    """Keys of a job file that all jobs of this context have, unless their parameters say others."""


_joined: Joined | None = None


def joined() -> Joined | None:
    """Return the context that this process is in; None outside of one."""
    return _joined


@contextmanager
def within(site: Site, settings: Mapping[str, Any]) -> Iterator[None]:
    """Let ``train`` of this process, in all of its threads, run at a site."""
    global _joined
    if _joined is not None:
        raise InvalidJob("this process is in a context already: leave that one first")
    _joined = Joined(site, settings)
    try:
        yield
    finally:
        _joined = None


def get_rank() -> int:
    """Return this site's number, from 0; 0 outside of a context."""
    return _joined.site.rank if _joined else 0


def get_world_size() -> int:
    """Return how many sites there are; 1 outside of a context."""
    return _joined.site.world_size if _joined else 1


def is_distributed() -> bool:
    """Whether this is inside a context."""
    return _joined is not None


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

    def train(
        self,
        job: Job,
        table: pa.Table,
        tests: Mapping[str, pa.Table],
        *,
        on_round: Callable[[FinishedRound], bool | None] | None = None,
    ) -> Run:
        """Train as ``hedgerow.simulate`` does."""
        order = np.random.default_rng(self.seed).permutation(table.num_rows)
        parts = np.array_split(order, self.world_size)
        dealt = {f"silo-{k}": table.take(np.sort(part)) for k, part in enumerate(parts)}
        job = job.on(dealt, has_test=bool(tests))
        own = {name: table_of(job.parameters, name, part) for name, part in dealt.items()}
        scored = {name: table_of(job.parameters, name, rows) for name, rows in tests.items()}
        conditions = Conditions(
            crypto=self.crypto, codecs=self.crypto, watch=on_round or (lambda finished: None)
        )
        result = federate(job, own, conditions, scored or None)
        folder = Path(tempfile.mkdtemp(prefix="hedgerow-run-"))
        try:
            result.write(folder)
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
    with within(site, settings_of(settings)):
        yield


class CommunicatorContext:
    """XGBoost's context, by its plugin's arguments.

    Parameters
    ----------
    **arguments
        Those of XGBoost.

    Raises
    ------
    InvalidJob
        There is no federation of scripts yet: silos of this process are :func:`simulate`'s.
    """

    def __init__(self, **arguments: Any) -> None:
        raise InvalidJob(
            "CommunicatorContext: scripts of several organisations cannot train together yet; "
            "hedgerow.xgboost.collective.simulate has silos of this process, and `hedgerow submit` "
            "trains a job of agents"
        )


def settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a job file that arguments ``hedgerow_KEY`` give."""
    for name in arguments:
        if not name.startswith("hedgerow_"):
            raise InvalidJob(f"{name}: there is no such argument; keys of a job are hedgerow_KEY")
    return {name.removeprefix("hedgerow_"): value for name, value in arguments.items()}
