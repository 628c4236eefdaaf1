"""Traces of jobs: real processes export to a real OTLP server; what spans say, and what never."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

from tests.federation.processes import Federation, federation, wait_until

JOB = """
name = "traced"
strategy = "histogram"
label = "label"
task = "binary"
seed = 1
min_silos = 3
[histogram]
rounds = 2
[booster]
max_depth = 2
max_bin = 16
"""
SAID = {"attempt", "silo", "round", "level", "step", "bytes", "bytes_up", "bytes_down", "strategy",
        "state"}  # fmt: skip


class Collector(service.TraceServiceServicer):
    """OpenTelemetry's own service, which keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any], Any]] = []
        self._lock = threading.Lock()

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            for one in request.resource_spans:
                about = {item.key: item.value.string_value for item in one.resource.attributes}
                for scope in one.scope_spans:
                    self.spans += [(about["service.name"], about, span) for span in scope.spans]
        return pb.ExportTraceServiceResponse()


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    made, server = Collector(), grpc.server(ThreadPoolExecutor(4))
    service.add_TraceServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"http://127.0.0.1:{port}"
    server.stop(None)


def start(fed: Federation, to: str) -> None:
    """Start all processes, with a crypto process at each silo, which exports nothing."""
    fed.coordinator_settings["traces"] = to
    fed.start_coordinator()
    for silo in fed.silos:
        fed.start_agent(silo, traces=to, crypto=fed.start_crypto(silo))


def test_a_job_is_one_trace_over_all_processes_and_has_no_values(
    collector: tuple[Collector, str], tmp_path: Path
) -> None:
    found, to = collector
    with federation(tmp_path, 3, 200, start=False) as fed:
        start(fed, to)
        view = fed.end(fed.submit(JOB))
        assert view.state == "SUCCEEDED", view.detail
        wait_until(lambda: "job" in {span.name for *_, span in found.spans}, 30, "the job's span")
    # Processes that have ended have exported all of theirs.
    spans = [(name, about, span) for name, about, span in found.spans]
    assert len({span.trace_id for *_, span in spans}) == 1
    names = defaultdict(set)
    for name, _, span in spans:
        names[name].add(span.name)
    assert names["hedgerow-coordinator"] >= {"job", "attempt", "round"}
    assert any(name.startswith("await ") for name in names["hedgerow-coordinator"])
    assert names["hedgerow-agent"] >= {"take part", "ExchangeHistograms"}
    assert names["hedgerow-agent"] >= {"crypto JoinGroup", "crypto SealShares"}
    assert names.keys() == {"hedgerow-coordinator", "hedgerow-agent"}
    by_id = {span.span_id: span for *_, span in spans}
    assert len(by_id) == len(spans), "every span once"
    (root,) = [span for *_, span in spans if not span.parent_span_id]
    assert root.name == "job"
    assert {span.parent_span_id for *_, span in spans} - {b""} <= by_id.keys()
    rounds = [span for *_, span in spans if span.name == "round"]
    assert len(rounds) == 2
    assert by_id[rounds[0].parent_span_id].name == "attempt"
    keys = {item.key for *_, span in spans for item in span.attributes}
    assert keys <= {f"hedgerow.{name}" for name in SAID}
    assert not any(span.events for *_, span in spans), "events would have errors' texts"


def test_of_an_error_a_span_has_the_kind_and_not_the_text(
    collector: tuple[Collector, str], tmp_path: Path
) -> None:
    found, to = collector
    before = len(found.spans)
    with federation(tmp_path, 3, 200, start=False) as fed:
        start(fed, to)
        view = fed.end(fed.submit(JOB.replace('label = "label"', 'label = "salary"')))
        assert view.state == "FAILED"
        wait_until(lambda: "job" in {s.name for *_, s in found.spans[before:]}, 30, "its span")
    texts = [str(span) for *_, span in found.spans[before:]]
    assert any("STATUS_CODE_ERROR" in text for text in texts)
    assert not any("salary" in text for text in texts)


def test_without_a_collector_nothing_is_imported() -> None:
    script = (
        "import sys, hedgerow.client_agent.__main__, hedgerow.coordinator.__main__\n"
        "from hedgerow.services.process import tracing\n"
        "tracing.configure('', 'agent')\n"
        "with tracing.span('a', 'job'): tracing.record('b', 1.0)\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
