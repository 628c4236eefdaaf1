"""A FedXGBllr result as files: the trees, what combines them, and a manifest.

``ensemble.ubj`` has the trees of all silos as a stock XGBoost model, whose own prediction (their
plain sum) is not the result. ``head.safetensors`` has what combines them, and ``manifest.json``
describes how. Where the combiner is linear in the trees, ``model.ubj`` is a stock XGBoost model
that predicts the result by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.checkpoints import array, readable, whole
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind
from hedgerow.boosting.strategies.fedxgbllr.leaf_search import LeafCombiner
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import (
    LeafOrdinals,
    LeafTable,
    with_leaf_values,
)
from hedgerow.boosting.strategies.fedxgbllr.network import HeadCombiner
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.tree_rates import RateCombiner
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.loading import load

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters

Floats = NDArray[np.float64]

ENSEMBLE, HEAD, MANIFEST, MODEL = (
    "ensemble.ubj",
    "head.safetensors",
    "manifest.json",
    "model.ubj",
)
FORMAT = 1
_ROWS_PER_PASS = 65536


@dataclass(frozen=True, slots=True)
class SiloRates:
    """What the combiner learnt about one silo's trees."""

    silo: str
    trees: int
    rows: int
    share: float
    """Of the sum of all trees' absolute rates times the spread of their leaf values: how much of
    the prediction's movement comes from this silo's trees. Shares add up to one."""
    mean: float
    least: float
    largest: float
    """``mean``, ``least`` and ``largest``: of the trees' learnt rates; one over the number of silos
    is the plain mean."""
    first_half: float
    """Mean rate of the silo's first half of trees over that of all."""


