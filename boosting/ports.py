"""What a job is to coordinator and silos: its parameters, its strategy, where each half starts."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from hedgerow.boosting.allowances import PartyLimits
from hedgerow.boosting.dataset import RowMetric, Task
from hedgerow.boosting.draws import OwnDraws
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.exchange import Call, CoordinatorEndpoint, Silo, SiloChannel
from hedgerow.boosting.job import (
    OF_SCRIPTS,
    OF_SEVERAL_LABELS,
    Approvals,
    Booster,
    ColumnRules,
    ReleaseAudit,
    WarmStart,
)
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.storage import IN_MEMORY, MemoryNeed, Storage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hedgerow.boosting.allowances import PrivacyProperties, StepQuota
    from hedgerow.boosting.budget import Accountant
    from hedgerow.boosting.dataset import Dataset, Schema
    from hedgerow.boosting.payloads import PayloadCodec
    from hedgerow.boosting.trees.ensemble import Ensemble, Tree
    from hedgerow.boosting.trees.samples import SampledTrees
    from hedgerow.boosting.work import Forecast
    from hedgerow.crypto.vault.interface import Vault


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What the coordinator half yields at the end of each round."""

    round: int
    """Counts from zero."""
    checkpoint: bytes
    """All that the coordinator half needs to go on from the next round; opaque to the runner, which
    stores it atomically before it asks for the next round."""
    metrics: Mapping[str, Mapping[str, float]]
    """Scores by data set (``"test"``, ``"train"``, ``"valid"``), then by metric name."""
    silos: tuple[Silo, ...]
    """Those that contributed."""
    final: bool = False
    """True for the last round, when the strategy stops early too."""
    best_round: int = 0
    """Round whose model the result is, if no later one is better: this one, unless early stopping
    selects rounds."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A job's result: bytes by file name of the run folder, and which of them is the model."""

    files: Mapping[str, bytes]
    model: str


class Journal(Protocol):
    """Durable records of one job at the coordinator; a later record of a key replaces it."""

    def remember(self, key: str, value: bytes) -> None:
        """Make a record durable before returning; called from a worker thread, it may wait."""
        ...

    def recall(self, key: str) -> bytes | None:
        """Return the record of a key, or None."""
        ...


@dataclass(frozen=True, slots=True)
class CoordinatorStart:
    """What the coordinator half starts from."""

    job: JobParameters
    """The job as all parties see it."""
    job_id: str
    attempt: int
    silos: tuple[Silo, ...]
    schema: Schema
    """The schema all silos of the roster agreed on; of a vertical job without any names."""
    n_samples: Mapping[Silo, int]
    """Rows per silo as reported when it accepted: rounded up to a power of two, unless the
    strategy's ``exact_rows`` is set."""
    checkpoint: bytes | None = None
    """The last round's checkpoint when the job is resumed."""
    test: Dataset | None = None
    """Rows that the coordinator's organisation holds for evaluation."""
    journal: Journal | None = None
    """Where a half keeps what it must not lose inside a round; outlives the process."""
    job_digest: bytes = b""
    """SHA-256 of the job as all parties agreed to it; empty where nobody signs, as in tests."""
    groups: tuple[tuple[Silo, ...], ...] = ()
    """Sums are over unions of them."""
    least_silos: int = 0
    """The largest number of silos that the policy of one of them asks for in a sum."""
    starting_model: bytes = b""
    """``model.ubj`` of the run that the job goes on from, unread; empty where there is none."""
    starting: Ensemble | None = None
    """The same, checked: :mod:`hedgerow.boosting.warm_start` sets it."""
    test_parts: tuple[tuple[str, int, RowMetric | None], ...] = ()
    """Names and rows of the sets that ``test`` is made of, one behind the other; empty where it is
    one set, ``"test"``."""


