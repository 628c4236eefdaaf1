"""What the parties of a histogram job agree on, and how it is written down."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.engine.cuts import Cuts, cuts_from_thresholds, numeric_features
from hedgerow.boosting.engine.grower import ColumnSampler
from hedgerow.boosting.engine.objective import Objective, objective_of
from hedgerow.boosting.engine.quantising import Quantiser, static_bound
from hedgerow.boosting.engine.sampling import ThresholdSearch
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.growth import Shape
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.tensors import Tensors

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all silos know before the first round.

    Parameters
    ----------
    n_rows : int
        Training rows of all silos.
    weight_exponent : int
        Power of two above the largest row weight.
    base_score : float
        On the label's scale.
    cuts : Cuts
    """

    n_rows: int
    weight_exponent: int
    base_score: float
    cuts: Cuts

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return it as arrays that travel and are stored."""
        return {
            "counts": np.array([self.n_rows, self.weight_exponent], np.int64),
            "base_score": np.array([self.base_score], np.float64),
            **cut_arrays(self.cuts),
        }

    @classmethod
    def read(cls, told: Tensors) -> Agreed:
        """Read :meth:`arrays`."""
        n_rows, exponent = told.get("counts", "<i8", (2,)).tolist()
        return cls(n_rows, exponent, told.number("base_score"), read_cuts(told))


def cut_arrays(cuts: Cuts) -> dict[str, NDArray[Any]]:
    """Return cut points as arrays."""
    return {
        "cut_values": cuts.values,
        "cut_offsets": cuts.offsets,
        "cut_categorical": cuts.categorical.astype(np.uint8),
        "cut_lower": cuts.lower,
    }


def read_cuts(told: Tensors) -> Cuts:
    """Read :func:`cut_arrays`."""
    try:
        return Cuts(
            told.get("cut_values", "<f4", (None,)),
            told.get("cut_offsets", "<i8", (None,)),
            told.get("cut_categorical", "|u1", (None,)) != 0,
            told.get("cut_lower", "<f4", (None,)),
        )
    except DataError as error:
        raise OfferRejected(str(error)) from error


def given_cuts(schema: Schema, cut_points: tuple[str, ...]) -> Cuts:
    """Return the cuts that a job gives: ``"feature: 0.5 1.5"`` for each numeric feature.

    Raises
    ------
    InvalidJob
        An unknown or missing feature, or values that are no increasing numbers.
    """
    known: dict[str, NDArray[np.float32]] = {}
    for text in cut_points:
        name, _, numbers = text.rpartition(":")
        try:
            known[name.strip()] = np.array([float(n) for n in numbers.split()], np.float32)
        except ValueError as error:
            raise InvalidJob(f"[histogram] cut_points: no number in those of {name!r}") from error
    thresholds = []
    for j in numeric_features(schema):
        found = known.pop(schema.features[j].name, None)
        if found is None:
            raise InvalidJob(
                f"[histogram] cut_points: none for feature {schema.features[j].name!r}"
            )
        thresholds.append(found)
    if known:
        raise InvalidJob(f"[histogram] cut_points: there is no feature {min(known)!r}")
    try:
        return cuts_from_thresholds(schema, thresholds)
    except DataError as error:
        raise InvalidJob(f"[histogram] cut_points: {error}") from error


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a job that follows from its parameters and schema; equal at all parties."""

    strategy: Histogram
    job: JobParameters
    schema: Schema
    objective: Objective
    parameters: TreeParameters

    @classmethod
    def of(cls, strategy: Histogram, job: JobParameters, schema: Schema) -> Plan:
        """Check a job against the schema and work out what follows."""
        booster = strategy.booster_of(job)
        objective = objective_of(job.objective, schema.task, booster)
        parameters = TreeParameters.of(booster, schema.n_features)
        return cls(strategy, job, schema, objective, parameters)

    @property
    def n_trees(self) -> int:
        """Trees that are grown side by side in a round."""
        return 1 if self.strategy.multi_output else self.schema.n_outputs

    @property
    def width(self) -> int:
        """Numbers a bin."""
        return 2 * self.schema.n_outputs // self.n_trees

    @property
    def numeric(self) -> list[int]:
        """Indices of numeric features."""
        return numeric_features(self.schema)

    def groups(self, tree: int) -> list[int]:
        """Return the outputs that a tree of a round adds to."""
        return list(range(self.schema.n_outputs)) if self.strategy.multi_output else [tree]

    def part(self, tree: int) -> slice:
        """Return the columns of the gradients that a tree is grown on."""
        return slice(tree * self.width, (tree + 1) * self.width)

    def shape(self, cuts: Cuts, round_: int) -> Shape:
        """Return a round's shape, with its column samples."""
        return Shape(cuts, self.parameters, self.width, self._columns(round_))

    def _columns(self, round_: int) -> tuple[ColumnSampler | None, ...]:
        if not self.parameters.samples_columns:
            return (None,) * self.n_trees
        return tuple(
            ColumnSampler(
                self.schema.n_features,
                self.parameters,
                generator(self.job.seed, 0, round_ * self.n_trees + t, Purpose.COLUMNS),
            )
            for t in range(self.n_trees)
        )

    def static_bound(self, agreed: Agreed) -> tuple[float, float] | None:
        """Return bounds of gradients that hold in every round, if the silos need not agree."""
        if self.strategy.coarse_bits or self.strategy.shares_threshold:
            return None
        return static_bound(
            self.objective,
            self.strategy.sampler,
            self.schema.n_outputs,
            2.0**agreed.weight_exponent,
        )

    def threshold_search(self, agreed: Agreed, bound: tuple[float, float]) -> ThresholdSearch:
        """Return the search for a round's MVS threshold; no gradient is above ``bound``."""
        g, h = bound
        lam = self.strategy.mvs_lambda
        largest = math.sqrt(self.schema.n_outputs * (g * g + lam * h * h)) * (1 + 1e-6)
        n_silos = max(len(self.job.silos), 1 << 10)
        return ThresholdSearch(agreed.n_rows, n_silos, self.strategy.sampling_rate, largest)

    def quantiser(self, agreed: Agreed, bound: tuple[float, float]) -> Quantiser:
        """Return a round's quantisation."""
        return Quantiser.fitting(
            agreed.n_rows,
            bound,
            ring_bits=self.strategy.ring_bits,
            coarse_bits=self.strategy.coarse_bits,
        )

    @property
    def n_levels(self) -> int:
        """Sums that the largest possible trees take."""
        p = self.parameters
        return max(1, p.max_leaves - 1) if p.loss_guided else p.max_depth

    def n_padded(self, round_: int, level: int) -> int:
        """Length of a level's vector where neither open nodes nor cut points are to be told."""
        n_bins = self._most_bins
        total = sum(
            int((n_bins if columns is None else n_bins[columns.of_tree]).sum())
            for columns in self._columns(round_)
        )
        if level == 0:
            return self.width * (self.n_trees + total)
        p = self.parameters
        nodes = 1 if p.loss_guided else 1 << (level - 1)
        if p.max_leaves:
            nodes = max(1, min(nodes, p.max_leaves - 1))
        return self.width * nodes * total

    @property
    def n_padded_leaves(self) -> int:
        """Length of the vector of leaf sums of the largest possible trees."""
        p = self.parameters
        most = p.max_leaves or 1 << p.max_depth
        if p.max_depth:
            most = min(most, 1 << p.max_depth)
        return self.n_trees * self.width * most

    @property
    def _most_bins(self) -> NDArray[np.int64]:
        """Largest possible number of bins of each feature."""
        if self.strategy.binning == "given":
            return given_cuts(self.schema, self.strategy.cut_points).n_bins
        most = self.job.booster.max_bin
        features = self.schema.features
        return np.array(
            [most if f.categories is None else max(1, len(f.categories)) for f in features]
        )

    def search_ring(self, agreed: Agreed | None) -> int:
        """Return the ring of histogram sums: 32 bits where coarse sums are proven to fit.

        Without ``agreed``, for a blind coordinator, that is not known.
        """
        bits = self.strategy.coarse_bits
        if bits and agreed is not None and agreed.n_rows << bits < 1 << 30:
            return 32
        return 64 if bits else self.strategy.ring_bits


def pack(arrays: Arrays) -> bytes:
    """Return arrays as one blob for a checkpoint or a silo's memory."""
    stream_ = io.BytesIO()
    np.savez(stream_, **arrays)  # type: ignore[arg-type]
    return stream_.getvalue()


def unpack(blob: bytes) -> Tensors:
    """Read :func:`pack`; raises :class:`DataError` for anything else."""
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            return Tensors({name: file[name] for name in file.files})
    except (ValueError, OSError, KeyError) as error:
        raise DataError("not a checkpoint of a histogram job") from error


def as_bytes(array: bytes) -> NDArray[np.uint8]:
    """Return bytes as an array that travels."""
    return np.frombuffer(array, np.uint8)
