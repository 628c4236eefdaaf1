"""A real Prometheus in a temporary folder, scraping processes under test, and an Alertmanager."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.federation.processes import ROOT, wait_until

ALERTMANAGER = ROOT / "deploy/prometheus/alertmanager.yml"


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=100) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series of an instant query."""
        found = self.get("/api/v1/query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        found = self.get("/api/v1/alerts")["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}

    def ready(self) -> bool:
        try:
            return bool(self.get("/api/v1/targets")["activeTargets"])
        except (OSError, ValueError):
            return False


@contextmanager
def prometheus(
    folder: Path,
    targets: Mapping[str, list[str]],
    rules: Path | None = None,
    alertmanagers: Sequence[str] = (),
    interval: str = "1s",
) -> Iterator[Prometheus]:
    """Run Prometheus with one job a key of ``targets``.

    A scrape that takes longer than ``interval`` begins the wait of every alert again.
    """
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is not installed: run `make services`"
    config = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": "1s",
        },
        "rule_files": [] if rules is None else [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": hosts}]}
            for name, hosts in targets.items()
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    with running(
        folder / "prometheus.log",
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ):
        server = Prometheus(port)
        wait_until(server.ready, 30, "Prometheus is ready")
        yield server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(said: Path, *command: str) -> Iterator[None]:
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(200)


class Alertmanager:
    """A running server of the example's settings, and what its receivers were told."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.told: list[tuple[str, str, str]] = []
        """Receiver, alert and status (firing, resolved) of each notification."""

    def post(self, *alerts: Mapping[str, str]) -> None:
        """Raise alerts with these labels, as Prometheus does."""
        request = urllib.request.Request(
            f"http://{self.address}/api/v2/alerts",
            json.dumps([{"labels": labels} for labels in alerts]).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=100).close()

    def ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10).close()
        except OSError:
            return False
        return True


@contextmanager
def alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """Run the example's Alertmanager; its receivers are web hooks here, and wait for nothing."""
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    assert program is not None, "alertmanager is not installed: run `make services`"
    server = Alertmanager(free_port())

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for one in document["alerts"]:
                name = one["labels"]["alertname"]
                server.told.append((document["receiver"], name, one["status"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    hook = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    config = yaml.safe_load(ALERTMANAGER.read_text())
    config["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    for receiver in config["receivers"]:
        url = f"http://127.0.0.1:{hook.server_port}/"
        receiver["webhook_configs"] = [{"url": url, "send_resolved": True}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alertmanager.yml").write_text(json.dumps(config))
    serving = threading.Thread(target=hook.serve_forever)
    serving.start()
    try:
        with running(
            folder / "alertmanager.log",
            program,
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={server.address}",
            "--cluster.listen-address=",
        ):
            wait_until(server.ready, 30, "Alertmanager is ready")
            yield server
    finally:
        hook.shutdown()
        serving.join()
        hook.server_close()
