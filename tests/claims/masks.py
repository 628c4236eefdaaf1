"""The masks of real vaults as variables: what z3 can say of a sum for any vectors and any masks.

Real vaults derive the seeds of one sum. Each seed is one variable of 64 bits, the value of its
keystream at one place of the vector, so a silo's word is an expression over the ring. Hiding is
shown as in docs/masks.md: for any two choices of the honest vectors with one total there are
masks, moved by a constant, that give the same words, so that both are equally probable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from z3 import BitVec, BitVecVal, Not, Solver, Sum, unsat

from hedgerow.crypto.vault.interface import MaskGroup, SumMasks, SumTicket
from hedgerow.crypto.vault.local_vault import LocalVault

SESSION, RING = "job/1/0", 64


@dataclass(frozen=True)
class Words:
    """What silos of one sum send, at one place of their vectors."""

    values: dict[str, Any]
    """By silo, its own word."""
    sent: dict[str, Any]
    pair: dict[frozenset[str], Any]
    """By two silos, the mask that both derive."""
    own: dict[str, Any]
    """By silo, the mask that it has alone."""


def masks_of(
    members: Sequence[str], make: Callable[[], Any] = LocalVault, numbers: Iterable[int] = (0,)
) -> list[dict[str, SumMasks]]:
    """Return the seeds that the vault of each silo derives, for each of a group's sums."""
    vaults = {silo: make() for silo in members}
    keys = tuple(vaults[silo].create_mask_key(SESSION) for silo in members)
    threshold, numbers = len(members) * 2 // 3 + 1, list(numbers)
    for silo, vault in vaults.items():
        group = MaskGroup(SESSION, silo, tuple(members), keys, bytes(32), threshold)
        vault.join_group(group)
    dealt = {s: v.seal_shares(SESSION, 0, 2, tuple(members)) for s, v in vaults.items()}
    for silo, vault in vaults.items():
        boxes = {other: own[silo] for other, own in dealt.items() if other != silo}
        vault.open_shares(SESSION, 0, 2, boxes)
    return [
        {
            silo: vault.derive_masks(
                SumTicket(SESSION, number, b"view", tuple(members), 1, True, False)
            )
            for silo, vault in vaults.items()
        }
        for number in numbers
    ]


def words(masks: Mapping[str, SumMasks], sum_name: str = "q") -> Words:
    """Return each silo's word; a seed that several silos have is one variable in all of them."""
    variables: dict[bytes, Any] = {}
    who: dict[bytes, set[str]] = {}
    sent, values = {}, {}
    for silo, found in masks.items():
        values[silo] = BitVec(f"{sum_name}_{silo}", RING)
        word = values[silo]
        for seeds, sign in ((found.add, 1), (found.subtract, -1)):
            for seed in seeds:
                mask = variables.setdefault(seed, BitVec(f"mask_{seed.hex()}", RING))
                who.setdefault(seed, set()).add(silo)
                word = word + sign * mask
        sent[silo] = word
    pair = {frozenset(s): variables[seed] for seed, s in who.items() if len(s) == 2}
    own = {next(iter(s)): variables[seed] for seed, s in who.items() if len(s) == 1}
    return Words(values, sent, pair, own)


def total(words: Iterable[Any]) -> Any:
    """Return a sum in the ring."""
    return Sum([BitVecVal(0, RING), *words])


def holds(claim: Any, *given: Any) -> bool:
    """Return whether z3 proves a claim for all vectors and masks."""
    solver = Solver()
    solver.add(*given, Not(claim))
    return bool(solver.check() == unsat)
