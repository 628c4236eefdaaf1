"""What ``hedgerow plan`` says of vertical jobs, against what they move."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import Vertical
from hedgerow.boosting.strategies.secureboost.forecast import Level, levels
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation import vertical
from tests.federation.memory import MemoryLink, run_in_memory

N_ROWS = 4000


class CountingLink(MemoryLink):
    """Counts the frames' bytes by silo and kind, as they would travel."""

    up: ClassVar[defaultdict[str, Counter[str]]] = defaultdict(Counter)
    down: ClassVar[defaultdict[str, Counter[str]]] = defaultdict(Counter)
    calls: ClassVar[defaultdict[str, Counter[str]]] = defaultdict(Counter)

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        from hedgerow.services.rpc.exchange import KINDS, framed, serialised

        reply = super().exchange(step, at, offer)
        names = {"job_id": "job-1234567", "attempt": 1, "kind": KINDS[step.call]}
        up = sum(map(len, framed(step.name, at, serialised(offer), **names)))
        down = sum(map(len, framed(step.name, at, serialised(reply))))
        name = step.call.value
        self.calls[self.silo][name] += 1
        self.up[self.silo][name] += up
        self.down[self.silo][name] += down
        return reply


CASES: dict[str, dict[str, Any]] = {
    "standard": {},
    "a node at a time": {"booster": {"max_depth": 4, "max_bin": 8}, "max_split_nodes": 1},
    "mix": {"mode": "mix", "rounds": 4, "key_bits": 1024},
    "mix, odd": {"mode": "mix", "rounds": 3, "rounds_per_party": 1, "key_bits": 1024},
    "layered": {"mode": "layered", "host_depth": 2, "guest_depth": 2},
    "complete secure": {"complete_secure": 1, "rounds": 3},
    "goss": {"sampling": "goss"},
    "elgamal": {"encryption": "elgamal"},
    "information": {"information": True},
    "two hosts": {"widths": [3, 4, 4]},
    "unequal widths": {"widths": [2, 8]},
    "classes together": {"task": Task.MULTICLASS, "multi_output": True},
    "classes one by one": {"task": Task.MULTICLASS, "rounds": 1},
    "regression": {"task": Task.REGRESSION},
    "aligned already": {"alignment": "digest", "fraction_bits": 40},
}


@pytest.mark.parametrize("case", CASES)
def test_the_forecast_is_within_a_tenth_of_what_travels(case: str) -> None:
    # Of longer keys in one case, which takes as long as the others together.
    bits = 2048 if case == "standard" else vertical.KEY_BITS
    changes = {"rounds": 2, "key_bits": bits, "validation": 0.0, **CASES[case]}
    task, widths = changes.pop("task", Task.BINARY), changes.pop("widths", [4, 6])
    booster = {"max_depth": 3, "max_bin": 16, "min_child_weight": 0, **changes.pop("booster", {})}
    whole = vertical.table(N_ROWS, sum(widths), task)
    parties = vertical.cut_by_columns(whole, widths)
    if changes.get("alignment") == "digest":
        parties = {name: vertical.by_id(party) for name, party in parties.items()}
    job = vertical.job(task, booster, **changes)
    for counted in (CountingLink.up, CountingLink.down, CountingLink.calls):
        counted.clear()
    vaults = {
        name: LocalVault(engine=Engine(workers=1), insecure_test_keys=True) for name in parties
    }
    outcome = run_in_memory(
        job, parties, schema=parties["guest"].schema, vaults=vaults.__getitem__,
        make_link=CountingLink,
    )  # fmt: skip
    assert outcome.error is None, (outcome.error, outcome.errors)
    rows = {Silo(name): party.n_samples for name, party in parties.items()}
    layout = job.strategy.layout
    assert isinstance(layout, Vertical)
    schemas = {Silo(name): party.schema for name, party in parties.items()}
    plans = layout.forecasts(job.parameters, job, schemas, rows)
    for party in ("guest", "host"):
        names = [name for name in parties if name.startswith(party)]
        plan = plans[Silo(names[0])]
        for k, counted in enumerate((CountingLink.up, CountingLink.down), start=1):
            planned = sum(step[k] for step in plan.steps.values())
            moved = sum(sum(counted[name].values()) for name in names) / len(names)
            assert planned == pytest.approx(moved, rel=0.1), (party, k, dict(counted), plan.steps)
        for call, counted in (
            ("ExchangeGradients", CountingLink.up if party == "guest" else CountingLink.down),
            ("ExchangeHistograms", CountingLink.down if party == "guest" else CountingLink.up),
        ):
            k = 1 if counted is CountingLink.up else 2
            moved = sum(counted[name][call] for name in names) / len(names)
            assert plan.steps[call][k] == pytest.approx(moved, rel=0.1), (party, call)


def test_the_plan_of_a_scoring_job_has_no_trees() -> None:
    job = vertical.job(predict_from="earlier", key_bits=2048)
    schema = vertical.table(10, 4).schema
    plan = job.strategy.forecast(job.parameters, job, schema, {Silo("guest"): 10, Silo("host"): 10})
    assert not {"ExchangeGradients", "ExchangeHistograms"} & set(plan.steps)
    assert "'earlier', whose size is not known here" in plan.notes[0]
    hiding = replace(job, parameters=replace(job.parameters, inference="eini"))
    notes = hiding.strategy.forecast(hiding.parameters, hiding, schema, {Silo("guest"): 10}).notes
    assert "512 bytes more, from each party to the next, for each row, leaf and output" in notes[0]
    assert "fewer than 64 ways through the trees" in notes[1]


@pytest.mark.parametrize(
    ("booster", "nodes"),
    [
        ({"max_depth": 3}, [(1, 1, 1), (1, 2, 2), (2, 4, 4)]),
        ({"max_depth": 3, "max_leaves": 3}, [(1, 1, 1), (1, 2, 1)]),
        ({"max_depth": 0, "max_leaves": 4}, [(1, 1, 1), (1, 2, 2)]),
        ({"grow_policy": "lossguide", "max_leaves": 4}, [(1, 1, 1), (1, 2, 1), (1, 2, 1)]),
        ({"grow_policy": "lossguide", "max_depth": 1}, [(1, 1, 1)]),
    ],
)
def test_levels_of_a_full_tree(booster: dict[str, Any], nodes: list[tuple[int, int, int]]) -> None:
    given = Booster(**booster)
    assert levels(given, given.max_depth) == [Level(*n) for n in nodes]


@pytest.mark.parametrize(
    ("rounds", "rows", "expected"),
    [(3, 1000, "seconds"), (10, 100_000, "minutes"), (100, 1_000_000, "hours")],
)
def test_the_plan_says_how_long_it_computes(rounds: int, rows: int, expected: str) -> None:
    job = vertical.job(rounds=rounds, key_bits=2048)
    schema = vertical.table(10, 4).schema
    plan = job.strategy.forecast(
        job.parameters, job, schema, {Silo("guest"): rows, Silo("host"): rows}
    )
    assert plan.cpu_class == expected
