"""FedXGBllr's payloads: what goes in comes out, with alternatives and with arrays over 1 MiB."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hedgerow.api.federation.v1.stacking_pb2 import StackingPart
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    EnsembleOffer,
    Ensembles,
    LabelScale,
    LeafSlopes,
    MetricSums,
    NextPoints,
    PackedEnsemble,
    PointChoice,
    Points,
    ProgressQuery,
    QuantisedChange,
    RateSums,
    RoundState,
    RoundVector,
    SharedCuts,
    StackingProgress,
    TrainedWeights,
)
from hedgerow.services.wire import codec_of
from tests.federation.memory import through_wire

RNG = np.random.default_rng(1)
DOUBLES = RNG.normal(size=200_000)
SINGLES = RNG.normal(size=300_000).astype(np.float32)
PACK = RNG.integers(0, 256, 1_200_000).astype(np.uint8)
CHANGE = QuantisedChange(PACK[:700], SINGLES[:3])
SMALL, LARGE = PackedEnsemble(PACK[:9], np.arange(3, dtype=np.uint16)), PackedEnsemble(PACK)
BY_SILO = Ensembles({Silo("ash"): LARGE, Silo("elm"): SMALL, Silo("oak"): LARGE})
LABELS = LabelScale(0.1, 3.0)
CUTS = SharedCuts(np.array([2, 0, 1]), SINGLES[:3])
PAYLOADS = [
    LABELS,
    CUTS,
    EnsembleOffer(7, LARGE),
    EnsembleOffer(0, None),
    Ensembles({}),
    BY_SILO,
    RoundVector(equations=DOUBLES),
    RoundVector(slopes=LeafSlopes(DOUBLES[:2], SINGLES)),
    RoundVector(network=TrainedWeights(5, SINGLES)),
    RoundVector(network=TrainedWeights(5, change=CHANGE)),
    NextPoints(Points(singles=SINGLES.reshape(3, -1)), final=True),
    NextPoints(Points(doubles=DOUBLES[None]), final=False),
    NextPoints(Points(change=CHANGE), final=False),
    MetricSums(DOUBLES[:5]),
    PointChoice(2, keeps_all=True, final=False),
    PointChoice(0, keeps_all=False, final=True, best=SINGLES),
    RateSums(SINGLES, 12),
    ProgressQuery(),
    StackingProgress(),
    StackingProgress(LABELS, CUTS),
    StackingProgress(LABELS, None, RoundState(3, BY_SILO, Points(doubles=DOUBLES[None]), 1, False)),
    StackingProgress(
        state=RoundState(2, BY_SILO, Points(change=CHANGE), 0, True, Points(singles=SINGLES[None]))
    ),
]


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    else:
        assert found == expected


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: type(payload).__name__)
def test_a_payload_comes_back_as_it_was(payload: Any) -> None:
    assert_same(through_wire(payload), payload)


def test_every_payload_of_the_family_is_tried() -> None:
    messages = {f.message_type.name for f in StackingPart.DESCRIPTOR.fields if f.message_type}
    assert messages == {type(payload).__name__ for payload in PAYLOADS}
    assert {codec_of(type(payload)).frame for payload in PAYLOADS} == {"stacking"}
