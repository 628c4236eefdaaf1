"""What each silo says of its rows in clear, by strategy and step: its Reveals as a list.

Fields as ``Class.field`` of a step's offer. :mod:`tests.adversary.pairs` finds what is said in
clear; ``test_interference.py`` holds both and the table in docs/threat-model.md equal.
"""

from __future__ import annotations

_STRUCTURE = ("PackedStructures.bits", "PackedStructures.gene_bits")
IN_CLEAR: dict[str, dict[str, tuple[str, ...]]] = {
    "bagging": {
        "trees": ("TreeOffer.data", "TreeOffer.gain"),
    },
    "fedxgbllr": {
        "cuts": ("QuantileSummaries.values",),
        "trees": ("PackedEnsemble.trees",),
    },
    "histogram": {
        "cuts": ("QuantileSummaries.values", "QuantileSummaries.weights"),
    },
    "fedga": {
        "depths": ("DepthVote.depth",),
        "proposals": _STRUCTURE,
        "scores": (*_STRUCTURE, "StructureScores.thousandths"),
        "reports": ("TreeComparison.federated", "TreeComparison.own"),
    },
    "dp_tree": {},
    "private_boost": {},
    "explore": {},
}


TOGETHER: dict[str, dict[str, str]] = {
    "fedxgbllr": {
        "weights": "a network that is trained on the silo's rows",
    },
    "histogram": {
        "scores": "of `cox-nloglik`, `c-index` and `integrated-brier` alone: rows are compared "
        "within a silo",
        "widths": "one bit a level: whether some silo's own gradients could exceed widths, or are "
        "in a bin taken for empty",
    },
}
"""Sums of strategies to which a silo adds what follows from its rows together, and what that is."""


UNMENDED_REFUSALS: tuple[str, ...] = ()
"""Texts of refusals that say something of the rows of who refuses."""
UNMENDED: frozenset[str] = frozenset()
"""Fields that tell silos apart until each is summed: plays are compared until one does."""


def in_clear(strategy: str, step: str) -> frozenset[str]:
    """Return the fields that a silo of a strategy says in clear at a step."""
    return frozenset(IN_CLEAR.get(strategy, {}).get(step, ()))


def together(strategy: str, *, compares: bool) -> frozenset[str]:
    """Return the sums to which a silo adds what follows from all of its rows together.

    Of metrics only where a job has one that compares rows.
    """
    return frozenset(TOGETHER.get(strategy, {})) - (set() if compares else {"scores"})


def table_of_sums() -> list[str]:
    """Return the lines of the second table in docs/threat-model.md."""
    return [
        f"| `{strategy}` | `{name}` | {what} |"
        for strategy, sums in sorted(TOGETHER.items())
        for name, what in sorted(sums.items())
    ]


def table() -> list[str]:
    """Return the lines of the table in docs/threat-model.md."""
    return [
        f"| `{strategy}` | `{step}` | {', '.join(f'`{path}`' for path in paths)} |"
        for strategy, steps in sorted(IN_CLEAR.items())
        for step, paths in sorted(steps.items())
    ]
