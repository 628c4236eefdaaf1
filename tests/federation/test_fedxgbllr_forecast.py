"""FedXGBllr's forecast beside the bytes that move."""

from __future__ import annotations

import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.steps import RoundVector
from hedgerow.services.wire import codec_of
from tests.federation import memory
from tests.federation.memory import KeyedIdentity, run_in_memory
from tests.federation.stacking import CASES, job, silos, small, table, traffic


class Certified(KeyedIdentity):
    """Has a certificate and signatures as long as an authority's and ECDSA's."""

    def __init__(self, silo):
        super().__init__(silo)
        self.certificate = self.certificate.ljust(750)

    def sign(self, message):
        return super().sign(message) + bytes(39)

    def verify(self, silo, certificate, message, signature):
        super().verify(silo, certificate.rstrip(), message, signature[:-39])


def test_forecast_of_the_papers_setting_counts_the_network_exactly():
    strategy = FedXGBllr()
    task = job(Task.BINARY, strategy, booster=Booster(eta=0.1, max_depth=8))
    schema = table(Task.BINARY, 2, 0).schema
    plan = task.strategy.forecast(strategy, task, schema, {f"s{i}": 2442 for i in range(10)})
    _, up, down = plan.steps["ExchangeWeights"]
    assert 10 * 4 * 3905 <= up <= 10 * (4 * 3905 + 100)
    assert 10 * 4 * 3905 <= down <= 10 * (4 * 3905 + 100)
    assert plan.rounds == 11
    assert "network: 3905 weights" in plan.notes
    assert plan.reveals == task.strategy.reveals


@pytest.mark.parametrize(("n_silos", "alpha", "gamma"), [(3, 0.0, 0.0), (10, 5.0, 5.0)])
def test_forecast_is_within_a_tenth_of_what_the_default_network_sends(n_silos, alpha, gamma):
    booster = Booster(eta=0.1, max_depth=6, alpha=alpha, gamma=gamma)
    parameters = job(Task.BINARY, FedXGBllr(trees=60, epochs=1), booster=booster)
    data = silos(Task.BINARY, n_silos, n=300)
    outcome, moved = traffic(parameters, data, identities=Certified)
    assert outcome.error is None
    plan = parameters.strategy.forecast(
        parameters.parameters,
        parameters,
        data["s00"].schema,
        {name: d.n_samples for name, d in data.items()},
    )
    # traffic() sees what is the same for several silos, a reply, as often as it is sent
    planned = n_silos * sum(up + down for _, up, down in plan.steps.values())
    assert moved == pytest.approx(planned, rel=0.1)


@pytest.mark.parametrize(("task", "combiner"), CASES)
def test_forecast_counts_a_rounds_vectors_as_they_travel(task, combiner):
    parameters = job(task, small(combiner=combiner, center_target=False))
    data = silos(task, 3)
    sent = 0

    def count(payload):
        nonlocal sent
        if isinstance(payload, RoundVector):
            frames = codec_of(RoundVector).encode(payload)
            sent = max(sent, sum(len(m.SerializeToString()) for m in frames))
        return payload

    original = memory.through_wire
    memory.through_wire = count
    try:
        run_in_memory(parameters, data, through_wire=True)
    finally:
        memory.through_wire = original
    plan = parameters.strategy.forecast(
        parameters.parameters,
        parameters,
        data["s00"].schema,
        {name: d.n_samples for name, d in data.items()},
    )
    call = "ExchangeWeights" if parameters.parameters.is_network else "ExchangeSums"
    if combiner == "mean":
        assert plan.steps.get(call, (0, 0, 0))[1] == 0
    elif combiner != "leaves":
        a_round = plan.steps[call][1] / parameters.parameters.n_rounds
        assert a_round == pytest.approx(sent, rel=0.05, abs=250)
