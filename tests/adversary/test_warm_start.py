"""Other starting models than the signed job's: none reaches a silo's rows, and none a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.exchange import Place, Silo, Step
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.warm_start import MODEL, STARTING, StartingModel
from tests.adversary.arena import variant
from tests.federation.memory import MemoryLink

SATURATED = 100.0
"""Margin of rows that are to have no gradient, so that a sum is of the others alone."""


def isolating(model: Ensemble) -> bytes:
    """Return a model that leaves gradients to the rows of one leaf only."""
    tree = model.trees[0]
    leaves = np.flatnonzero(tree.is_leaf)
    values = tree.threshold.copy()
    values[leaves[1:]] = SATURATED
    return replace(model, trees=(replace(tree, threshold=values), *model.trees[1:])).save()


class ToldLink(MemoryLink):
    """A coordinator that sends one silo another starting model; notes what leaves the silos."""

    other: bytes
    left: list[tuple[Silo, str]]

    def exchange(self, step: Step[Any, Any], at: Place, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        self.left.append((self.silo, step.name))
        if step is STARTING and self.silo == "silo-0":
            return StartingModel(np.frombuffer(self.other, np.uint8))
        return reply


@pytest.mark.parametrize("name", ["hist-on", "bagging-on"])
@pytest.mark.parametrize("lie", [isolating, lambda _: b"", lambda model: model.slice(0).save()])
def test_a_silo_takes_no_starting_model_but_that_of_the_signed_job(
    name: str, lie: Callable[[Ensemble], bytes]
) -> None:
    asked = variant(name)
    left: list[tuple[Silo, str]] = []
    told = {"other": lie(load(asked.starting_model)), "left": left}
    outcome = asked.run(type("Told", (ToldLink,), told), "told")
    assert "from which the signed job starts" in str(outcome.errors[Silo("silo-0")])
    assert [step for silo, step in left if silo == "silo-0"] == ["starting"]


@pytest.mark.parametrize("name", ["hist-on", "bagging-on"])
def test_a_silo_takes_no_result_that_does_not_begin_with_the_starting_model(name: str) -> None:
    asked = variant(name)
    outcome = asked.run(MemoryLink, "honest")
    assert outcome.artefact is not None
    files = outcome.artefact.files
    model, first = load(files[MODEL]), load(asked.starting_model)
    n = first.version
    new = replace(
        model, trees=model.trees[n:], steps=tuple(s - n for s in model.steps[n:]), round_ends=()
    )
    lies: Mapping[str, bytes] = {
        "without it": new.save() if name == "hist-on" else model.slice(0).save(),
        "another": isolating(model),
        "only it": first.save(),
        "no model": b"",
    }
    for check in outcome.checks.values():
        check(files)
        for lie in lies.values():
            with pytest.raises(ModelRejected):
                check({**files, MODEL: lie})
