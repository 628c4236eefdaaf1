"""A real Prometheus in a temporary folder, scraping processes under test."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.federation.processes import wait_until


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
    folder: Path, targets: Mapping[str, list[str]], rules: Path | None = None
) -> Iterator[Prometheus]:
    """Run Prometheus with one job a key of ``targets``, scraping twice a second."""
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is not installed: run `make services`"
    config = {
        "global": {
            "scrape_interval": "500ms",
            "scrape_timeout": "400ms",
            "evaluation_interval": "1s",
        },
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": hosts}]}
            for name, hosts in targets.items()
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            server = Prometheus(port)
            wait_until(server.ready, 30, "Prometheus is ready")
            yield server
        finally:
            process.terminate()
            process.wait(200)
