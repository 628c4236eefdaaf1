"""``hedgerow console`` as a process, and requests to it that no browser makes."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from tests.federation.processes import PATIENCE_SECONDS, Federation

JOB = """name = "{name}"
strategy = "bagging"
min_silos = 3
silos = ["s0", "s1", "s2"]
metrics = ["auc", "logloss"]

[bagging]
rounds = {rounds}

[booster]
max_depth = 3
"""


@contextmanager
def console(fed: Federation, *more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that ``hedgerow console`` prints, and its process."""
    words = ("console", "--json", "--coordinator", fed.address,
             "--identity", str(fed.folder / "pki/operator"), *more)  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "hedgerow.coordinator.cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    line = process.stdout.readline()
    assert line, process.stderr.read()
    try:
        yield json.loads(line)["address"], process
    except BaseException:
        process.kill()
        raise
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_SECONDS)
    assert process.returncode == 0


def here(process: subprocess.Popen[str]) -> str:
    """Where a console listens that others reach elsewhere."""
    (one,) = psutil.Process(process.pid).net_connections("tcp4")
    return f"http://127.0.0.1:{one.laddr.port}"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: str


def asked(address: str, method: str, path: str, body: str = "", **headers: str) -> Answer:
    """What the console answers to a request that no browser makes."""
    to = urlsplit(address)
    connection = http.client.HTTPConnection(str(to.hostname), to.port, timeout=PATIENCE_SECONDS)
    connection.request(method, path, body.encode() or None, headers)
    got = connection.getresponse()
    found = Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read().decode())
    connection.close()
    return found
