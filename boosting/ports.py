"""The narrow waist between a strategy and the world: silos exchange, the coordinator collects.

A federated algorithm is one protocol with two halves. The silo half calls :meth:`Link.exchange`,
which gives an offer and blocks until the coordinator half has answered it. The coordinator half
calls :meth:`Hub.collect` for all offers of a place and :meth:`Hub.answer` for their replies. That
one primitive covers reduce, gather, broadcast and relay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NewType, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hedgerow.boosting.dataset import Dataset, Schema
    from hedgerow.boosting.job import JobParameters
    from hedgerow.boosting.trees.ensemble import Tree
    from hedgerow.crypto.vault import Vault

Silo = NewType("Silo", str)
"""Name of a silo as its certificate gives it; sorts as text."""

Offer = TypeVar("Offer")
Reply = TypeVar("Reply")


class Call(Enum):
    """The data-plane RPC that carries a step; the value is the method's name."""

    KEYS = "ExchangeKeys"
    SHARES = "ExchangeShares"
    IDENTIFIERS = "ExchangeIdentifiers"
    SKETCHES = "ExchangeSketches"
    TREES = "ExchangeTrees"
    HISTOGRAMS = "ExchangeHistograms"
    GRADIENTS = "ExchangeGradients"
    SPLITS = "ExchangeSplits"
    WEIGHTS = "ExchangeWeights"
    SCORES = "ExchangeScores"
    SUMS = "ExchangeSums"
    SIGNATURES = "ExchangeSignatures"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in a job an exchange happens; places of one step are ordered.

    ``passing`` counts repeats of a step within a level (dropout recovery, chunks of a stream);
    it is the field ``pass`` on the wire.
    """

    round: int
    level: int = 0
    passing: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """A reply that says nothing but that the place is closed."""


@dataclass(frozen=True, slots=True)
class Step(Generic[Offer, Reply]):
    """A kind of exchange: its name, its RPC and the types of its two payloads.

    Parameters
    ----------
    name : str
        Unique within a strategy, lower case, for example ``"trees"``.
    call : Call
        The RPC that carries it.
    offer, reply : type
        Payload types; each has a codec in ``hedgerow.services.wire``.
    reveals : str
        What the offer tells whoever reads it; copied into the silo's ledger.
    """

    name: str
    call: Call
    offer: type[Offer]
    reply: type[Reply]
    reveals: str


class Link(Protocol):
    """A silo's end of the federation, for one attempt of one job."""

    def exchange(self, step: Step[Offer, Reply], at: Place, offer: Offer) -> Reply:
        """Give an offer and return its reply once the coordinator has answered the place.

        Raises
        ------
        PlacePassed
            The coordinator has closed this place without this silo; synchronise and go on.
        JobStopped
            The job was cancelled, has ended, or goes on under a newer attempt.
        OfferRejected
            The coordinator refused the offer; the message says why.
        """
        ...

    def check(self) -> None:
        """Raise :class:`JobStopped` when this silo is to stop; call it between long local steps."""
        ...

    def remember(self, key: str, value: bytes) -> None:
        """Make a record durable before the next exchange (survives a restart of the agent)."""
        ...

    def recall(self, key: str) -> bytes | None:
        """Return what an earlier process of this silo remembered for this job, or ``None``."""
        ...


