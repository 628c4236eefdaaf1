"""What a round's vectors and points look like in the clear: exact, or quantised differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner, CombinerState
from hedgerow.boosting.strategies.fedxgbllr.weight_changes import (
    change_form,
    pack_change,
    unpack_change,
)
from hedgerow.boosting.tensors import Tensors

if TYPE_CHECKING:
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]

Form = Mapping[str, tuple[str, tuple[int, ...]]]
"""Element type and shape of each array of a payload."""


def update_form(parameters: FedXGBllr, combiner: Combiner, round_: int) -> Form:
    """Return element type and shape of the arrays of :func:`update`."""
    form = combiner.form(round_)
    if parameters.weight_bits == 32:
        return form
    return {"rows": form["rows"], **change_form(form["weights"][1][0], parameters.weight_bits)}


def update(
    parameters: FedXGBllr,
    combiner: Combiner,
    vector: Floats,
    round_: int,
    known: NDArray[Any],
    rng: np.random.Generator,
) -> Arrays:
    """Return a silo's vector of a round as arrays; ``known`` is the point that all have."""
    arrays = combiner.compact(vector, round_)
    if parameters.weight_bits == 32:
        return arrays
    weights = arrays.pop("weights")
    change = weights - np.tile(known, len(weights) // len(known))
    return {**arrays, **pack_change(change, parameters.weight_bits, rng)}


def read_update(
    parameters: FedXGBllr, combiner: Combiner, arrays: Arrays, round_: int, known: NDArray[Any]
) -> Floats:
    """Return the vector of :func:`update`'s arrays."""
    if parameters.weight_bits != 32:
        n = combiner.form(round_)["weights"][1][0]
        change = unpack_change(arrays, n, parameters.weight_bits)
        weights = (np.tile(known, n // len(known)) + change).astype(np.float32)
        arrays = {"rows": arrays["rows"], "weights": weights}
    return combiner.expand(arrays, round_)


def write_points(
    parameters: FedXGBllr,
    combiner: Combiner,
    state: CombinerState,
    known: NDArray[Any],
    rng: np.random.Generator,
) -> tuple[Arrays, CombinerState]:
    """Return the candidates for silos, and the state as silos will then have it."""
    if parameters.weight_bits == 32:
        return {"candidates": state.candidates.astype(combiner.point_type)}, state
    n_points, n = state.candidates.shape
    change = (state.candidates - known).reshape(-1)
    arrays = pack_change(change, parameters.weight_bits, rng)
    told = unpack_change(arrays, n_points * n, parameters.weight_bits).reshape(n_points, n)
    points = (known + told).astype(np.float32)
    return arrays, replace(state, candidates=points, solution=points[0])


def read_points(
    parameters: FedXGBllr, combiner: Combiner, told: Tensors, known: NDArray[Any]
) -> NDArray[Any]:
    """Return the candidates of :func:`write_points`."""
    n = len(known)
    if parameters.weight_bits == 32:
        return told.get("candidates", combiner.point_type, (None, n))
    per_byte = 1 if parameters.weight_bits == 8 else 2
    n_points = max(1, len(told.get("steps", "|u1", (None,))) * per_byte // n)
    form = change_form(n_points * n, parameters.weight_bits)
    arrays = {name: told.get(name, *shape) for name, shape in form.items()}
    change = unpack_change(arrays, n_points * n, parameters.weight_bits).reshape(n_points, n)
    return (known + change).astype(np.float32)