@dataclass(frozen=True, slots=True)
class StackedModel:
    """K ensembles and what combines them."""

    ensemble: Ensemble
    """Trees of the silos, in the order of ``silos``, as many of each."""
    combiner: str
    """Name as in the job file."""
    task: Task
    silos: tuple[str, ...]
    rows: tuple[int, ...]
    """``silos`` and ``rows``: the silos whose trees these are, and their training rows."""
    point: NDArray[Any]
    """State of the combiner that predicts; see
    :mod:`hedgerow.boosting.strategies.fedxgbllr.combiners`."""
    head: Head | None
    """The network's shape, where there is one."""
    center: float
    scale: float
    """``center`` and ``scale``: ``margin = center + scale · combined``; 0 and 1 but for
    regression."""
    rates: Floats
    """Of shape (n_outputs, n_trees), float64. Learnt rates."""

    @property
    def n_outputs(self) -> int:
        """Margins a row."""
        return self.ensemble.about.n_outputs

    def margins(self, X: NDArray[np.float32]) -> Floats:
        """Return margins of rows.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features), float32
            Coded by the job's schema; missing is NaN.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes), float64
        """
        trees = self.ensemble.trees
        table = LeafTable.of(trees)
        combiner = self._combiner(table)
        out = np.empty((len(X), self.n_outputs))
        for first in range(0, len(X), _ROWS_PER_PASS):
            part = X[first : first + _ROWS_PER_PASS]
            combined = combiner.margins(self.point, LeafOrdinals.of(trees, part))
            out[first : first + len(part)] = self.center + self.scale * combined
        return out[:, 0] if self.n_outputs == 1 else out

    def predict(self, dataset: Dataset) -> Floats:
        """Return probabilities (of class 1, or of every class) or numbers."""
        return metrics.link(self.ensemble.about.objective, self.margins(dataset.X))

    def by_silo(self) -> tuple[SiloRates, ...]:
        """Return what the combiner learnt about each silo's trees."""
        table = LeafTable.of(self.ensemble.trees)
        values = table.values.astype(np.float64)
        counts = np.maximum(np.diff(table.offsets), 1)
        mean = np.bincount(table.trees, weights=values, minlength=table.n_trees) / counts
        square = np.bincount(table.trees, weights=values**2, minlength=table.n_trees) / counts
        spread = np.sqrt(np.maximum(square - mean**2, 0.0))
        movement = np.abs(self.rates).sum(axis=0) * spread
        total = movement.sum() or 1.0
        width = table.n_trees // max(1, len(self.silos))
        found = []
        for number, (silo, rows) in enumerate(zip(self.silos, self.rows, strict=True)):
            trees = slice(number * width, (number + 1) * width)
            served = self.rates[table.groups[trees], np.arange(trees.start, trees.stop)]
            average = float(served.mean())
            half = float(served[: max(1, width // 2)].mean())
            found.append(
                SiloRates(
                    silo,
                    width,
                    rows,
                    float(movement[trees].sum() / total),
                    average,
                    float(served.min()),
                    float(served.max()),
                    half / average if average else 0.0,
                )
            )
        return tuple(found)

    def stock(self) -> bytes | None:
        """Return one XGBoost model (UBJSON) that predicts the same; None with a network."""
        combiner = self._combiner(LeafTable.of(self.ensemble.trees))
        if isinstance(combiner, HeadCombiner):
            return None
        assert isinstance(combiner, RateCombiner | LeafCombiner)
        values, intercept = combiner.leaf_values(self.point)
        about = self.ensemble.about
        base = self.center + self.scale * intercept
        if self.task is Task.BINARY:
            base = metrics.link(about.objective, base)
        trees = with_leaf_values(self.ensemble.trees, self.scale * values)
        header = _rebased(self.ensemble.header, base)
        return replace(self.ensemble, header=header, trees=trees, attributes={}).save()

    def files(self, about: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the files of the artefact.

        Parameters
        ----------
        about : Mapping
            Further entries of the manifest: rounds, best round and the like.
        """
        arrays: dict[str, NDArray[Any]] = {"rates": self.rates}
        if self.head is not None:
            arrays |= self.head.state(np.asarray(self.point, np.float32))
        else:
            arrays["point"] = np.asarray(self.point, np.float64)
        manifest = {
            "format": FORMAT,
            "strategy": "fedxgbllr",
            "combiner": self.combiner,
            "task": self.task.value,
            "objective": self.ensemble.about.objective,
            "n_outputs": self.n_outputs,
            "center": self.center,
            "scale": self.scale,
            "head": None
            if self.head is None
            else {**asdict(self.head), "kind": self.head.kind.value},
            "silos": [asdict(silo) for silo in self.by_silo()],
            **about,
        }
        files = {
            ENSEMBLE: self.ensemble.save(),
            HEAD: safetensors.numpy.save(arrays),
            MANIFEST: json.dumps(manifest, indent=1).encode(),
        }
        stock = self.stock()
        return files if stock is None else {**files, MODEL: stock}

    @classmethod
    def load(cls, files: Mapping[str, bytes]) -> StackedModel:
        """Return the model of an artefact's files.

        Raises
        ------
        DataError
            A file is missing or of another format, or they do not fit together.
        ModelRejected
            The trees are unsound.
        """
        for name in (ENSEMBLE, HEAD, MANIFEST):
            if name not in files:
                raise DataError(f"a FedXGBllr model needs the file {name}")
        manifest = _manifest(files)
        ensemble = load(files[ENSEMBLE])
        with readable(f"{HEAD} and {MANIFEST} of one model"):
            arrays = safetensors.numpy.load(files[HEAD])
            head = None
            if manifest["head"] is not None:
                shape = dict(manifest["head"])
                kind = HeadKind(shape.pop("kind"))
                head = Head(kind, **{name: whole(size) for name, size in shape.items()})
            model = cls(
                ensemble,
                str(manifest["combiner"]),
                Task(manifest["task"]),
                tuple(str(silo["silo"]) for silo in manifest["silos"]),
                tuple(whole(silo["rows"], 1 << 62) for silo in manifest["silos"]),
                array(arrays, "point", "<f8") if head is None else head.flat(arrays),
                head,
                float(manifest["center"]),
                float(manifest["scale"]),
                array(arrays, "rates", "<f8", 2),
            )
            model.check()
        return model

    def check(self) -> None:
        """Raise DataError where the parts belong to different models."""
        n_trees, n_outputs = len(self.ensemble.trees), self.n_outputs
        if self.head is not None:
            expected = self.head.n_parameters
            fits = self.head.n_inputs == n_trees and self.head.n_outputs == n_outputs
        else:
            table = LeafTable.of(self.ensemble.trees)
            expected = n_outputs + (table.n_leaves if self.combiner == "leaves" else n_trees)
            fits = True
        if not fits or self.point.shape != (expected,) or self.rates.shape != (n_outputs, n_trees):
            raise DataError(f"{HEAD} does not fit the {n_trees} trees of {ENSEMBLE}")

    def _combiner(self, table: LeafTable) -> Combiner:
        n_silos, n_outputs = max(1, len(self.silos)), self.n_outputs
        if self.head is not None:
            return HeadCombiner(FedXGBllr(), self.head, self.task, table.groups, 0)
        if self.combiner == "leaves":
            return LeafCombiner(table, self.task, n_silos, n_outputs, 0, ())
        return RateCombiner(table, self.task, n_silos, n_outputs, 0)


def margins_of_files(files: Mapping[str, bytes], dataset: Dataset) -> Floats:
    """Return margins of rows under an artefact's files.

    Raises
    ------
    DataError, ModelRejected
        The files are not those of one model, or their trees are unsound.
    """
    return StackedModel.load(files).margins(dataset.X)


def learnt_rates(files: Mapping[str, bytes]) -> tuple[SiloRates, ...]:
    """Return what the combiner learnt about each silo's trees; needs ``manifest.json`` only.

    Raises
    ------
    DataError
        There is no manifest, or it is of another format.
    """
    with readable(f"the rates of each silo's trees in {MANIFEST}"):
        return tuple(_rates_of(silo) for silo in _manifest(files)["silos"])


def _rates_of(silo: Mapping[str, Any]) -> SiloRates:
    names = ("share", "mean", "least", "largest", "first_half")
    trees, rows = whole(silo["trees"]), whole(silo["rows"], 1 << 62)
    return SiloRates(str(silo["silo"]), trees, rows, **{n: float(silo[n]) for n in names})


def rates_by_tree(files: Mapping[str, bytes]) -> Floats:
    """Return each tree's learnt rate; needs ``head.safetensors`` only.

    Returns
    -------
    ndarray of shape (n_outputs, n_trees), float64
        Trees silo by silo in the manifest's order, in the order of boosting; a row an output.
    """
    with readable(f"the learnt rates in {HEAD}"):
        return array(safetensors.numpy.load(files[HEAD]), "rates", "<f8", 2)


def _manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    with readable(f"JSON in {MANIFEST}"):
        manifest = json.loads(files.get(MANIFEST, b""))
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise DataError(f"{MANIFEST}: expected format {FORMAT}, received {found}")
    return dict(manifest)


def ensemble_of(
    job: JobParameters, schema: Schema, trees: Sequence[Sequence[Tree]], base_score: float
) -> Ensemble:
    """Return the stock ensemble of the silos' trees, in their order."""
    found = blank(schema, job.objective, job.booster, base_score)
    per_step = schema.n_outputs * job.booster.num_parallel_tree
    for of_silo in trees:
        found = found.extend(of_silo, n_steps=len(of_silo) // per_step)
    return replace(found, attributes={"hedgerow": "input of head.safetensors, see manifest.json"})


def _rebased(header: bytes, base: Floats) -> bytes:
    """Return a tree-less model with another base score, one entry an output."""
    from hedgerow.boosting.trees import ubjson

    document = ubjson.read(header)
    scores = [float(str(np.float32(b))) for b in base]
    document["learner"]["learner_model_param"]["base_score"] = json.dumps(scores)
    return ubjson.write(document)
