"""What must hold after a disturbed job, whatever happened."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from hedgerow.services.process.ledgers import LedgerBroken, verify
from hedgerow.services.wire.job_view import JobView
from tests.chaos.arena import Arena
from tests.chaos.faults import DAMAGING, LOSSLESS, Disturbance
from tests.chaos.work import PLANTED_FEATURE, PLANTED_ID
from tests.federation.processes import wait_until


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
        digests, expected = fed.digests(view), fed.undisturbed(name).digests
        differing = {part for part in expected if digests[part] != expected[part]} - lost
        assert not differing, f"another model, parts {differing}: {story}"
        assert [r.round for r in view.rounds] == list(range(len(view.rounds))), story
    else:
        assert {fault.kind for fault in faults} & DAMAGING, story
        ends.append(view.detail)
        assert re.search("damaged|older than|round [0-9]+ is over", view.detail), story
    for why in ends:
        named = {silo for silo in fed.silos if re.search(rf"\b{silo}\b", why)}
        assert named, f"nobody is named by {why!r}: {story}"
        assert named <= victims or "coordinator" in victims, f"{why!r} blames others: {story}"
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
    """Assert that no log has a traceback, a value of a table, or a key."""
    secrets = {str(PLANTED_FEATURE), PLANTED_ID}
    for key in fed.folder.rglob("*.key"):
        data = key.read_bytes()
        if data.startswith(b"-----"):
            secrets |= {line for line in data.decode().splitlines()[1:-1] if len(line) > 40}
        else:
            secrets |= {data.hex(), base64.b64encode(data).decode()}
    for name in fed.names:
        log = fed.log(name)
        assert "Traceback" not in log, log[log.index("Traceback") :][:2000]
        assert "CancelledError" not in log, name
        assert "internal error" not in log, name
        assert '"where":' not in log, f"a defect in the log of {name}: " + "\n".join(
            line for line in log.splitlines() if '"where":' in line
        )
        for secret in secrets:
            assert secret not in log, f"a secret is in the log of {name}"


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
