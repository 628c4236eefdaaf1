"""Records of the two halves: they are read as they were written, and other bytes are refused."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.histogram.steps import CutPoints, OpeningTerms, TrainingState
from hedgerow.boosting.strategies.histogram.stored import (
    BegunRound,
    RoundCheckpoint,
    SiloCopy,
)

CUTS = CutPoints(np.array([2, 0]), np.array([0.5, 1.5], np.float32))
STATE = TrainingState(np.arange(9, dtype=np.uint8), OpeningTerms(1 << 40, -3, 0.1, CUTS))


def same(a: TrainingState | None, b: TrainingState) -> bool:
    return (
        a is not None
        and a.model.tobytes() == b.model.tobytes()
        and (a.terms.n_rows, a.terms.weight_exponent, a.terms.base_score) == (1 << 40, -3, 0.1)
        and np.array_equal(a.terms.cuts.sizes, b.terms.cuts.sizes)
        and np.array_equal(a.terms.cuts.values, b.terms.cuts.values)
    )


def test_records_are_read_as_they_were_written() -> None:
    read = RoundCheckpoint.decode(RoundCheckpoint(7, 5, 0.25, STATE).encode())
    assert (read.round, read.best_round, read.best_score) == (7, 5, 0.25)
    assert same(read.state, STATE)
    assert (
        RoundCheckpoint.decode(
            RoundCheckpoint(np.int64(7), 5, np.float64(np.nan), None).encode()
        ).state
        is None
    )
    silos = (Silo("a"), Silo("b\n"))
    for terms in (STATE.terms, None):
        begun = BegunRound.decode(BegunRound(3, silos, STATE.model, terms).encode())
        assert (begun.round, begun.present) == (3, silos)
        assert begun.model.tobytes() == STATE.model.tobytes()
        assert (begun.terms is None) == (terms is None)
    copy = SiloCopy.decode(SiloCopy(4, STATE).encode())
    assert copy.round == 4
    assert same(copy.state, STATE)


@pytest.mark.parametrize("decode", [RoundCheckpoint.decode, BegunRound.decode, SiloCopy.decode])
@pytest.mark.parametrize("data", [b"", b"nothing of the kind", RoundCheckpoint(1, 0, 0.0, None)])
def test_other_bytes_are_refused(decode, data: bytes | RoundCheckpoint) -> None:  # type: ignore[no-untyped-def]
    raw = data.encode()[:-1] if isinstance(data, RoundCheckpoint) else data
    with pytest.raises(DataError):
        decode(raw)
