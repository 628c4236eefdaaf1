"""Work that a job takes, by kind, and how fast a machine does it: together, seconds.

Forecasts count work by step, silos measure rates (:mod:`hedgerow.boosting.calibration`), and
:func:`seconds` divides the one by the other. A rate tells how fast a machine is and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


class Work(Enum):
    """A kind of work; a rate is how many of them a silo does in a second."""

    EXCHANGE = "exchanges"
    """The interpreter's part of an exchange, at the silo and at the coordinator."""
    ROUND_TRIP = "round trips to the coordinator"
    BYTE = "bytes"
    """Written, hashed for the ledger and read again."""
    CELL = "histogram values"
    """A row's value of one feature, added to a bin."""
    MULTIPLY = "multiplications"
    """Of matrices."""
    MASK = "masks"
    """A word of one peer's mask."""
    PAILLIER_ENCRYPT = "Paillier encryptions"
    PAILLIER_ADD = "Paillier additions"
    PAILLIER_DECRYPT = "Paillier decryptions"
    ELGAMAL_ENCRYPT = "ElGamal encryptions"
    ELGAMAL_ADD = "ElGamal additions"
    POINT = "blinded identifiers"


CIPHERS = frozenset(kind for kind in Work if kind.name.startswith(("PAILLIER", "ELGAMAL", "POINT")))
"""Work that the crypto process spreads over all cores."""

Amounts: TypeAlias = Mapping[Work, float]
"""Of work in a job, by kind."""
Rates: TypeAlias = Mapping[Work, float]
"""Of a silo: work a second, by kind; what is missing is not known and takes no time."""

LEAST_RATE, MOST_RATE = 1e-3, 1e15
"""What a silo may announce: a lie changes a forecast, and leaves it a number."""

STARTING = 100
"""Exchanges that assignment, agreement, loading and the result take as long as; measured."""
ROUND = 3.6
"""The same of the coordinator's checkpoint, scores and model after a round; measured."""
COORDINATING = 1 / 3
"""The same of the coordinator's part in an exchange, a silo; measured."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job is expected to cost and reveal, before anyone trains.

    ``steps`` maps a step's RPC name to (exchanges, bytes up, bytes down) of one silo over the
    whole job, ``work`` to what is computed for it beside that, while the others wait.
    """

    rounds: int
    steps: Mapping[str, tuple[int, int, int]]
    reveals: str
    notes: tuple[str, ...] = ()
    cpu_class: str = "seconds"
    work: Mapping[str, Amounts] = field(default_factory=dict)


def seconds(amounts: Amounts, rates: Rates) -> float:
    """Return how long work takes at these rates."""
    return sum(amount / rates[kind] for kind, amount in amounts.items() if kind in rates)


def seconds_by_step(plan: Forecast, rates: Rates, n_silos: int) -> dict[str, float]:
    """Return how long each step of a silo takes over the whole job: its exchanges and its work."""
    handled = 1 + COORDINATING * n_silos
    found = {}
    for step in {**plan.steps, **plan.work}:
        exchanges, up, down = plan.steps.get(step, (0, 0, 0))
        moved = {
            Work.EXCHANGE: handled * exchanges,
            Work.ROUND_TRIP: exchanges,
            Work.BYTE: up + down,
        }
        found[step] = seconds(moved, rates) + seconds(plan.work.get(step, {}), rates)
    return found


def seconds_of(
    by_silo: Mapping[str, Mapping[str, float]],
    turns: Sequence[Sequence[str]],
    rates: Rates,
    rounds: int,
) -> float:
    """Return how long a job takes: in each step the slowest silo of each turn is waited for.

    Parameters
    ----------
    by_silo : Mapping
        Seconds by silo and step.
    turns : sequence of sequences of str
        Silos that work at the same time; the turns follow each other.
    rates : Mapping
        Of the machine that the job starts at.
    """
    steps = {step for own in by_silo.values() for step in own}
    waited = sum(
        max((by_silo[silo].get(step, 0.0) for silo in turn), default=0.0)
        for step in steps
        for turn in turns
    )
    return waited + seconds({Work.EXCHANGE: STARTING + ROUND * rounds}, rates)


def sharing(rates: Rates, n_silos: int, n_cores: int) -> Rates:
    """Return the rates of one of `n` silos that work at the same time on one machine.

    ``rates`` are of one core, except those of ciphers.
    """
    each = max(1.0, n_silos / n_cores)
    shares = dict.fromkeys(rates, 1 / each) | dict.fromkeys(CIPHERS, 1 / n_silos)
    shares |= dict.fromkeys((Work.CELL, Work.MULTIPLY), max(n_cores // n_silos, 1) / each)
    shares[Work.ROUND_TRIP] = 1.0
    return {kind: rate * shares[kind] for kind, rate in rates.items()}
