"""Jobs and plans as operators see them; the store keeps rounds, silos and traffic as the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hedgerow.boosting.work import Forecast, Rates, Work, seconds_by_step, seconds_of

OWN_TESTS = "test@"
"""Begins the name of the data set that a silo's own test rows are; the silo's name follows."""


class JobState(StrEnum):
    """State of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Whether a job does not leave this state."""
        return self in ENDED


ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
UNDER_WAY = tuple(state for state in JobState if state not in ENDED)
"""States that a job does not leave."""


class SiloState(StrEnum):
    """What a silo does in a job."""

    PRESENT = "present"
    LOST = "lost"
    DECLINED = "declined"


class CheckState(StrEnum):
    """What a check of a preflight found."""

    PASSED = "passed"
    FAILED = "failed"
    OMITTED = "omitted"


class PreflightState(StrEnum):
    """Whether a silo answered a preflight."""

    ANSWERED = "answered"
    AWAY = "away"
    SILENT = "silent"


class CpuClass(StrEnum):
    """Magnitude of a silo's CPU time."""

    SECONDS = "seconds"
    MINUTES = "minutes"
    HOURS = "hours"


@dataclass(frozen=True, slots=True)
class JobSilo:
    """A silo in a job; ``n_samples`` is 0 where it reported none."""

    name: str
    n_samples: int
    state: SiloState
    detail: str


@dataclass(frozen=True, slots=True)
class Score:
    """A score of a data set by a metric."""

    data: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A finished round; bytes are data-plane protobuf bytes, ``up`` is from silos."""

    round: int
    attempt: int
    seconds: float
    scores: tuple[Score, ...]
    bytes_up: int
    bytes_down: int
    silos: tuple[str, ...]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Scores by data set, then by metric."""
        found: dict[str, dict[str, float]] = {}
        for score in self.scores:
            found.setdefault(score.data, {})[score.metric] = score.value
        return found


def scores_of(metrics: Mapping[str, Mapping[str, float]]) -> tuple[Score, ...]:
    """Return scores by data set and metric as a round has them, sorted."""
    return tuple(
        Score(data, metric, value)
        for data, scores in sorted(metrics.items())
        for metric, value in sorted(scores.items())
    )


@dataclass(frozen=True, slots=True)
class StepTotal:
    """Traffic of one RPC of a job with one silo; ``up`` is from the silo."""

    silo: str
    method: str
    calls: int = 0
    messages_up: int = 0
    messages_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __add__(self, other: StepTotal) -> StepTotal:
        """Return the traffic of both, which are of one silo and RPC."""
        return StepTotal(
            self.silo,
            self.method,
            self.calls + other.calls,
            self.messages_up + other.messages_up,
            self.messages_down + other.messages_down,
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
        )


@dataclass(frozen=True, slots=True)
class SentPayloads:
    """What a silo says that it sent in one kind of exchange of a job, resends included."""

    silo: str
    method: str
    payloads: int
    bytes: int


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as operators see it."""

    job_id: str
    spec: bytes
    """Serialised ``JobSpec``."""
    state: JobState
    detail: str
    attempt: int
    silos: tuple[JobSilo, ...]
    rounds: tuple[FinishedRound, ...]
    steps: tuple[StepTotal, ...]
    create_time: float
    end_time: float | None
    """``create_time`` and ``end_time``: seconds since 1970; None until it has ended."""
    operator: str
    best_round: int
    artefacts: tuple[str, ...]
    model: str
    reveals: str
    control_bytes_up: int
    control_bytes_down: int
    job_digest: str
    """SHA-256 of the statement that the operator signed, in hex."""
    sent: tuple[SentPayloads, ...] = ()
    approved: tuple[str, ...] = ()
    """Who has approved it, as the coordinator says."""
    released: tuple[str, ...] = ()
    """Who has signed an audit for its release, as the coordinator says."""

    @property
    def ended(self) -> bool:
        """Whether the job has reached its last state."""
        return self.state.ended

    def bytes_of(self, silo: str) -> tuple[int, int]:
        """Return the data-plane bytes received from a silo and sent to it."""
        own = [step for step in self.steps if step.silo == silo]
        return sum(step.bytes_up for step in own), sum(step.bytes_down for step in own)


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """Expected traffic of one RPC with one silo, over the whole job."""

    silo: str
    method: str
    exchanges: int
    bytes_up: int
    bytes_down: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PlanView:
    """What a job is expected to cost and reveal."""

    rounds: int
    steps: tuple[PlannedBytes, ...]
    reveals: str
    notes: tuple[str, ...]
    cpu_class: CpuClass
    seconds: float | None = None

    @classmethod
    def of(
        cls,
        forecasts: Mapping[str, Forecast],
        rates: Mapping[str, Rates] | None = None,
        first: str | None = None,
    ) -> PlanView:
        """Return the plan of silos' forecasts, of which there is at least one.

        Parameters
        ----------
        rates : Mapping, optional
            Of silos that have announced theirs; the others are taken to be as the slowest of them.
        first : str, optional
            The silo for whose part of each step the others wait.
        """
        known = [one for one in (rates or {}).values() if one]
        slowest = min(known, key=lambda one: one.get(Work.EXCHANGE, 0.0), default={})
        took = {
            silo: seconds_by_step(own, (rates or {}).get(silo) or slowest, len(forecasts))
            for silo, own in forecasts.items()
        }
        turns = ([first], [s for s in took if s != first]) if first in took else (list(took),)
        one = next(iter(forecasts.values()))
        return cls(
            one.rounds,
            tuple(
                PlannedBytes(
                    silo, method, exchanges, up, down, took[silo][method] if known else None
                )
                for silo, own in forecasts.items()
                for method, (exchanges, up, down) in own.steps.items()
            ),
            one.reveals,
            one.notes,
            CpuClass(one.cpu_class),
            seconds_of(took, turns, slowest, one.rounds) if known else None,
        )


CHECKS = ("job", "policy", "columns", "label", "rows", "budget", "crypto", "disk")
"""What a silo checks before it takes part in a job, in order."""


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """What a silo found at one of :data:`CHECKS`; ``detail`` says why it failed."""

    name: str
    state: CheckState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SiloPreflight:
    """A silo's answer to a preflight; no checks where it did not answer."""

    silo: str
    state: PreflightState
    checks: tuple[PreflightCheck, ...] = ()

    @property
    def fit(self) -> bool:
        """Whether the silo would take part."""
        failed = any(check.state is CheckState.FAILED for check in self.checks)
        return self.state is PreflightState.ANSWERED and not failed


@dataclass(frozen=True, slots=True)
class PreflightView:
    """What silos would answer to a job."""

    silos: tuple[SiloPreflight, ...]
    refusal: str
    """Why the job cannot run as things are; empty where it can, or could once silos return."""
    plan: PlanView
    """By what the silos answered."""


@dataclass(frozen=True, slots=True)
class SiloView:
    """A silo as operators see it; the message ``Silo`` says what each field means."""

    name: str
    alive: bool
    version: str = ""
    strategies: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    row_count_class: int = 0
    n_columns: int = 0
    last_seen: float | None = None
    certificate_end: float | None = None
    crypto_answers: bool | None = None
    awaited: tuple[str, ...] = ()
    xgboost: str = ""
    columns: tuple[str, ...] = ()
