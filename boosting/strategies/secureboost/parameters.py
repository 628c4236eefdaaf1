"""The parameters of secureboost: their meaning, ranges, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import PrivacyProperties
from hedgerow.boosting.checks import OneOf, Within, check_declared, only_with
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.bisection import MIN_CELL
from hedgerow.boosting.errors import InvalidJob

if TYPE_CHECKING:
    from hedgerow.boosting.engine.sampling import Sampler
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.ports import JobParameters

MOST_PARTIES = 16
"""Every two parties meet in the intersection, and each seals a box for every other one."""
PAILLIER_FRACTION_BITS = 26
_OF_INFORMATION = (
    "active", "encryption", "key_bits", "alignment", "binning_error", "fraction_bits", "min_leaf",
    "max_split_nodes", "multi_output", "information", "allow_insecure",
)  # fmt: skip
ELGAMAL_VALUE_BITS = 16
"""Of a quantised gradient: discrete logarithms of sums have to be found."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Who takes part in a tree."""

    passive: tuple[str, ...]
    """Parties whose features may divide."""
    own: bool = True
    """Whether the active party's may, on the levels of passive parties."""
    passive_depth: int = 0
    """Levels that passive parties take part in; 0 for all."""


@dataclass(frozen=True, slots=True)
class SecureBoost:
    """Parameters of the table ``[secureboost]``."""

    name: ClassVar[str] = "secureboost"

    active: str
    """The silo with the labels."""
    rounds: Annotated[int, Within(1, 1 << 20)] = 10
    encryption: Annotated[str, OneOf(("paillier", "elgamal", "plain"))] = "paillier"
    """``plain`` shows gradients to passive parties and coordinator; only with
    ``allow_insecure``."""
    key_bits: Annotated[int, OneOf((2048, 3072, 4096))] = 2048
    mode: Annotated[str, OneOf(("standard", "mix", "layered"))] = "standard"
    """``mix``: parties take turns, each tree has the features of one. ``layered``: upper levels of
    every tree from the one passive party, lower ones from the active party."""
    complete_secure: Annotated[int, Within(0, 1 << 20)] = 0
    """First rounds that use the active party's features only; later trees show passive parties
    nearly as much of the labels, see ``docs/threat-model.md``."""
    multi_output: bool = False
    """One tree with vector leaves a round for all classes, instead of one a class."""
    sampling: str = "none"
    """Of rows, by the active party; ``none`` leaves it to the booster's ``subsample``."""
    sampling_rate: float = 0.5
    """As in :class:`hedgerow.boosting.engine.sampling.Sampler`."""
    top_rate: float = 0.2
    """As in :class:`hedgerow.boosting.engine.sampling.Sampler`."""
    other_rate: float = 0.1
    """As in :class:`hedgerow.boosting.engine.sampling.Sampler`."""
    alignment: Annotated[str, OneOf(("psi", "digest"))] = "psi"
    """``digest`` for tables whose rows are the same in the same order already."""
    binning_error: Annotated[float, Within(0.0, 0.1)] = 0.0
    """Rank error of a numeric column's cut points, at most, relative to the rows; 0 for ``1 / (8
    max_bin)``. Each party bins its own columns."""
    fraction_bits: Annotated[int, Within(0, 52)] = 0
    """Of encrypted gradients, below the smaller bound of g and h; 0 for 26 (Paillier), or as many
    as fit (ElGamal)."""
    min_leaf: Annotated[int, Within(1, 1 << 30)] = 3
    """Fewest rows on either side of a passive party's division."""
    max_purity: Annotated[float, Within(0.5, 1)] = 0.999
    """Largest estimated share of one label on either side of a passive party's division, for binary
    tasks; 1 turns the rule off."""
    max_split_nodes: Annotated[int, Within(0, 1 << 16)] = 0
    """Most nodes of a level whose sums a passive party makes, and the active one decrypts, at a
    time: it bounds the memory of both and of their crypto processes. 0 for as many as have 16,384
    candidates together. The model is the same for any value."""
    rounds_per_party: Annotated[int, Within(1, 1 << 20)] = 1
    """Mix: rounds of one party before the next one's turn."""
    passive_trees: Annotated[str, OneOf(("leaves", "structure"))] = "leaves"
    """Mix: what the active party keeps of a passive party's tree. ``leaves``: value and cover of
    each, and scoring shows which leaf a row reaches. ``structure``: also which node follows which
    and what each division gained; scoring shows every answer, explanations go by feature."""
    host_depth: Annotated[int, Within(1, 16)] = 3
    """Layered: levels of the passive, then of the active party; they replace ``max_depth``."""
    guest_depth: Annotated[int, Within(1, 16)] = 2
    """Layered: levels of the passive, then of the active party; they replace ``max_depth``."""
    validation: Annotated[float, Within(0, 0.9)] = 0.0
    """Share of the rows that is kept from training, scored each round and used to stop early."""
    validation_tables: bool = False
    """Whether all parties bring tables of validation rows, in place of ``validation``."""
    early_stopping_rounds: Annotated[int, Within(0, 1 << 20)] = 0
    """Rounds without a better validation score, after which the best round is what is kept; 0 for
    never."""
    calibrate: bool = False
    """Whether the finished model's margins get the scale, and for two classes the shift, with which
    probabilities fit the validation rows best (Platt scaling, temperature scaling)."""
    inference: Annotated[str, OneOf(("standard", "eini"))] = "standard"
    """How a prediction job scores rows, see ``docs/strategies/secureboost.md``."""
    predict_from: str = ""
    """Job whose model scores the parties' tables, instead of training."""
    warm_start: str = ""
    """Job whose model training goes on from."""
    weight: str = ""
    """Column of the active party's table with row weights, from 0; empty for none."""
    base_margin: tuple[str, ...] = ()
    """Columns of the active party's table with the margins that rows begin with, one, or one a
    class; empty for the base score."""
    increasing: tuple[str, ...] = ()
    """Monotone constraints: features with which no prediction falls, or rises, all others equal;
    each as ``PARTY:COLUMN``."""
    decreasing: tuple[str, ...] = ()
    """Monotone constraints: features with which no prediction falls, or rises, all others equal;
    each as ``PARTY:COLUMN``."""
    categories: Annotated[str, OneOf(("order", "sets"))] = "order"
    """How columns of text are divided: between two categories in alphabetical order, or into two
    sets, as XGBoost does."""
    information: bool = False
    """Whether the job ends with the sums of one level, and trains nothing: the active party tells
    how far the label's classes differ over the bins of each column, those of others without their
    names. Each category of text is a bin."""
    interaction_constraints: tuple[tuple[str, ...], ...] = ()
    """Groups of features, each as ``PARTY:COLUMN``, that may divide nodes of one path; as
    XGBoost's."""
    allow_insecure: bool = False
    """Allow ``plain``. For tests and measurements."""

    @property
    def gradient_bits(self) -> int:
        """Bits of an encrypted gradient where neither loss nor weights ask for more."""
        default = ELGAMAL_VALUE_BITS if self.encryption == "elgamal" else PAILLIER_FRACTION_BITS
        return self.fraction_bits or default

    @property
    def n_rounds(self) -> int:
        """Rounds, or passes over the rows, of the job at most."""
        return 1 if self.predict_from or self.information else self.rounds

    @property
    def sets(self) -> bool:
        """Whether categories are divided into sets."""
        return self.categories == "sets" or self.information

    @property
    def least_rows(self) -> int:
        """Rows that two sums of a feature differ by at least; the owner's policy may want more."""
        return max(self.min_leaf, MIN_CELL) if self.information else 1

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.n_rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.n_rounds

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        deepest = job.booster.max_depth
        if self.mode == "layered":
            both = self.host_depth + self.guest_depth
            # The first rounds may be the active party's alone, under the booster's own limit.
            unbounded = self.complete_secure and not deepest
            deepest = 0 if unbounded else max(both, deepest if self.complete_secure else 0)
        key_bits = {"paillier": self.key_bits, "plain": 0}.get(self.encryption)
        trains = not self.predict_from
        return PrivacyProperties(
            1 if self.information else deepest,
            tells_counts=self.information,
            cell_rows=self.least_rows if self.information else None,
            bins=job.booster.max_bin,
            leaf_rows=self.min_leaf,
            key_bits=key_bits,
            classes=max(self.n_outputs(job), 2)
            if trains and job.task is not Task.REGRESSION
            else 0,
            trees=self.n_rounds * self.trees_per_round(job) if trains else 0,
            gradient_bits=self.gradient_bits if trains else 0,
        )

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range, or two that contradict."""
        from hedgerow.boosting.strategies.secureboost.booster import check_booster

        check_declared(self.name, self)
        if self.encryption == "plain" and not self.allow_insecure:
            raise InvalidJob(
                "[secureboost] encryption: plain shows gradients, and with them labels, to all "
                "parties; it needs allow_insecure = true"
            )
        if self.validation and self.validation_tables:
            raise InvalidJob(
                "[secureboost] validation: expected 0, the parties bring validation_tables"
            )
        if self.inference == "eini" and self.encryption == "plain":
            raise InvalidJob("[secureboost] inference: eini encrypts, encryption = plain does not")
        if self.predict_from and self.warm_start:
            raise InvalidJob("[secureboost] predict_from does not train, warm_start does")
        if job.has_test:
            raise InvalidJob("test_data: a vertical job is scored on the parties' own test tables")
        self._validate_effects(job)
        self._validate_rows(job)
        self._validate_constraints(job)
        check_booster(job, mode=self.mode, sampling=self.sampling, sets=self.sets)
        if self.information:
            self._validate_information(job)
        self.sampler(job.booster)
        if job.silos:
            if self.active not in job.silos:
                raise InvalidJob(
                    f"[secureboost] active: expected one of the silos {', '.join(job.silos)}, "
                    f"received {self.active!r}"
                )
            self.validate_cohort(len(job.silos))
        if job.task is Task.MULTICLASS and not (job.classes or self.predict_from):
            raise InvalidJob(
                "classes: a vertical job with more than two classes says how many; passive "
                "parties do not take the active party's word for it"
            )
        metrics.check(job.metrics, job.task)

    def _validate_effects(self, job: JobParameters) -> None:
        """Refuse what would be ignored."""
        draw, mode = self.sampling, self.mode
        for condition, needed, names in (
            (draw in ("uniform", "mvs"), "sampling of uniform or mvs", ("sampling_rate",)),
            (draw == "goss", "sampling = 'goss'", ("top_rate", "other_rate")),
            (self.encryption == "paillier", "encryption = 'paillier'", ("key_bits",)),
            (mode == "mix", "mode = 'mix'", ("rounds_per_party", "passive_trees")),
            (mode == "layered", "mode = 'layered'", ("host_depth", "guest_depth")),
            (job.task is Task.MULTICLASS, "a multi-class job", ("multi_output",)),
            (
                job.task is Task.BINARY or self.max_purity == 1,
                "a binary job",
                ("max_purity",),
            ),
            (self.predict_from, "predict_from", ("inference",)),
            (
                not self.predict_from,
                "a job that trains",
                ("binning_error", "calibrate", "categories"),
            ),
            (
                self.validation or self.validation_tables,
                "validation above 0, or validation_tables",
                ("early_stopping_rounds", "calibrate"),
            ),
            (job.task is not Task.REGRESSION, "a classification job", ("calibrate",)),
        ):
            only_with(condition, needed, "secureboost", self, *names)
        only_with(mode != "layered", "a mode other than layered", "booster", job.booster,
                  "max_depth")  # fmt: skip

    def _validate_information(self, job: JobParameters) -> None:
        """Refuse what only trees have, and a job whose one exchange does not have all classes."""
        for table, own, used in (
            ("secureboost", self, _OF_INFORMATION), ("booster", job.booster, ("max_bin",))
        ):  # fmt: skip
            names = (one.name for one in fields(own) if one.name not in used)
            only_with(False, "a job that trains: without information", table, own, *names)
        if job.metrics:
            raise InvalidJob(
                "metrics: expected none with [secureboost] information, it has no model"
            )
        if job.task is Task.MULTICLASS and not self.multi_output:
            raise InvalidJob(
                "[secureboost] information: expected multi_output = true with several classes"
            )

    def _validate_rows(self, job: JobParameters) -> None:
        """Refuse columns of weights and base margins that cannot be."""
        expected = self.n_outputs(job)
        if self.base_margin and len(self.base_margin) != expected and not self.predict_from:
            raise InvalidJob(
                f"[secureboost] base_margin: expected {expected} columns, one an output, "
                f"received {len(self.base_margin)}"
            )
        if self.base_margin and job.booster.base_score is not None:
            raise InvalidJob("[booster] base_score: secureboost.base_margin is in its place")
        if self.base_margin and self.calibrate:
            raise InvalidJob(
                "[secureboost] calibrate: rows bring base margins, which the model cannot scale"
            )
        used = [*filter(None, [self.weight]), *self.base_margin]
        for name in used:
            if used.count(name) > 1 or name == job.label or name in job.features:
                raise InvalidJob(
                    f"[secureboost] weight, base_margin: column '{name}' has another use"
                )

    def monotone(self, party: str) -> dict[str, int]:
        """Return the constrained columns of a party: 1 increasing, -1 decreasing."""
        found = {}
        for names, direction in ((self.increasing, 1), (self.decreasing, -1)):
            for name in names:
                owner, _, column = name.partition(":")
                if owner == party:
                    found[column] = direction
        return found

    def groups(self, party: str) -> dict[int, tuple[str, ...]]:
        """Return a party's columns in groups of interaction constraints, by number of a group."""
        found = {}
        for number, group in enumerate(self.interaction_constraints):
            pairs = (name.partition(":") for name in group)
            if columns := tuple(column for owner, _, column in pairs if owner == party):
                found[number] = columns
        return found

    def _validate_constraints(self, job: JobParameters) -> None:
        names, where = (*self.increasing, *self.decreasing), "[secureboost] increasing, decreasing:"
        _check_names(names, job, where)
        if names and self.multi_output:
            raise InvalidJob(f"{where} trees with several outputs (multi_output) have none")
        for number, group in enumerate(self.interaction_constraints):
            where = f"[secureboost] interaction_constraints[{number}]:"
            if not group:
                raise InvalidJob(f"{where} expected features, received none")
            _check_names(group, job, where)

    def validate_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where ``n_silos`` parties cannot train in this mode."""
        if not 2 <= n_silos <= MOST_PARTIES:
            raise InvalidJob(
                f"a vertical job has one active and 1 to {MOST_PARTIES - 1} passive parties: "
                f"expected 2 to {MOST_PARTIES} silos, received {n_silos}"
            )
        if self.mode == "layered" and n_silos != 2:
            raise InvalidJob(
                f"[secureboost] mode: layered has one passive party, received {n_silos - 1}"
            )

    def sampler(self, booster: Booster) -> Sampler:
        """Return how the active party samples rows."""
        from hedgerow.boosting.engine.sampling import Sampler

        if self.sampling == "none":
            return Sampler.of(booster)
        return Sampler(
            self.sampling,
            self.sampling_rate,
            top_rate=self.top_rate,
            other_rate=self.other_rate,
        )

    def n_outputs(self, job: JobParameters) -> int:
        """Return the outputs of the model: the number of classes where there are more than two."""
        return max(job.classes, 1) if job.task is Task.MULTICLASS else 1

    @property
    def leaves_only(self) -> bool:
        """Whether the active party keeps only the leaves of a passive party's trees."""
        return self.mode == "mix" and self.passive_trees == "leaves"

    def trees_per_round(self, job: JobParameters) -> int:
        """Return the trees of a round."""
        return 1 if self.multi_output else self.n_outputs(job)

    def turn(self, round: int, parties: tuple[str, ...]) -> Turn:
        """Return who takes part in the trees of a round; ``parties`` has the active one first."""
        if round < self.complete_secure:
            return Turn(())
        if self.mode == "standard":
            return Turn(parties[1:])
        if self.mode == "layered":
            return Turn(parties[1:], own=False, passive_depth=self.host_depth)
        turn = (round - self.complete_secure) // self.rounds_per_party % len(parties)
        return Turn((parties[turn],), own=False) if turn else Turn(())


def _check_names(names: tuple[str, ...], job: JobParameters, where: str) -> None:
    """Raise :class:`InvalidJob` unless these are different columns of the job's parties."""
    for name in names:
        owner, _, column = name.partition(":")
        if not owner or not column:
            raise InvalidJob(f"{where} expected PARTY:COLUMN, received {name!r}")
        if job.silos and owner not in job.silos:
            silos = ", ".join(job.silos)
            raise InvalidJob(f"{where} expected one of the silos {silos}, received {owner!r}")
        if names.count(name) > 1:
            raise InvalidJob(f"{where} {name!r} is there more than once")