@dataclass(frozen=True, slots=True)
class SiloStart:
    """What a silo half starts from."""

    job: JobParameters
    job_id: str
    attempt: int
    silo: Silo
    silos: tuple[Silo, ...]
    """Silo, tuple[Silo, ...]. ``silo`` and ``silos``: this silo, and the job's roster, sorted."""
    schema: Schema
    dataset: Dataset
    """This silo's rows; never leaves the process."""
    first_round: int = 0
    """Round at which the attempt goes on; above zero after a restart."""
    test: Dataset | None = None
    validation: Dataset | None = None
    """``test`` and ``validation``: of this silo: of a vertical party, to score a model of its own
    (``test`` only), or to score rounds (``validation`` only)."""
    n_threads: int = 1
    identity: Identity | None = None
    trainer: LocalTrainer | None = None
    """Where stock XGBoost's trees grow; None for this process."""
    device: str = ""
    """The silo's own device for them, as XGBoost names it; empty for the job's."""
    limits: PartyLimits = field(default_factory=PartyLimits)
    """Of the silo's policy, for a vertical job."""
    codec: PayloadCodec | None = None
    """Of messages that silos seal for each other."""
    job_digest: bytes = b""
    """SHA-256 of the job as all parties agreed to it; empty where nobody signs, as in tests."""
    accountant: Accountant | None = None
    """Of the job, where it has a privacy budget."""
    asked_ids: Callable[[int, int], None] = lambda asked, own: None
    """Counts another party's ids, and the own ones, before an intersection answers them; raises
    :class:`~hedgerow.crypto.errors.PsiRefused` where the table has answered too many."""
    telling: Callable[..., None] = lambda *found: None
    """Called before counts of the table's rows are told, or the first ones that cut points follow
    from, and with each way of dividing rows (as in ``PrivacyProperties.binnings``) that is known
    in the course of the job alone; raises :class:`~hedgerow.boosting.errors.PolicyDeclined` where
    as many jobs have told them as may, or have divided the table in as many ways."""
    storage: Storage = IN_MEMORY
    """Where bins live."""
    require_hybrid: bool = False
    """Refuse secure sums whose silos do not all agree on keys by ML-KEM too."""
    groups: tuple[tuple[Silo, ...], ...] = ()
    """Sums are over unions of them."""
    opened: SumSets | None = None
    """Sets over which sums of the silo's table were opened, and may be; None for those of this job
    alone."""
    least_silos: int = 0
    """Fewest silos that the silo's policy lets a sum be over."""
    starting: Ensemble | None = None
    """Model that margins start from: :mod:`hedgerow.boosting.warm_start` sets it."""
    draws: OwnDraws | int = field(default_factory=OwnDraws.unkept)
    """What this silo draws over its own rows from; the job's seed in a simulation."""


