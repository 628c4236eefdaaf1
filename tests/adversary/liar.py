"""A coordinator that lies, as a process: ``python liar.py LIE python -m hedgerow.coordinator ...``.

What it tells silos is its own, and all else is the program's: certificates, calls, checks, files.
The file ``LIE`` has the lie of the job under way, or nothing; the sets of silos over which sums
opened are written beside it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.boosting import warm_start
from hedgerow.boosting.exchange import ExchangeKey, Step
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.histogram.steps import ClosedTrees, LevelDecision, NodeTotals
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.requests import SumOutcome
from hedgerow.boosting.sums.steps import PresentSet
from hedgerow.boosting.trees.loading import load
from hedgerow.coordinator.server.barrier import Barrier

VICTIM = "s2"
LEAVES, LOST, MODEL = "leaves", "lost", "model"


def _tiny(totals: NodeTotals | None) -> NodeTotals | None:
    """Return node totals from which leaves of almost nothing follow, under the word of the true."""
    return totals and replace(totals, sums=totals.sums >> 20)


def told(lie: str, step: Step[Any, Any], at: ExchangeKey, reply: Any) -> Any:
    """Return what silos are told in place of a reply."""
    if lie == LEAVES and isinstance(reply, LevelDecision | ClosedTrees):
        return replace(reply, totals=_tiny(reply.totals))
    if lie == LOST and at.round == 1 and isinstance(reply, PresentSet):
        return PresentSet(tuple(silo for silo in reply.present if silo != VICTIM), {})
    return reply


def main(file: Path) -> None:
    """Change the coordinator's replies and results from now on."""
    answer, opens, artefact = Barrier.answer, CoordinatorSums.sum, warm_start.artefact

    def answers(
        self: Barrier, step: Step[Any, Any], at: ExchangeKey, replies: Mapping[Any, Any]
    ) -> None:
        lie = file.read_text()
        changed = {silo: told(lie, step, at, reply) for silo, reply in replies.items()}
        answer(self, step, at, changed)

    def opened(outcome: SumOutcome) -> None:
        with file.with_suffix(".opened").open("a") as log:
            log.write(f"{file.read_text()} {outcome.at.round} {' '.join(outcome.present)}\n")

    async def sums(self: CoordinatorSums, *given: Any, **more: Any) -> Any:
        outcome = await opens(self, *given, **more)
        if outcome.total is not None:
            opened(outcome)
        return outcome

    def result(job: Any, schema: Any, checkpoint: bytes, starting: bytes) -> Artefact:
        made = artefact(job, schema, checkpoint, starting)
        if file.read_text() != MODEL:
            return made
        model = load(made.files[made.model])
        leaves = [one.threshold * (1 + one.is_leaf).astype(np.float32) for one in model.trees]
        trees = (replace(one, threshold=t) for one, t in zip(model.trees, leaves, strict=True))
        raw = replace(model, trees=tuple(trees)).save()
        return replace(made, files={**made.files, made.model: raw})

    Barrier.answer = answers  # type: ignore[method-assign]
    CoordinatorSums.sum = sums  # type: ignore[method-assign]
    warm_start.artefact = result


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.argv = sys.argv[4:]  # the interpreter, -m
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
