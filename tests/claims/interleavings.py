"""All that a coordinator can ask of real vaults in one sum, in every order: what it can read.

Four silos, one of which colludes with the coordinator. Each honest silo has a
:class:`~hedgerow.crypto.vault.local_vault.LocalVault` of its own, which is asked for every set,
share and seed in every state that it can be brought into; states that are equal in what was given
and in what the vault remembers are one. That gives each vault's graph. The coordinator then plays
the three graphs together, in every order, and may ask for shares and seeds only where silos' halves
would: with ``T`` signatures over the set, of which its own silo makes any.

What it can read in a state is linear algebra: silo ``j``'s vector has a self mask, known where
``T`` shares of it are, and a mask with every other honest silo, added by one and subtracted by the
other, known where one of the two has given the seed. A combination of vectors is read if every
unknown mask cancels: so the honest silos fall into parts, joined by unknown pair masks, and a part
is read, as a sum, where all of its self masks are known. At most one part may be, of ``T - 1``
silos or more.

``python -m tests.claims.interleavings`` prints how many states there are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from hedgerow.crypto.errors import VaultRefused
from hedgerow.crypto.vault.interface import MaskGroup, SumTicket
from hedgerow.crypto.vault.local_vault import LocalVault

MEMBERS = ("a", "b", "c", "liar")
HONEST = MEMBERS[:3]
THRESHOLD = 3
SESSION = "job/1/0"
SETS = tuple(found for size in range(1, len(MEMBERS) + 1) for found in combinations(MEMBERS, size))
ACTIONS = (
    *(("sign", one) for one in SETS),
    *(("shares", one) for one in SETS),
    *(("seeds", one) for one in SETS),
    ("mask", ()),
)
Action = tuple[str, tuple[str, ...]]
Failures = type[Exception] | tuple[type[Exception], ...]
MOST_STATES = 60
"""Of one vault; the real one has fewer."""


@dataclass(frozen=True)
class Given:
    """What a silo has given of one sum."""

    signed: frozenset[tuple[str, ...]] = frozenset()
    shares: frozenset[str] = frozenset()
    seeds: frozenset[str] = frozenset()
    vectors: int = 0
    """Vectors under the masks of the sum."""


@dataclass
class Graph:
    """What one real vault gives: in state 0 nothing, not even its vector."""

    given: list[Given]
    steps: list[dict[Action, int]]


def vaults(make: Callable[[], Any] = LocalVault) -> dict[str, Any]:
    """Return the vaults of all four silos, which have dealt shares for all sums."""
    made = {silo: make() for silo in MEMBERS}
    keys = tuple(made[silo].create_mask_key(SESSION) for silo in MEMBERS)
    for silo, vault in made.items():
        vault.join_group(MaskGroup(SESSION, silo, MEMBERS, keys, bytes(32), THRESHOLD))
    return made


def graph_of(
    vault: Any,
    others: dict[str, Any],
    silo: str,
    failures: Failures = VaultRefused,
    most: int = MOST_STATES,
) -> Graph:
    """Play everything in every state of a vault; of a changed one in the ``most`` nearest.

    A path begins a new sum, so that all of them are played on one vault.

    Parameters
    ----------
    failures : exception, or several
        What a vault answers to what it does not do; a changed one may fail in other ways.
    """
    n_sums = most * len(ACTIONS) + 1
    dealt = {who: one.seal_shares(SESSION, 0, n_sums, MEMBERS) for who, one in others.items()}
    boxes = {who: own[silo] for who, own in dealt.items() if who != silo}
    vault.open_shares(SESSION, 0, n_sums, boxes)
    numbers = iter(range(n_sums))

    def play(path: tuple[Action, ...]) -> tuple[Given, Any] | None:
        """Return what a path gives, and what the vault remembers; None if its end is refused."""
        number, found = next(numbers), Given()
        for step, action in enumerate(path):
            try:
                found = _played(vault, number, action, found)
            except failures:
                assert step == len(path) - 1, "a vault refuses what it has done before"
                return None
        current = vault._sessions[SESSION].current
        memory = (current.endorsed, frozenset(current.seeds_revealed), current.ended)
        return found, memory

    first: tuple[Action, ...] = (("mask", ()),)
    begun = play(first)
    assert begun is not None
    graph = Graph([Given(), begun[0]], [{first[0]: 1}, {}])
    known, waiting = {begun: 1}, deque([(first, 1)])
    while waiting:
        path, at = waiting.popleft()
        if graph.given[at].vectors > 1:
            continue
        for action in ACTIONS:
            found = play((*path, action))
            if found is None or (found not in known and len(known) == most):
                continue
            if found not in known:
                known[found] = len(graph.given)
                graph.given.append(found[0])
                graph.steps.append({})
                waiting.append(((*path, action), known[found]))
            if known[found] != at:
                graph.steps[at][action] = known[found]
    return graph


def _played(vault: Any, number: int, action: Action, given: Given) -> Given:
    kind, present = action
    if kind == "mask":
        vault.derive_masks(SumTicket(SESSION, number, bytes(32), MEMBERS))
        return Given(given.signed, given.shares, given.seeds, given.vectors + 1)
    if kind == "sign":
        vault.endorse(SESSION, number, present)
        return Given(given.signed | {present}, given.shares, given.seeds, given.vectors)
    if kind == "shares":
        shares = frozenset(vault.reveal_shares(SESSION, number, present).shares)
        return Given(given.signed, given.shares | shares, given.seeds, given.vectors)
    seeds = frozenset(vault.reveal_pair_seeds(SESSION, number, present))
    return Given(given.signed, given.shares, given.seeds | seeds, given.vectors)


def read(state: tuple[Given, ...]) -> str:
    """Return what the coordinator reads in a state and must not; "" where there is nothing.

    Parameters
    ----------
    state : tuple of Given
        Of each honest silo.
    """
    given = dict(zip(HONEST, state, strict=True))
    twice = [silo for silo, own in given.items() if own.vectors > 1]
    if twice:
        return f"two vectors of {', '.join(twice)} under the same masks"
    there = [silo for silo in HONEST if given[silo].vectors]
    # The liar has one share of each, and gives it.
    known = {j for j in there if 1 + sum(j in own.shares for own in given.values()) >= THRESHOLD}
    parts = {silo: {silo} for silo in there}
    for one, other in combinations(there, 2):
        if other not in given[one].seeds and one not in given[other].seeds:
            parts[one] |= parts[other]
            for silo in parts[one]:
                parts[silo] = parts[one]
    # A pair mask with a silo whose vector is not there is unknown unless a seed was given.
    away = [silo for silo in HONEST if silo not in there]
    hidden = {j for j in there for k in away if k not in given[j].seeds}
    read = {tuple(sorted(part)) for part in parts.values() if part <= known and not part & hidden}
    if len(read) > 1:
        return f"sums over {' and over '.join('+'.join(part) for part in sorted(read))}"
    small = [part for part in read if len(part) < THRESHOLD - 1]
    return f"a sum over {'+'.join(small[0])}" if small else ""


def broken_rules(graph: Graph, silo: str) -> dict[str, str]:
    """Return which rules of :func:`tests.claims.theories.sets_of_a_sum` a vault's graph breaks."""
    found: dict[str, str] = {}
    for given, steps in zip(graph.given, graph.steps, strict=True):
        chain = sorted(given.signed, key=len)
        last = set(chain[0]) if chain else set()
        if any(silo not in one for one in chain):
            found["a silo signs sets that it is in"] = f"{chain}"
        if any(not set(a) <= set(b) for a, b in pairwise(chain)):
            found["the sets that a silo signs shrink"] = f"{chain}"
        after = [action for action in steps if given.shares and action[0] == "sign"]
        if given.shares and (given.shares != last or after):
            found["shares are given for the set signed last"] = f"{given} {after}"
        if given.seeds & last or (given.seeds and not last) or given.seeds & given.shares:
            found["a seed is given with who is out of a signed set"] = f"{given}"
        if given.vectors > 1:
            found["one vector a sum"] = f"{given}"
    return found