class Hub(Protocol):
    """The coordinator's end of the federation, for one attempt of one job."""

    @property
    def silos(self) -> tuple[Silo, ...]:
        """Silos that take part now, sorted by name; changes as silos are lost and come back."""
        ...

    async def collect(
        self,
        step: Step[Offer, Reply],
        at: Place,
        *,
        silos: tuple[Silo, ...] | None = None,
        quorum: int | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[Silo, Offer]:
        """Return the offers of a place, keyed by silo in sorted order.

        Waits for every silo of ``silos`` (default: all present). A silo that is lost while the
        barrier is open, or is silent at the deadline, is left out when at least ``quorum``
        offers are there (default: every silo must offer).

        Raises
        ------
        QuorumLost
            Fewer than ``quorum`` offers; names the silos that are missing.
        """
        ...

    def answer(self, step: Step[Offer, Reply], at: Place, replies: Mapping[Silo, Reply]) -> None:
        """Release the silos of a collected place with their replies.

        Every silo whose offer was collected must be answered, now or by a later call.
        """
        ...

    def reject(self, step: Step[Offer, Reply], at: Place, silo: Silo, reason: str) -> None:
        """Refuse a collected offer; the silo's exchange raises :class:`OfferRejected`."""
        ...

    def serve(
        self, step: Step[Offer, Reply], handler: Callable[[Silo, Place, Offer], Reply]
    ) -> None:
        """Answer each offer of ``step`` on its own, at once, without a barrier.

        For steps by which a silo catches up. The handler runs on the loop: it must be quick.
        """
        ...

    def drop(self, silo: Silo, reason: str) -> None:
        """Take a silo out of the present set until it synchronises again."""
        ...


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What the coordinator half yields at the end of each round.

    Parameters
    ----------
    round : int
        Counts from zero.
    checkpoint : bytes
        All that the coordinator half needs to go on from the next round; opaque to the runner,
        which stores it atomically before it asks for the next round.
    metrics : Mapping[str, Mapping[str, float]]
        Scores by data set (``"test"``, ``"train"``, ``"valid"``), then by metric name.
    silos : tuple[Silo, ...]
        Those that contributed.
    final : bool
        True for the last round, when the strategy stops early too.
    best_round : int
        Round that the selection rule prefers so far.
    """

    round: int
    checkpoint: bytes
    metrics: Mapping[str, Mapping[str, float]]
    silos: tuple[Silo, ...]
    final: bool = False
    best_round: int = 0


@dataclass(frozen=True, slots=True)
class Artefact:
    """A job's result: files by name, first the one that is the model.

    ``files`` maps a file name of the run folder (``model.ubj``) to its bytes.
    """

    files: Mapping[str, bytes]
    model: str


class Journal(Protocol):
    """Durable records of one job at the coordinator; a later record of a key replaces it."""

    def remember(self, key: str, value: bytes) -> None:
        """Make a record durable before returning; may be called from a worker thread."""
        ...

    def recall(self, key: str) -> bytes | None:
        """Return the record of a key, or None."""
        ...


@dataclass(frozen=True, slots=True)
class CoordinatorStart:
    """What the coordinator half starts from.

    Parameters
    ----------
    job : JobParameters
        The job as all parties see it.
    schema : Schema
        The schema all silos of the roster agreed on; of a vertical job without any names.
    n_samples : Mapping[Silo, int]
        Rows per silo as told when it accepted: rounded up to a power of two, unless the
        strategy's ``exact_rows`` is set.
    checkpoint : bytes or None
        The last round's checkpoint when the job is resumed.
    test : Dataset or None
        Rows that the coordinator's organisation holds for evaluation.
    journal : Journal or None
        Where a half keeps what it must not lose inside a round; outlives the process.
    """

    job: JobParameters
    job_id: str
    attempt: int
    silos: tuple[Silo, ...]
    schema: Schema
    n_samples: Mapping[Silo, int]
    checkpoint: bytes | None = None
    test: Dataset | None = None
    journal: Journal | None = None


@dataclass(frozen=True, slots=True)
class SiloStart:
    """What a silo half starts from.

    Parameters
    ----------
    silo : Silo
        This silo.
    silos : tuple[Silo, ...]
        The job's roster, sorted.
    dataset : Dataset
        This silo's rows; never leaves the process.
    first_round : int
        Round at which the attempt goes on; above zero after a restart.
    test : Dataset or None
        Evaluation rows of this silo: of a vertical party, or to score a model of its own.
    trainer : LocalTrainer or None
        Where stock XGBoost's trees grow; None for this process.
    ids : tuple of int
        Least and most distinct row ids that this silo's policy takes from any party.
    """

    job: JobParameters
    job_id: str
    attempt: int
    silo: Silo
    silos: tuple[Silo, ...]
    schema: Schema
    dataset: Dataset
    first_round: int = 0
    test: Dataset | None = None
    n_threads: int = 1
    identity: Identity | None = None
    trainer: LocalTrainer | None = None
    ids: tuple[int, int] = (1, 20_000_000)


class LocalTrainer(Protocol):
    """Grows stock XGBoost's trees on a silo's rows, on whatever machines the silo has."""

    def __call__(
        self,
        dataset: Dataset,
        margins: NDArray[np.float32],
        parameters: Mapping[str, Any],
        n_steps: int,
    ) -> list[Tree]:
        """Return the trees of ``n_steps`` boosting steps from ``margins``.

        Parameters
        ----------
        margins : ndarray of shape (n_samples,) or (n_samples, n_outputs), float32
            Where boosting begins.
        parameters : Mapping
            XGBoost's; ``base_score`` has no part in it.

        Raises
        ------
        DataError
            XGBoost cannot train on these rows.
        """
        ...


class Identity(Protocol):
    """Signs as this silo and checks signatures of others by their certificates (P-256, DER)."""

    @property
    def certificate(self) -> bytes:
        """Certificate chain of this silo, PEM."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return an ECDSA-SHA256 signature of ``message`` by this silo's key."""
        ...

    def verify(self, silo: Silo, certificate: bytes, message: bytes, signature: bytes) -> None:
        """Raise :class:`SignatureInvalid` unless ``silo`` signed ``message`` under the CA."""
        ...


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job is expected to cost and reveal, before anyone trains.

    ``steps`` maps a step's RPC name to (exchanges, bytes up, bytes down) of one silo over the
    whole job.
    """

    rounds: int
    steps: Mapping[str, tuple[int, int, int]]
    reveals: str
    notes: tuple[str, ...] = ()
    cpu_class: str = "seconds"


@dataclass(frozen=True, slots=True)
class Safeguards:
    """What a job's parameters mean for the rules of a silo's own policy.

    Parameters
    ----------
    deepest : int
        Most levels of a tree; 0 is no limit.
    epsilon : float or None
        Differential privacy's budget, where the strategy has one.
    private : bool
        Whether a finite budget covers all that is told, and only sums are told.
    secure : bool
        False where the strategy could mask or encrypt what leaves and the job says not to.
    key_bits : int or None
        Of the Paillier modulus; 0 where the job leaves out the encryption, ``None`` where the
        strategy has no such key.
    """

    deepest: int
    epsilon: float | None = None
    private: bool = False
    secure: bool = True
    key_bits: int | None = None


class Strategy(Protocol):
    """A frozen dataclass: its fields are its parameters, its docstring is its protocol.

    ``exact_rows`` says that its coordinator half needs the silos' exact row counts: silos tell
    only their size class, the next power of two, where it is false.
    """

    name: ClassVar[str]
    exact_rows: ClassVar[bool]
    reveals: ClassVar[str]

    def coordinate(self, hub: Hub, start: CoordinatorStart) -> AsyncIterator[RoundResult]:
        """Run the coordinator half; yields once a round."""
        ...

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run the silo half; blocks until the job ends. Returns what stays in the silo, if any."""
        ...

    def artefact(self, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
        """Return the files of the result from the last (or best) round's checkpoint."""
        ...

    def forecast(
        self, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
    ) -> Forecast:
        """Return rounds, bytes and messages by formula, and the Reveals text."""
        ...

    def safeguards(self, job: JobParameters) -> Safeguards:
        """Return what a silo's policy asks about."""
        ...

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, what was expected and what came."""
        ...


class FederationError(Exception):
    """Root of what can go wrong between parties; each subclass has a status code in services."""


class QuorumLost(FederationError):
    """Too few silos offered before a step's deadline."""


class StaleAttempt(FederationError):
    """The call belongs to an attempt that has been replaced."""


class PlacePassed(FederationError):
    """The barrier of this place was closed without this silo."""


class OfferRejected(FederationError):
    """The coordinator refused a silo's offer: malformed, out of range or against the protocol."""


class JobStopped(FederationError):
    """The job was cancelled, has ended or has moved to a newer attempt."""


class InvalidJob(FederationError):
    """A job that cannot run: unknown key, parameter out of range, unmet requirement."""


class SchemaMismatch(FederationError):
    """Silos whose tables differ; names the silo and the first difference."""


class PolicyDeclined(FederationError):
    """A silo's own policy forbids the job; names the rule."""


class SignatureInvalid(FederationError):
    """A signature or certificate that does not prove what it should."""


class DataError(FederationError):
    """A table that cannot be used: wrong file, missing column, label out of range."""
