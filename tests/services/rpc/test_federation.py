"""What a silo says of itself when it registers and accepts, and what is not believed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hedgerow.api.federation.v1 import federation_service_pb2 as pb
from hedgerow.api.federation.v1 import job_pb2, schema_pb2
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.work import Work
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.acceptance import (
    MAX_RATES,
    MAX_ROWS,
    MAX_SENT,
    Acceptance,
    Declined,
    put_rates,
    read_answer,
    read_rates,
    read_sent,
)
from hedgerow.services.wire.job_view import SentPayloads

SCHEMA = Schema((Feature("x"),), "y", Task.MULTICLASS, 3, ("a", "b", "c"))


def answer(n_samples: int = 5, n_classes: int = 3) -> pb.AcceptAssignmentRequest:
    schema = schema_wire.encode(SCHEMA)
    schema.n_classes = n_classes
    accepted = pb.Acceptance(schema=schema, n_samples=n_samples, job_digest=b"digest")
    return pb.AcceptAssignmentRequest(accepted=accepted)


@pytest.mark.parametrize("n_samples", [0, 5, MAX_ROWS])
def test_an_answer_is_read_as_it_was_given(n_samples: int) -> None:
    read = read_answer(Silo("a"), answer(n_samples))
    assert read == Acceptance(SCHEMA, n_samples, b"digest", b"", b"")


def test_a_silo_that_declines_says_why() -> None:
    request = pb.AcceptAssignmentRequest(declined="policy")
    assert read_answer(Silo("a"), request) == Declined("policy")


def test_a_request_without_an_answer_is_refused() -> None:
    with pytest.raises(OfferRejected, match="mallory: expected an answer"):
        read_answer(Silo("mallory"), pb.AcceptAssignmentRequest())


@pytest.mark.parametrize("n_samples", [MAX_ROWS + 1, 1 << 63, (1 << 64) - 1])
def test_rows_that_no_silo_has_are_refused_with_its_name(n_samples: int) -> None:
    with pytest.raises(OfferRejected, match=rf"mallory: {n_samples} rows"):
        read_answer(Silo("mallory"), answer(n_samples))


def test_classes_without_number_are_refused_with_the_silo_s_name() -> None:
    with pytest.raises(OfferRejected, match="mallory: schema: 2147483647 classes"):
        read_answer(Silo("mallory"), answer(n_classes=2**31 - 1))


def test_more_class_names_than_there_may_be_classes_are_refused() -> None:
    message = schema_pb2.TableSchema(task=job_pb2.TASK_MULTICLASS, classes=["c"] * ((1 << 16) + 1))
    with pytest.raises(OfferRejected, match="65537 classes"):
        schema_wire.decode(message)


def test_what_a_silo_sent_is_its_own_whatever_name_it_gives() -> None:
    request = pb.ReportOutcomeRequest()
    request.sent.add(silo="victim", method="ExchangeTrees", payloads=3, bytes=MAX_SENT)
    assert read_sent(Silo("mallory"), request) == (
        SentPayloads("mallory", "ExchangeTrees", 3, MAX_SENT),
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"method": "ExchangeNothing", "payloads": 1}, "'ExchangeNothing', no kind of exchange"),
        ({"method": "", "payloads": 1}, "no kind of exchange"),
        ({"method": "ExchangeTrees", "payloads": MAX_SENT + 1}, "payloads or bytes sent"),
        ({"method": "ExchangeTrees", "bytes": (1 << 64) - 1}, "payloads or bytes sent"),
    ],
)
def test_payloads_that_no_silo_can_have_sent_are_refused(wrong: dict[str, Any], why: str) -> None:
    request = pb.ReportOutcomeRequest()
    request.sent.add(**wrong)
    with pytest.raises(OfferRejected, match=f"mallory: .*{why}"):
        read_sent(Silo("mallory"), request)


def test_rates_are_read_as_announced_and_kinds_of_a_newer_agent_left_out() -> None:
    request = pb.RenewLeaseRequest()
    rates = {kind: 2.5 + k for k, kind in enumerate(Work)}
    put_rates(rates, request.rates)
    assert read_rates(Silo("a"), request.rates) == rates
    del request.rates[1:]
    request.rates.add(kind=4711, per_second=1.0)  # type: ignore[arg-type]
    assert read_rates(Silo("a"), request.rates) == {Work.EXCHANGE: 2.5}


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-300, 1e16, math.inf, math.nan])
def test_a_rate_of_no_machine_is_refused(rate: float) -> None:
    request = pb.RenewLeaseRequest()
    request.rates.add(kind=pb.WORK_KIND_CELL, per_second=rate)
    with pytest.raises(OfferRejected, match="mallory: expected rates from"):
        read_rates(Silo("mallory"), request.rates)


def test_more_rates_than_there_are_kinds_of_work_are_refused() -> None:
    request = pb.RenewLeaseRequest()
    for _ in range(MAX_RATES + 1):
        request.rates.add(kind=pb.WORK_KIND_CELL, per_second=1.0)
    with pytest.raises(OfferRejected, match="mallory: 33 rates, at most 32"):
        read_rates(Silo("mallory"), request.rates)
