"""What must hold after a disturbed job, whatever happened."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from hedgerow.services.process.ledgers import LedgerBroken, verify
from hedgerow.services.wire.job_view import JobView
from tests.chaos.arena import Arena
from tests.chaos.faults import CAUSES, DAMAGING, GONE, LOSSLESS, Disturbance
from tests.chaos.work import PLANTED_FEATURE, PLANTED_ID
from tests.federation.processes import wait_until

MOST_REPEATED = 5
"""A job that waits for minutes says so once a minute."""


def check(fed: Arena, name: str, view: JobView, faults: list[Disturbance], known: str) -> None:
    """Assert that a job ended as it should."""
    story = f"{name}, {'; '.join(map(str, faults))} ({known}): {view.state}: {view.detail}"
    victims = {fault.victim.removeprefix("agent-") for fault in faults}
    ends = [entry["why"] for entry in fed.events("coordinator", view.job_id, "attempt ended")]
    assert view.ended, story
    if view.state == "SUCCEEDED":
        # A silo that is lost when all has been exchanged keeps nothing of its own.
        lost = {silo.name for silo in view.silos if silo.state != "present"}
        assert lost <= victims, (story, view.silos)
        assert not lost or name != "secureboost", f"a part is missing: {story}"
        for silo in {silo.name for silo in view.silos} - lost:  # a slow one still stores it
            wait_until(
                lambda agent=f"agent-{silo}": bool(fed.events(agent, view.job_id, "done")),  # type: ignore[misc]
                60,
                f"{silo} is done: {story}",
            )
        expected = fed.undisturbed(name).digests
        digests, refusal = expected, ""

        def same() -> bool:
            nonlocal digests
            digests = fed.digests(view)
            return all(digests[part] == expected[part] for part in expected.keys() - lost)

        try:
            # An agent that ends before its result has come fetches it when it is back.
            with suppress(AssertionError):
                wait_until(same, 30, "results that came late")
        except FederationError as error:
            refusal = str(error)
        if refusal:  # a file of the result changed after the job's end
            assert {fault.kind for fault in faults} & DAMAGING, (refusal, story)
            assert re.search(r"of job \S+ is (damaged|missing)", refusal), (refusal, story)
        differing = {part for part in expected if digests[part] != expected[part]} - lost
        assert not differing, f"another model, parts {differing}: {story}"
        assert [r.round for r in view.rounds] == list(range(len(view.rounds))), story
    else:
        assert {fault.kind for fault in faults} & DAMAGING, story
        ends.append(view.detail)
        assert re.search(
            "damaged|missing|older than|round [0-9]+ is over|has lost attempt", view.detail
        ), story
    for why in ends:
        named = {silo for silo in fed.silos if re.search(rf"\b{silo}\b", why)}
        own = "coordinator" in victims and re.search("the database|of job", why)
        assert named or own, f"nobody is named by {why!r}: {story}"
        if "coordinator" not in victims:
            assert named <= victims, f"{why!r} blames others: {story}"
            causes = "|".join(CAUSES.get(fault.kind, GONE) for fault in faults)
            assert re.search(causes, why), f"{why!r} names another cause: {story}"
    if fed.earlier is not None:
        now = fed.client.get(fed.earlier.job_id)
        assert now.silos == fed.earlier.silos, f"after its end {fed.earlier.silos} became {now}"
    fed.earlier = view
    for silo in view.silos:
        name = silo.name
        up, sent = view.bytes_of(name)[0], _sent(fed, name, view.job_id)
        assert up <= sent, f"{name} sent {sent}, the coordinator has {up}: {story}"
        if {fault.kind for fault in faults} <= LOSSLESS:
            wait_until(
                lambda name=name, sent=sent: fed.client.get(view.job_id).bytes_of(name)[0] == sent,  # type: ignore[misc]
                60,
                f"the coordinator has all {sent} bytes of {name}: {story}",
            )


def _sent(fed: Arena, silo: str, job_id: str) -> int:
    found: list[int] = []

    def held() -> bool:
        try:
            found.append(verify(fed.disk(f"agent-{silo}") / "ledger.jsonl").sent(job_id))
        except LedgerBroken:
            return False  # read while it was written
        return True

    wait_until(held, 10, f"the ledger of {silo} holds")
    return found[-1]


def check_logs(fed: Arena) -> None:
    """Assert that no log has a traceback, a value of a table, a key, or a line again and again."""
    secrets = {str(PLANTED_FEATURE), PLANTED_ID}
    for key in fed.folder.rglob("*.key"):
        data = key.read_bytes()
        if data.startswith(b"-----"):
            secrets |= {line for line in data.decode().splitlines()[1:-1] if len(line) > 40}
        else:
            secrets |= {data.hex(), base64.b64encode(data).decode()}
    for name in fed.names:
        log = fed.log(name)
        repeated, n_times = said_most(log)
        assert n_times <= MOST_REPEATED, f"{name} has logged this {n_times} times: {repeated}"
        assert "Traceback" not in log, log[log.index("Traceback") :][:2000]
        assert "CancelledError" not in log, name
        assert "internal error" not in log, name
        assert '"where":' not in log, f"a defect in the log of {name}: " + "\n".join(
            line for line in log.splitlines() if '"where":' in line
        )
        for secret in secrets:
            assert secret not in log, f"a secret is in the log of {name}"


def said_most(log: str) -> tuple[str, int]:
    """Return what a log says most often of one job, and how often."""
    said: Counter[str] = Counter()
    for line in log.splitlines():
        with suppress(json.JSONDecodeError):
            entry = json.loads(line)
            if entry.pop("timestamp", "") and "job" in entry:
                said[json.dumps(entry)] += 1
    return max(said.items(), key=lambda item: item[1], default=("", 0))


def left_running(folder: Path) -> list[str]:
    """Return the processes that work in a folder."""
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit():
            try:
                line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in line and "hedgerow" in line:
                found.append(line)
    return found