def allowed(state: tuple[Given, ...], action: Action) -> bool:
    """Return whether a silo's half asks its vault so: over a set with enough signatures."""
    kind, present = action
    if kind in ("mask", "sign"):
        return True
    signatures = sum(present in own.signed for own in state) + ("liar" in present)
    return signatures >= max(THRESHOLD, 3)


def explored(graphs: list[Graph]) -> Iterator[tuple[tuple[Given, ...], list[tuple[str, Action]]]]:
    """Return every state that the coordinator can bring the silos into, and a way to it."""
    start = (0,) * len(graphs)
    came: dict[tuple[int, ...], tuple[tuple[int, ...], str, Action] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        at = waiting.popleft()
        state = tuple(graph.given[k] for graph, k in zip(graphs, at, strict=True))
        way, back = [], at
        while (step := came[back]) is not None:
            way.append((step[1], step[2]))
            back = step[0]
        yield state, way[::-1]
        for n, graph in enumerate(graphs):
            for action, following in graph.steps[at[n]].items():
                after = (*at[:n], following, *at[n + 1 :])
                if after not in came and allowed(state, action):
                    came[after] = (at, HONEST[n], action)
                    waiting.append(after)


def faults(
    make: Callable[[], Any] = LocalVault,
    failures: Failures = VaultRefused,
    most: int = MOST_STATES,
) -> tuple[int, int, list[str]]:
    """Return how many states one vault has, and all together, and what must not be read in them."""
    graphs = []
    for silo in HONEST:
        own = vaults(make)
        graphs.append(graph_of(own[silo], own, silo, failures, most))
    n_states, found = 0, []
    for state, way in explored(graphs):
        n_states += 1
        if why := read(state):
            told = "; ".join(f"{who} {kind} {'+'.join(one)}".strip() for who, (kind, one) in way)
            found.append(f"{why} after {told}")
            if len(found) == 3:
                break
    return len(graphs[0].given), n_states, found


def main() -> None:
    """Print what was played."""
    began = time.perf_counter()
    of_one, of_all, found = faults()
    print(
        f"{of_one} states of a vault, {of_all} of three vaults and a liar, "
        f"{len(found)} faults, {time.perf_counter() - began:.1f} s"
    )
    print(*found[:5], sep="\n")


if __name__ == "__main__":
    main()
