"""docs/masks.md's lemmas, for any vectors, over the seeds that real vaults derive."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from z3 import And, BitVec, substitute

from hedgerow.crypto.masking import masks
from hedgerow.crypto.masking.keystream import keystream
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.claims.changed import Change
from tests.claims.masks import RING, Words, holds, masks_of, total, words

SILOS = ("ash", "birch", "elm", "oak", "yew")
VAULT = "crypto.vault.local_vault:LocalVault"


def removed(found: Words, present: tuple[str, ...]) -> object:
    """Return what comes off the sum over some silos, as :func:`masking.unmasked` has it."""
    lost = [silo for silo in SILOS if silo not in present]
    own = total(found.own[silo] for silo in present if silo in found.own)
    signs = [
        (1 if SILOS.index(here) < SILOS.index(gone) else -1) * found.pair[frozenset({here, gone})]
        for here in present
        for gone in lost
    ]
    return own + total(signs)


def opens(found: Words, present: tuple[str, ...]) -> bool:
    """Whether the masks of a sum over some silos come off, for any vectors and masks."""
    if any(frozenset(two) not in found.pair for two in combinations(SILOS, 2)):
        return False
    rest = total(found.sent[silo] for silo in present) - removed(found, present)
    return holds(rest == total(found.values[silo] for silo in present))


def hidden(found: Words, open_silos: tuple[str, ...], liars: tuple[str, ...] = ()) -> bool:
    """Whether the honest silos' words may be those of any other vectors with the same total.

    The pair masks of the first open silo with the others move by a constant, and the self masks of
    silos that are not open do: to every choice of masks belongs one that gives the same words.
    """
    others = {silo: BitVec(f"other_{silo}", RING) for silo in found.values if silo not in liars}
    first, *rest = open_silos
    moved, same = [], []
    for silo in others:
        shared = frozenset({first, silo}) in found.pair
        change = found.values[silo] - others[silo]
        if silo in rest and shared:
            pair = found.pair[frozenset({first, silo})]
            sign = 1 if SILOS.index(silo) < SILOS.index(first) else -1
            moved.append((pair, pair + sign * change))
        elif silo != first:
            if silo in rest or silo not in found.own:
                return False
            moved.append((found.own[silo], found.own[silo] + change))
    for silo, other in others.items():
        again = substitute(found.sent[silo], (found.values[silo], other), *moved)
        same.append(found.sent[silo] == again)
    one_total = total(found.values[silo] for silo in open_silos) == total(
        others[silo] for silo in open_silos
    )
    return holds(And(same), one_total)


def test_masks_come_off_the_sum_over_every_set() -> None:
    [found] = map(words, masks_of(SILOS))
    assert len(found.pair) == 10
    assert len(found.own) == 5
    for size in range(1, 6):
        for present in combinations(SILOS, size):
            assert opens(found, present), present


@pytest.mark.parametrize("liars", [(), ("oak",), ("ash",)])
def test_words_of_a_set_tell_their_total_alone(liars: tuple[str, ...]) -> None:
    """The open silos are any honest ones; the others' self masks stay unknown."""
    [found] = map(words, masks_of(SILOS))
    honest = [silo for silo in SILOS if silo not in liars]
    for size in range(1, len(honest) + 1):
        for open_silos in combinations(honest, size):
            assert hidden(found, open_silos, liars), open_silos


def changed(*replacements: str) -> type[LocalVault]:
    one = Change(f"{VAULT}.derive_masks", *replacements)
    return type("Changed", (LocalVault,), {one.owner[1]: one.function()})


@pytest.mark.parametrize(
    "replaced",
    [
        ("seeds[me + 1 :], seeds[:me]", "seeds[:me] + seeds[me + 1 :], []"),  # no sign
        ("seeds[me + 1 :], seeds[:me]", "seeds[me + 1 :], seeds[:me][1:]"),  # one is left out
        ("add.append(masking.self_seed(secret, context))", "pass"),
        ("add.append(masking.self_seed(secret, context))", "add.append(seeds[me - 1])"),
    ],
)
def test_a_vault_that_masks_otherwise_is_noticed(replaced: tuple[str, str]) -> None:
    [found] = map(words, masks_of(SILOS, changed(*replaced)))
    assert not (opens(found, SILOS[:3]) and hidden(found, SILOS[1:4]))


def test_no_mask_is_in_two_sums() -> None:
    """Under one mask the difference of two vectors is open: each sum has masks of its own."""
    first, second = masks_of(SILOS, numbers=(0, 1))
    seeds = [{*own.add, *own.subtract} for one in (first, second) for own in one.values()]
    assert not set().union(*seeds[:5]) & set().union(*seeds[5:])
    both = [words(one, name) for one, name in ((first, "q"), (second, "p"))]
    again = [words(first, "q"), words(first, "p")]  # a vault that masks twice with one context
    for pair, read in ((both, False), (again, True)):
        differs = pair[0].sent["elm"] - pair[1].sent["elm"]
        assert holds(differs == pair[0].values["elm"] - pair[1].values["elm"]) is read


@pytest.mark.parametrize("ring", [32, 64])
def test_a_masked_vector_is_the_vector_and_keystreams(ring: int) -> None:
    """What is a variable above is one word of the keystream of a seed."""
    dtype = np.dtype(f"<u{ring // 8}")
    values = np.arange(9, dtype=dtype)
    seeds = [bytes([k]) * 32 for k in range(5)]
    streams = [np.frombuffer(keystream(seed, values.nbytes), dtype) for seed in seeds]
    expected = values + sum(streams[:3], np.zeros_like(values)) - streams[3] - streams[4]
    found = masks.masked(values, ring, seeds[:3], seeds[3:])
    np.testing.assert_array_equal(found, expected)
