"""The narrow waist between a strategy and the world: silos exchange, the coordinator collects.

A federated algorithm is one protocol with two halves. The silo half calls
:meth:`SiloChannel.exchange`, which gives an offer and blocks until the coordinator half has
answered it. The coordinator half calls :meth:`CoordinatorEndpoint.collect` for all offers of a
place and :meth:`CoordinatorEndpoint.answer` for their replies. That one primitive covers reduce,
gather, broadcast and relay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NewType, Protocol, TypeVar, overload

Silo = NewType("Silo", str)
"""Name of a silo as its certificate gives it; sorts as text."""

Offer = TypeVar("Offer")
Content = TypeVar("Content")
Reply = TypeVar("Reply")


class Call(Enum):
    """What a step carries; bytes are counted under the value, in plans, ledgers and metrics."""

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


class Discloses(Enum):
    """What an offer gives away of a silo's rows: the classes that a silo's policy allows or not.

    An offer is of the most telling class that anything in it has.
    """

    NOTHING = "nothing"
    """That the silo is there, and where in the job it is."""
    KEYS = "keys"
    """Public keys, signatures, shares of masks."""
    SCHEMA = "schema"
    """What the table is: its lists and its number of rows."""
    MASKED = "masked"
    """Vectors of which only the sum over silos can be read."""
    NOISED = "noised"
    """Counts with the noise of differential privacy."""
    ENCRYPTED = "encrypted"
    """Ciphertexts, blinded identifiers, and boxes that one other party opens."""
    SCORES = "scores"
    """In clear: numbers of all of its rows, such as metrics and the mean of labels."""
    WEIGHTS = "weights"
    """In clear: numbers of a model fitted to its rows, or what they are solved from."""
    TREES = "trees"
    """In clear: trees fitted to its rows, with or without thresholds."""
    COUNTS = "counts"
    """In clear: rows or gradients, one by one or summed by node, bin or value."""
    QUANTILES = "quantiles"
    """In clear: values of its rows."""
    HASHES = "hashes"
    """In clear: a record of each row, from which it can be estimated and be found."""


@dataclass(frozen=True, slots=True, order=True)
class ExchangeKey:
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
    """A step of a strategy: its name, what it carries and the types of its two payloads."""

    name: str
    """Unique within a strategy, lower case, for example ``"trees"``."""
    call: Call
    """Under which its bytes are counted."""
    offer: type[Offer]
    reply: type[Reply]
    """``offer`` and ``reply``: payload types; each has a codec in ``hedgerow.services.wire``."""
    reveals: str
    """What the offer tells its readers; copied into the silo's ledger."""
    discloses: Discloses
    """The class of that; a silo's link sends no class that its policy does not allow."""


class SiloChannel(Protocol):
    """A silo's end of the federation, for one attempt of one job."""

    def exchange(self, step: Step[Offer, Reply], at: ExchangeKey, offer: Offer) -> Reply:
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


class CoordinatorEndpoint(Protocol):
    """The coordinator's end of the federation, for one attempt of one job."""

    @property
    def silos(self) -> tuple[Silo, ...]:
        """Silos that take part now, sorted by name; changes as silos are lost and come back."""
        ...

    @property
    def left(self) -> Counter[Silo]:
        """How often each silo has left the present set so far."""
        ...

    @overload
    async def collect(
        self,
        step: Step[Offer, Reply],
        at: ExchangeKey,
        *,
        silos: tuple[Silo, ...] | None = None,
        since: Counter[Silo] | None = None,
        quorum: int | None = None,
        except_for: Collection[Silo] = (),
        timeout_seconds: float | None = None,
    ) -> dict[Silo, Offer]: ...

    @overload
    async def collect(
        self,
        step: Step[Offer, Reply],
        at: ExchangeKey,
        *,
        read: Callable[[Silo, Offer], Content],
        silos: tuple[Silo, ...] | None = None,
        since: Counter[Silo] | None = None,
        quorum: int | None = None,
        except_for: Collection[Silo] = (),
        timeout_seconds: float | None = None,
    ) -> dict[Silo, Content]: ...

    async def collect(
        self,
        step: Step[Offer, Reply],
        at: ExchangeKey,
        *,
        read: Callable[[Silo, Offer], Any] | None = None,
        silos: tuple[Silo, ...] | None = None,
        since: Counter[Silo] | None = None,
        quorum: int | None = None,
        except_for: Collection[Silo] = (),
        timeout_seconds: float | None = None,
    ) -> dict[Silo, Any]:
        """Return the offers of a place, keyed by silo in sorted order.

        Waits for every silo of ``silos`` (default: all present). A silo that is lost while the
        barrier is open, or is silent at the deadline, is left out when at least ``quorum``
        offers are there (default: every silo must offer).

        One of ``silos`` that has left and is back is not awaited either: it re-entered, and will
        not come to this place. ``since`` is :attr:`left` of when they were fixed (default: now).

        Those in ``except_for``, which may change meanwhile, are not awaited.

        ``read`` turns an offer into what the strategy uses of it. It runs once an offer, in a
        worker thread where the offer is large. What it refuses by :class:`OfferRejected` is
        refused to the silo, which counts as missing.

        Raises
        ------
        QuorumLost
            Fewer than ``quorum`` offers; names the silos that are missing.
        """
        ...

    def answer(
        self, step: Step[Offer, Reply], at: ExchangeKey, replies: Mapping[Silo, Reply]
    ) -> None:
        """Release the silos of a collected place with their replies.

        Every silo whose offer was collected must be answered, now or by a later call.
        """
        ...

    def reject(self, step: Step[Offer, Reply], at: ExchangeKey, silo: Silo, reason: str) -> None:
        """Refuse a collected offer; the silo's exchange raises :class:`OfferRejected`."""
        ...

    def dismiss(self, step: Step[Offer, Reply], silo: Silo) -> None:
        """Let a silo go that waits at a place of ``step``: its exchange raises PlacePassed."""
        ...

    def serve(
        self, step: Step[Offer, Reply], handler: Callable[[Silo, ExchangeKey, Offer], Reply]
    ) -> None:
        """Answer each offer of ``step`` on its own, at once, without a barrier.

        For steps by which a silo catches up. The handler runs on the loop: it must be quick.
        """
        ...

    def drop(self, silo: Silo, reason: str) -> None:
        """Take a silo out of the present set until it synchronises again."""
        ...
