"""A seed's run, in a process of its own that begins as all others do."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.simulation import disk, federation, invariants, network, operations, scheduler
from tests.simulation.operations import Plan

REAL = scheduler.TRUE["time.perf_counter"]
SETTLE_SECONDS = 12.0
"""How long agents may go on after the last job has ended."""
SHARED = Path("/dev/shm")


@dataclass
class Result:
    """What came of a run."""

    seed: int
    line: str
    n_silos: int = 0
    violations: list[str] = field(default_factory=list)
    jobs: list[tuple[str, str, list[list[str]], str]] = field(default_factory=list)
    """Name, state, the silos of each round, and digest of the model."""
    digest: str = ""
    """Of all messages, log lines, operations and times."""
    files: str = ""
    """Of all ledgers, records, accounts and artefacts."""
    seconds: float = 0.0
    """Virtual time."""
    cpu: float = 0.0
    n_messages: int = 0
    n_operations: int = 0
    n_done: int = 0
    """Operations before something was violated; all where nothing was."""
    n_durable: int = 0
    """Calls that make something durable."""
    lines: list[str] = field(default_factory=list)


def install() -> None:
    """Put all parts in place but the scheduler's, which come before all imports."""
    disk.install()
    network.install()
    federation.install()
    invariants.install()


def run(plan: Plan, *, told: bool = False, whole: bool = True) -> Result:
    """Run a plan here; to its end, or until something is violated."""
    result = Result(plan.seed, plan.line, len(plan.silos), n_operations=len(plan.operations))
    began = REAL()
    folder = Path(tempfile.gettempdir()) / "simulated"
    with scheduler.simulating(plan.seed) as world:
        made = federation.Federation(world, folder, plan.silos)
        oracle = invariants.Oracle(made)
        n_done = 0

        def over() -> bool:
            return bool(oracle.violations) and not whole

        try:
            federation.certificates(made.pki, plan.silos)
            made.start_all()
            for n_done, one in enumerate(plan.operations):  # noqa: B007 - of use below
                if world.run(over, world.now + one.after):
                    break
                operations.apply(made, one)
            else:
                n_done = len(plan.operations)
                operations.mend(made)
                most = world.now + invariants.LONGEST_SECONDS
                if world.run(lambda: made.quiet or over(), most):
                    world.run(over, world.now + SETTLE_SECONDS)
            if not over():
                oracle.check_end()
        except scheduler.Stuck as error:
            oracle.violated(str(error))
        except Exception:
            oracle.violated(traceback.format_exc())
        result.violations, result.n_done = oracle.violations, n_done
        result.jobs = [
            (
                job.name,
                str(job.view.state if job.view else job.refused),
                [list(r.silos) for r in job.view.rounds] if job.view else [],
                invariants.model_of(job),
            )
            for job in made.jobs
        ]
        result.digest, result.seconds = made.trace.hexdigest(), world.now
        result.n_messages = made.network.n_messages
        result.n_durable = sum(one.n_calls for one in made.disks.by_name.values())
        result.files = invariants.files_of(folder)
        result.lines = made.lines if told or result.violations else []
    result.cpu = REAL() - began
    return result


def forked(plan: Plan, *, told: bool = False, whole: bool = True) -> Iterator[Result | None]:
    """Run a plan in a fork; yields None until its result is there."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reading)
            with Folder():
                result = run(plan, told=told, whole=whole)
                data = json.dumps(asdict(result)).encode()
            with open(writing, "wb") as out:
                out.write(data)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    chunks = []
    with open(reading, "rb") as into:
        os.set_blocking(into.fileno(), False)
        while (chunk := into.read(1 << 20)) != b"":
            if chunk is None:
                yield None
            else:
                chunks.append(chunk)
    os.waitpid(child, 0)
    data = b"".join(chunks)
    if not data:
        yield Result(plan.seed, plan.line, len(plan.silos), ["the run ended without a word"])
    else:
        yield Result(**json.loads(data))


class Folder:
    """A folder of the same name for every run: names are in logs, and their lengths in messages."""

    def __enter__(self) -> None:
        above = SHARED if SHARED.is_dir() else Path(tempfile.gettempdir())
        self._own = above / f"hedgerow-{scheduler.true_pid():010d}"
        tempfile.tempdir = str(self._own)
        (self._own / "simulated").mkdir(parents=True)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._own, ignore_errors=True)


def done(plan: Plan, *, whole: bool = True) -> Result:
    """Run a plan in a fork and wait for it."""
    for result in forked(plan, whole=whole):
        if result is not None:
            return result
        scheduler.TRUE["time.sleep"](0.005)
    raise AssertionError("a run ends with a result")


def warm_up() -> None:
    """Import, compile and load all that runs use, once: forks begin with it."""
    silos = ("s0", "s1", "s2")
    jobs = tuple(operations.Operation(0.0, "submit", name) for name in federation.NAMES)
    with Folder():
        result = run(Plan(0, silos, jobs))
    assert not result.violations, result.violations
    assert not scheduler.holders(), scheduler.holders()
    gc.collect()
    gc.disable()
    gc.freeze()


class Undisturbed:
    """Models of jobs to which nothing happens."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[str, ...]], str] = {}

    def model(self, name: str, silos: tuple[str, ...]) -> str:
        """Return the digest of the model of a job over some silos."""
        if (name, silos) not in self._known:
            found = done(Plan(0, silos, (operations.Operation(0.0, "submit", name),)))
            self._known[name, silos] = found.jobs[0][3]
        return self._known[name, silos]

    def check(self, result: Result) -> None:
        """Add to a result's violations where a model is not the undisturbed one.

        Only of jobs whose rounds had all silos by the record: without one, what was found before it
        was lost is still of all.
        """
        for name, state, rounds, model in () if result.violations else result.jobs:
            if state != "SUCCEEDED" or name in WITH_OWN_NOISE:
                continue
            silos = tuple(f"s{k}" for k in range(result.n_silos))
            if all(tuple(sorted(one)) == silos for one in rounds):
                expected = self.model(name, silos)
                if model != expected:
                    result.violations.append(
                        f"the model of {name} is {model}, undisturbed it is {expected}"
                    )


WITH_OWN_NOISE = ("dp_tree",)
"""Jobs whose models differ from run to run: noise is of each silo's own secret."""