class SumSets(Protocol):
    """Over which sets of silos sums may be opened; see :class:`.sums.groups.OpenedSets`."""

    @property
    def groups(self) -> tuple[tuple[Silo, ...], ...]:
        """Groups of the job's silos."""
        ...

    @property
    def companions(self) -> tuple[Silo, ...]:
        """The silos without which no sum over this one opens; empty before its first sum."""
        ...

    def agree(
        self,
        said: Mapping[Silo, tuple[Silo, ...]],
        own: Silo | None = None,
        empty: Collection[Silo] = (),
        few: Collection[Silo] = (),
        changed: Mapping[Silo, tuple[str, ...]] = {},
        differing: Mapping[Silo, tuple[str, ...]] = {},
    ) -> None:
        """Take in the companions that the silos of a setup say, as the silo that is given.

        ``empty`` are those without rows, ``few`` also those with hardly any; ``changed`` and
        ``differing`` are by silo the earlier jobs whose sums were of other rows (:meth:`say_rows`).
        """
        ...

    def say_rows(self, n_rows: int, left_out: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the earlier jobs whose sums were of far other rows; of a tenth more or fewer."""
        ...

    def bind(self, rows: tuple[int, int] | None = None) -> None:
        """Keep this silo's companions, and how many rows, before its first vector leaves."""
        ...

    def forbids(self, present: tuple[Silo, ...]) -> str:
        """Return why no sum may be opened over a set, or "" where one may."""
        ...

    def note(self, present: tuple[Silo, ...]) -> None:
        """Record a set before a sum is opened over it."""
        ...


class LocalTrainer(Protocol):
    """Grows stock XGBoost's trees on a silo's rows, on any machines that the silo has."""

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


class Parameters(Protocol):
    """A strategy's own parameters: a frozen dataclass, one field a parameter of the job's table.

    ``name`` is the strategy's name in job files.
    """

    name: ClassVar[str]

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        ...

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        ...

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, the expected and the received value."""
        ...

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        ...


P = TypeVar("P", bound=Parameters)


def _any_schema(parameters: Any, job: JobParameters, schema: Schema) -> None:
    """Accept every table."""


def _any_cohort(parameters: Any, n_silos: int) -> None:
    """Accept every number of silos."""


def _no_columns(parameters: Any) -> tuple[str, ...]:
    return ()


def _never(parameters: Any) -> bool:
    return False


FROM_START = "rows matter from the first round; of all rows follow "


def _all_rows(parameters: Parameters, job: JobParameters, joined: int | None = None) -> str:
    return f"the trees of a {parameters.name} job, the first round's among them"


def _first_round(parameters: Any, job: JobParameters, *_: Any) -> NDArray[np.int64]:
    raise InvalidJob(FROM_START + _all_rows(parameters, job))


def least_of_sums(parameters: Any) -> int:
    """Return how few silos a strategy with an option ``secure`` runs with: a sum hides among 3."""
    return 3 if parameters.secure else 1


def memory_of_table(
    parameters: Any, job: JobParameters, schema: Schema, n_rows: int, n_threads: int, stored: float
) -> MemoryNeed:
    """Return an estimate: 12 bytes a value, as float32 and in XGBoost, and 64 a row's output."""
    n_outputs = max(schema.n_outputs, job.classes, 1)
    return MemoryNeed(n_rows * (12 * schema.n_features + 64 * n_outputs))


@dataclass(frozen=True, slots=True)
class Horizontal(Generic[P]):
    """Silos hold rows of one table."""

    exact_rows: bool = True
    """Whether the coordinator half needs exact row counts; otherwise silos report only their size
    class, the next power of two."""
    validate_for: Callable[[P, JobParameters, Schema], None] = _any_schema
    """Raises :class:`InvalidJob` where the parameters do not suit the agreed schema."""
    unweighted: str = "does not say that its rows may have weights"
    """Why rows cannot have weights, after the strategy's name; empty where they can."""
    validates: Callable[[P], bool] = _never
    """Whether each silo must bring a table of validation rows."""
    survival: bool = False
    """Whether labels may be bounds of times."""
    ranking: bool = False
    """Whether the rows of a query may be put in order."""
    several_labels: bool = False
    """Whether rows may have several labels."""
    base_margin: Callable[[P], tuple[str, ...]] = _no_columns
    """Columns in which rows bring where their margins begin; empty for none."""


@dataclass(frozen=True, slots=True)
class Vertical(Generic[P]):
    """Parties hold columns about the same people; the coordinator learns no column's name."""

    active: Callable[[P], Silo]
    """The party that holds the labels."""
    validates: Callable[[P], bool]
    scores_only: Callable[[P], bool]
    """``validates`` and ``scores_only``: whether each party must bring a table of validation rows;
    whether the job scores tables with an earlier model, when labels are optional."""
    starts_from: Callable[[P], str]
    """Name of the job whose model this one starts from; empty where it starts without one."""
    row_columns: Callable[[P], tuple[str, tuple[str, ...]]]
    """Columns of the active party that are no features: that of row weights, empty for none, and
    those of base margins."""
    forecasts: Callable[
        [P, JobParameters, Mapping[Silo, Schema], Mapping[Silo, int]], dict[Silo, Forecast]
    ]
    """Job, the schemas of parties whose columns are known, and rows by party to each party's
    forecast: parties move different things."""


class Result(Enum):
    """What a job's result is to those who score rows with it."""

    STOCK = "one stock XGBoost model, common to all silos"
    PERSONAL = "a stock XGBoost model of each silo's own"
    PARTS = "a part in each party; the parties score together"
    TABLE = "statistics, with which nothing is scored"


Margins = Callable[["Mapping[str, bytes]", "Dataset"], "NDArray[np.float64]"]
"""An artefact's files and rows, coded by the job's schema, to the rows' margins."""

ModelCheck = Callable[["Mapping[str, bytes]"], None]
"""Takes an artefact's files; raises :class:`ModelRejected` unless they are the model that the
silo's own half of the job knows."""


@dataclass(frozen=True, slots=True)
class Strategy(Generic[P]):
    """A strategy: its parameters, its two halves, its forecast and what its result is."""

    parameters: type[P]
    """Frozen dataclass of its parameters."""
    layout: Horizontal[P] | Vertical[P]
    """How the silos' tables relate."""
    reveals: str
    """What each party learns beyond the result, and what breaks if parties collude."""
    coordinate: Callable[[P, CoordinatorEndpoint, CoordinatorStart], AsyncIterator[RoundResult]]
    """The coordinator half; yields once a round."""
    participate: Callable[[P, SiloChannel, Vault | None, SiloStart], Artefact | ModelCheck | None]
    """The silo half; blocks until the job ends. Returns what only this silo has, or how it knows
    the model that all silos share; None where it knows neither."""
    artefact: Callable[[P, JobParameters, Schema, bytes], Artefact]
    """Job, schema and the last (or best) round's checkpoint to the files of the result."""
    forecast: Callable[..., Forecast]
    """Job, schema, rows by silo and what ``sizes`` returns, if anything, to rounds and bytes."""
    allowances: Callable[[P, JobParameters, Schema, int], tuple[StepQuota, ...]]
    """Job, (own) schema and number of silos to where each step may happen, and how often."""
    result: Result | Margins = Result.STOCK
    """Result or callable. What scores rows; a callable where the files are no stock model."""
    validate_cohort: Callable[[P, int], None] = _any_cohort
    least_silos: Callable[[P], int] = lambda _: 1
    """``validate_cohort`` and ``least_silos``: raises :class:`InvalidJob` where that number of
    silos cannot run the job; how few silos the strategy runs with, regardless of the job's
    ``min_silos``."""
    colluders: Callable[[P, JobParameters, int], int | None] = lambda *_: None
    """Job and number of silos to how many of a sum may tell the coordinator their parts of its
    noise before its epsilon no longer holds; ``None`` where noise has no parts."""
    memory: Callable[[P, JobParameters, Schema, int, int, float], MemoryNeed] = memory_of_table
    """Job, a silo's own schema, rows, threads and share of stored values, to bytes for its half."""
    first_round: int = 1
    """Number that people see of the first round; 0 where it only prepares the others."""
    starts_anew: str = ""
    """Why a job cannot go on from an earlier run; empty where it can."""
    starts_with: str = "model.ubj"
    """That run's file."""
    sizes: Callable[[P, JobParameters, Sequence[Dataset]], SampledTrees | None] | None = None
    """All silos' tables to the sizes of their trees, where these are what is sent."""
    sized_calls: frozenset[Call] = frozenset()
    """Whose bytes follow from these sizes, and are a guess without tables."""
    stock_trees: bool = False
    """Whether XGBoost itself grows the trees, in each silo by its own version."""
    draws: Callable[[P, JobParameters], bool] = lambda _, job: job.booster.draws
    """Whether something is drawn for each round of a job that can go on."""
    why_from_start: Callable[[P, JobParameters, int | None], str] = _all_rows
    """Job, and the round (from 0) in which the silo joined that is to go, None of rows that are, to
    what makes its first rounds others without them; empty where they are the same."""
    first_rounds: Callable[
        [P, JobParameters, tuple[Silo, ...], Silo, int | OwnDraws, int], NDArray[np.int64]
    ] = _first_round
    """Job, its silos, one of them, what that one's draws follow from and its rows, to the round
    (from 0) in which each row first mattered."""

    @property
    def name(self) -> str:
        """Its name in job files."""
        return self.parameters.name


@cache
def strategy_of(name: str) -> Strategy[Any]:
    """Return the strategy of that name; its package is imported when it is first asked for.

    Raises
    ------
    InvalidJob
        No installed package has it, or the package that has is not sound.
    """
    found = STRATEGIES.load(name, Strategy)
    if found.name != name:
        raise InvalidJob(f"strategy {name!r}: {found.name!r} is no Strategy of that name")
    if STRATEGIES.is_foreign(name) and not (found.reveals and isinstance(found.layout, Horizontal)):
        raise InvalidJob(
            f"strategy {name!r}: expected one of a horizontal layout that says what it reveals"
        )
    return found


@dataclass(frozen=True, slots=True)
class JobParameters:
    """The job file, decoded."""

    name: str
    parameters: Parameters
    """The strategy's own."""
    label: str = "label"
    task: Task = Task.BINARY
    seed: int = 0
    """Of what all parties draw alike; see :mod:`hedgerow.boosting.streams`."""
    min_silos: int = 1
    """Least number of silos that must be present to start and to go on."""
    metrics: tuple[str, ...] = ()
    """Names as in ``hedgerow.boosting.metrics``."""
    booster: Booster = field(default_factory=Booster)
    features: tuple[str, ...] = ()
    """Columns to use; empty means all."""
    columns: ColumnRules = field(default_factory=ColumnRules)
    """How columns become features."""
    classes: int = 0
    """Size of the global class list of a multiclass job, 0 to agree on it from the silos."""
    step_timeout_seconds: float = 600.0
    start_timeout_seconds: float = 120.0
    """``step_timeout_seconds`` and ``start_timeout_seconds``: deadline of each exchange, and how
    long the job waits for ``min_silos``."""
    silos: tuple[str, ...] = ()
    has_test: bool = False
    """Whether the coordinator evaluates rounds on a table of its own."""
    keep_model: bool = True
    """Whether every silo of a horizontal job keeps the common model."""
    warm_start: WarmStart | None = None
    """Earlier model that a horizontal job goes on from."""
    group_size: int = 3
    """Fewest silos of a group; secure sums are over unions of whole groups."""
    max_close_sums: int = 0
    """Sets that are no union of whole groups, or tell fewer than three silos apart, over which sums
    may be opened all the same."""
    approvals: Approvals = field(default_factory=Approvals)
    """Who must sign the job before a silo accepts it."""
    audit: ReleaseAudit | None = None
    """What releases the model from the coordinator; None where nothing holds it back."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Label columns, in the order of the model's outputs."""
        return (self.label, *self.columns.more_labels)

    @property
    def objective(self) -> str:
        """The objective's name; by task where the job does not say."""
        if self.booster.objective is not None:
            return self.booster.objective
        return {
            Task.BINARY: "binary:logistic",
            Task.MULTICLASS: "multi:softprob",
            Task.REGRESSION: "reg:squarederror",
            Task.SURVIVAL: "survival:aft",
            Task.RANKING: "rank:ndcg",
        }[self.task]

    @property
    def strategy(self) -> Strategy[Any]:
        """The strategy that the parameters are of."""
        return strategy_of(self.parameters.name)

    @property
    def active(self) -> Silo | None:
        """The party with the labels of a vertical job; None for a horizontal one."""
        layout = self.strategy.layout
        return layout.active(self.parameters) if isinstance(layout, Vertical) else None

    @property
    def vertical(self) -> bool:
        """Whether parties hold different columns about the same people."""
        return isinstance(self.strategy.layout, Vertical)

    @property
    def base_margin(self) -> tuple[str, ...]:
        """Columns of a horizontal job in which rows bring where their margins begin."""
        layout: Horizontal[Any] | Vertical[Any] = self.strategy.layout
        return layout.base_margin(self.parameters) if isinstance(layout, Horizontal) else ()

    @property
    def validates(self) -> bool:
        """Whether each silo brings a table of validation rows."""
        layout: Horizontal[Any] | Vertical[Any] = self.strategy.layout
        return layout.validates(self.parameters)

    @property
    def most_close_sums(self) -> int:
        """Close sets over which sums may be opened: those that it allows, and those it draws."""
        return self.max_close_sums + self.parameters.safeguards(self).close_sums

    @property
    def least_silos(self) -> int:
        """How few silos can run the job: its own ``min_silos``, or more where sums are secure."""
        return max(self.min_silos, self.strategy.least_silos(self.parameters))

    def check_tables(self) -> None:
        """Raise :class:`InvalidJob` where silos need functions, which tables have not."""
        named = {f"[{self.strategy.name}] gradients": getattr(self.parameters, "gradients", "")}
        named["metrics"] = next((m for m in self.metrics if m.partition("@")[0] in OF_SCRIPTS), "")
        for key, name in named.items():
            if name:
                raise InvalidJob(
                    f"{key}: expected no function, for agents and tables have none, received "
                    f"'{name}'; scripts have: hedgerow.join, or hedgerow.xgboost's train with obj "
                    "and custom_metric"
                )

    def check_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where that number of silos cannot run the job."""
        least = self.strategy.least_silos(self.parameters)
        if n_silos < least:
            key, instead = f"[{self.strategy.name}] secure", "; with secure = false it could run"
            if not hasattr(self.parameters, "secure"):
                key, instead = f"a job of {self.strategy.name}", ""
            raise InvalidJob(
                f"{key}: sums are over {least} silos or more, for one of fewer tells what a silo "
                f"added; received {n_silos}{instead}"
            )
        self.strategy.validate_cohort(self.parameters, n_silos)

    def check_audit(self, audit: ReleaseAudit) -> None:
        """Raise :class:`InvalidJob` where no audit could release the model."""
        audit.check()
        why = ""
        if self.vertical or self.strategy.result is not Result.STOCK:
            why = "its result is not one stock model that all silos have"
        elif self.task is Task.SURVIVAL:
            why = "its labels are bounds"
        elif self.task is Task.RANKING:
            why = "its labels are orders of rows"
        elif len(self.labels) > 1:
            why = f"it has {len(self.labels)} labels"
        if why:
            raise InvalidJob(f"[audit]: `hedgerow audit` takes no run of this job, since {why}")

    def check_columns(self) -> None:
        """Raise :class:`InvalidJob` where rules of columns would be ignored: those of weights.

        And ``missing`` of a vertical job, whose parties score rows without the job; and labels with
        two bounds, or queries, where the strategy's trees have no loss for them.
        """
        layout, columns = self.strategy.layout, self.columns
        told = self.booster.objective
        if self.task is not Task.SURVIVAL and str(told).startswith("survival:"):
            raise InvalidJob(f'task: expected "survival" with {told}, received "{self.task.value}"')
        if self.task is Task.SURVIVAL and not getattr(layout, "survival", False):
            raise InvalidJob(
                f"task: {self.strategy.name} has no loss of times that are known by two bounds: "
                "expected histogram or bagging for survival"
            )
        if self.task is not Task.RANKING and str(told).startswith("rank:"):
            raise InvalidJob(f'task: expected "ranking" with {told}, received "{self.task.value}"')
        if self.task is Task.RANKING and not getattr(layout, "ranking", False):
            raise InvalidJob(
                f"task: {self.strategy.name} has no loss of the order of a query's rows: expected "
                "histogram or bagging for ranking"
            )
        if columns.more_labels:
            self._check_labels()
        if isinstance(layout, Vertical) and columns.missing is not None:
            raise InvalidJob(
                "[columns] missing: parties score rows without the job file: leave missing values "
                "blank in each party's tables"
            )
        key = "weight" if columns.weight else "class_weight"
        if not columns.weighs:
            return
        if isinstance(layout, Vertical):
            raise InvalidJob(
                f"[columns] {key}: only the party with the labels has weights: name their column "
                f"in weight of [{self.strategy.name}], or set scale_pos_weight of [booster]"
            )
        if layout.unweighted:
            raise InvalidJob(f"[columns] {key}: {self.strategy.name} {layout.unweighted}")

    def _check_labels(self) -> None:
        """Refuse what cannot have several labels."""
        n = len(self.labels)
        if not getattr(self.strategy.layout, "several_labels", False):
            raise InvalidJob(
                f"label: {self.strategy.name} predicts one column, received {n}: expected a job of "
                "histogram or bagging, or a job for each label"
            )
        if self.objective not in OF_SEVERAL_LABELS:
            raise InvalidJob(
                f"[booster] objective: {self.objective} is of one label, received {n}: expected "
                f"{', '.join(OF_SEVERAL_LABELS)}"
            )

    def check_torch(self, where: str, mend: str) -> None:
        """Raise :class:`InvalidJob` where the job trains with PyTorch and this process has none.

        Parameters
        ----------
        where, mend : str
            For the message: what this process is, and what to do beside choosing a combiner.
        """
        wanted = self.parameters.safeguards(self).torch
        if not wanted:
            return
        try:
            found = importlib.util.find_spec("torch")
        except ImportError:
            found = None
        if found is None:
            raise InvalidJob(
                f"{wanted}, for which {where} has no PyTorch: {mend}, or choose combiner "
                "'leaves', 'ridge', 'logit_ridge' or 'mean'"
            )

    @property
    def exact_rows(self) -> bool:
        """Whether silos report exact row counts, and not the next power of two."""
        return isinstance(self.strategy.layout, Horizontal) and self.strategy.layout.exact_rows
