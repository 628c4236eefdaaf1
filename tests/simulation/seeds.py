"""Many seeds side by side, and what is printed of them."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tests.simulation import operations, running, scheduler
from tests.simulation.faults import FAULTS
from tests.simulation.operations import Plan
from tests.simulation.recorded import FILE, Recorded, load
from tests.simulation.running import REAL, Result, Undisturbed


def side_by_side(
    plans: Iterable[Plan], n_jobs: int, *, told: bool = False, whole: bool = True
) -> Iterator[Result]:
    """Run plans in forks, so many at a time."""
    waiting, active = iter(plans), list[Iterator[Result | None]]()
    while True:
        while len(active) < n_jobs:
            plan = next(waiting, None)
            if plan is None:
                break
            active.append(running.forked(plan, told=told, whole=whole))
        if not active:
            return
        for one in list(active):
            result = next(one)
            if result is not None:
                active.remove(one)
                yield result
        scheduler.TRUE["time.sleep"](0.002)


def checker(undisturbed: Undisturbed) -> Callable[[Plan], bool]:
    """Return whether a plan's run violates anything."""

    def fails(plan: Plan) -> bool:
        result = running.done(plan, whole=False)
        undisturbed.check(result)
        return bool(result.violations)

    return fails


def _faults(given: argparse.Namespace, first: int, undisturbed: Undisturbed) -> int:
    from tests.simulation.searching import search

    print("| fault | said | seeds | operations | needed | repeated by |\n|---|---|---|---|---|---|")
    words = given.faults.split("|")
    for name in [one for one in FAULTS if any(word in one for word in words)]:
        found = search(name, first, given.number, given.jobs, undisturbed)
        print(found, flush=True)
        if given.record:
            plan = found.plan or Plan(first, (), ())  # a search in vain is kept, too
            kept = Recorded(plan, found.said, name, found.n_seeds, found.n_operations)
            with FILE.open("a") as file:
                file.write(kept.line())
    return 0


def _recorded(undisturbed: Undisturbed) -> int:
    wrong = 0
    for one in load():
        said = one.check(undisturbed)
        wrong += bool(said)
        print(f"recorded {one.fault or one.found}: {said or 'as it was'}"[:400], flush=True)
    print(f"simulation: {wrong} recorded runs are not as they were")
    return int(bool(wrong))


def main(given: argparse.Namespace) -> int:
    """Run seeds as the command line says."""
    began = REAL()
    running.warm_up()
    undisturbed = Undisturbed()
    warm = REAL() - began
    fresh = int.from_bytes(scheduler.TRUE["os.urandom"](4))
    first = fresh if given.seed is None else given.seed
    end = REAL() + given.seconds
    if given.faults is not None:
        return _faults(given, first, undisturbed)

    def plans() -> Iterator[Plan]:
        seed = first
        while REAL() < end if given.seconds else seed < first + given.number:
            plan = operations.draw(seed)
            if given.only:
                plan = plan.of([int(k) for k in given.only.split(",")])
            yield plan
            seed += 1

    wrong = _recorded(undisturbed) if given.recorded else 0
    if given.recorded and not given.seconds:
        return wrong
    end = REAL() + given.seconds
    results, failed = [], list[Result]()
    for result in side_by_side(plans(), given.jobs, told=given.log):
        undisturbed.check(result)
        results.append(result)
        if given.log:
            print("\n".join(result.lines))
        if result.violations:
            failed.append(result)
            print(f"{result.line}\n  {'; '.join(result.violations)[:3000]}", flush=True)
    took = REAL() - began - warm
    states = Counter(f"{name} {state}" for r in results for name, state, _, _ in r.jobs)
    n_jobs = sum(states.values())
    print(
        f"simulation: {len(results)} seeds from {first}, {n_jobs} jobs, "
        f"{sum(r.n_operations for r in results)} operations, "
        f"{sum(r.n_messages for r in results)} messages, "
        f"{sum(r.n_durable for r in results)} durable calls; "
        f"{sum(r.seconds for r in results):.0f} s of virtual time in {took:.0f} s "
        f"(and {warm:.0f} s to begin): {60 * n_jobs / max(took, 1e-9):.0f} jobs a minute; "
        f"{len(failed)} failed"
    )
    print("; ".join(f"{n} {name}" for name, n in sorted(states.items())))
    if given.number == 1 and not given.seconds:
        print(f"digest {results[0].digest} {results[0].files}")
    if not given.no_shrink:
        for result in failed[:3]:
            plan = operations.draw(result.seed)
            if given.only:
                plan = plan.of([int(k) for k in given.only.split(",")])
            small = operations.shrink(plan, checker(undisturbed))
            print(f"\nshrunk: {small.line}")
            for one in small.operations:
                print(f"  {one}")
    return 1 if failed or wrong else 0
