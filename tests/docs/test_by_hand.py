"""The page *By hand, no containers*: its commands, run as they are, with real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hedgerow.coordinator.operator import joining
from hedgerow.services.process.probe import leased
from tests.federation.processes import PATIENCE_SECONDS, wait_until, write_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/by-hand.md"


@dataclass
class Shell:
    """Runs command lines in a folder; those that end in ``&`` go on beside."""

    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> str:
        self.ran.append(line)
        files = {sign: self.folder / name for sign, name in re.findall(r" ([<>]) (\S+)", line)}
        bare = re.sub(r" [<>] \S+", "", line)
        words = [sys.executable, "-m", *shlex.split(bare.removesuffix("&"))]
        environment = {**os.environ, "HEDGEROW_CONFIG": str(self.folder / "config.toml"),
                       "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # fmt: skip
        if line.endswith("&"):
            with (
                (self.folder / "log").open("ab") as log,
                files.get(">", self.folder / "log").open("ab") as out,
            ):
                self.running.append(
                    subprocess.Popen(
                        words, cwd=self.folder, env=environment, stdout=out, stderr=log
                    )
                )
            return ""
        if "<" in files:
            wait_until(lambda: bool(files["<"].read_text()), PATIENCE_SECONDS, "it is written")
        done = subprocess.run(
            words, cwd=self.folder, env=environment, text=True, capture_output=True,
            input=files["<"].read_text() if "<" in files else "y\n", timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(PATIENCE_SECONDS)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.stop()


def commands(page: str) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def is_ready(silo: Path) -> bool:
    return leased(joining.addresses(silo / "agent.toml")["metrics"])


def test_the_pages_commands_lead_from_nothing_to_a_model(shell: Shell) -> None:
    page, folder = PAGE.read_text(), shell.folder
    for seed, silo in enumerate(("north", "south")):
        write_table(folder / f"{silo}.parquet", 60, seed)
    (folder / "job.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    lines = commands(page)
    ready: list[str] = []
    invited: list[str] = []
    for line in lines:
        if line == "hedgerow doctor north":  # people see `registered` before they go on
            ready = [one for one in shell.ran if "north" in one and "pki sign" not in one]
            invited = [one for one in shell.ran if "south" in one]
            for silo in ("north", "south"):
                wait_until(lambda silo=silo: is_ready(folder / silo), 60, f"{silo} is ready")  # type: ignore[misc]
        shell(line)
    assert len(ready) == 3, "three commands a silo from nothing to ready"
    assert len(invited) == 3, "with a token, those of the owner of the CA are counted"
    (inviting,) = (one for one in shell.running if "invite" in one.args)  # type: ignore[operator]
    assert inviting.wait(PATIENCE_SECONDS) == 0
    shell.running.remove(inviting)
    jobs = json.loads(shell("hedgerow jobs --json"))
    assert [(job["state"], job["operator"]) for job in jobs] == [("SUCCEEDED", "ann")]
    assert all(process.poll() is None for process in shell.running)

    for sent in [*folder.glob("*/*.request.json"), *folder.glob("*/*.bundle.json")]:
        assert "PRIVATE" not in sent.read_text()
    for key in folder.rglob("*.key"):
        assert key.stat().st_mode & 0o077 == 0, key
    listening = [
        address
        for path in folder.glob("*/*.toml")
        for name, address in joining.addresses(path).items()
        if name != "crypto"  # where the agent finds it
    ]
    assert len(set(listening)) == len(listening) == 8

    # A silo that is taken off the list leaves without a restart of the coordinator.
    settings = folder / "coordinator/coordinator.toml"
    before = settings.read_text()
    assert "\n# silos = []\n" in before
    settings.write_text(before.replace("\n# silos = []\n", '\nsilos = ["north"]\n'))
    coordinator, north, south = shell.running
    wait_until(lambda: south.poll() is not None, 30, "south is refused, and ends")
    assert "south is not on the roster of this federation" in (folder / "log").read_text()
    assert is_ready(folder / "north")
    assert coordinator.poll() is None
    assert north.poll() is None

    north.send_signal(signal.SIGUSR1)  # passed on to its agent and its crypto process
    log = folder / "log"
    wait_until(lambda: log.read_text().count("log level") == 2, 60, "both show more")
    assert north.poll() is None
