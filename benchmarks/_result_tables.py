"""The tables of the papers: what runs each of their parts, and how the pages lay them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import _result_layouts as layouts
from benchmarks._result_layouts import Lines, Row

DATA = "DIR"
"""Stands for the folder of the data sets."""


@dataclass(frozen=True)
class Table:
    """A table of results.

    Parameters
    ----------
    module : str
        The benchmark.
    parts : dict of str to tuple of str
        Arguments by part, small ones first.
    shown : callable
        All rows by part to the lines of the page's table, headings first.
    rows_of : str
        Another table whose stored rows these are; empty for its own.
    beside : tuple of str
        Other tables whose stored rows of the same part are laid out with its own.
    """

    module: str
    parts: dict[str, tuple[str, ...]]
    shown: Callable[[dict[str, list[Row]]], Lines]
    rows_of: str = ""
    beside: tuple[str, ...] = ()

    def command(self, part: str, data: str) -> list[str]:
        """Return the words after ``python`` that run a part."""
        where = [data if word == DATA else word for word in self.parts[part]]
        return ["-m", f"benchmarks.{self.module}", *where]


CLASSIFICATIONS = (
    "nursery", "adult", "tb_california", "tb_default_credit", "tb_electricity",
    "tb_house_16h_clf", "tb_bank_marketing", "tb_magic_telescope",
)  # fmt: skip
REGRESSIONS = (
    "abalone", "tb_analcatdata_supreme", "tb_wine_quality", "tb_bike_sharing",
    "tb_brazilian_houses", "tb_visualizing_soil", "tb_cpu_act", "tb_houses", "tb_house_16h_reg",
    "tb_house_sales",
)  # fmt: skip
FEDGA_SETS = (*CLASSIFICATIONS, *REGRESSIONS)
FATE_SETS = {
    "student": "fate_student_hetero",
    "breast": "fate_breast_hetero",
    "ionosphere": "fate_ionosphere_scale_hetero",
    "motor": "fate_motor_hetero",
    "epsilon": "fate_epsilon_5k",
    "default-credit": "fate_default_credit_hetero",
}

_SMALL, _LARGE = ("abalone", "cpusmall"), ("cod_rna", "higgs_26k", "a9a")
_LATER = tuple((silos, seed) for seed in "234" for silos in ("10", "5"))
DEALS = {
    f"{name.removeprefix('tb_')}-{scheme}": (
        "--data", DATA, "--sets", name, "--schemes", scheme, "--silos", silos,
    )
    for name, schemes in (
        ("tb_electricity", ("iid", "dirichlet:0.3", "flipped")),
        ("nursery", ("iid", "dirichlet:0.3", "flipped")),
        ("adult", ("iid", "dirichlet:0.3", "flipped")),
        ("default_credit", ("iid", "dirichlet:0.3", "flipped")),
        ("tb_electricity", ("dirichlet:0.1", "square", "shift", "random", "units")),
        ("adult", ("dirichlet:0.1", "square", "shift", "random", "units")),
        ("default_credit", ("dirichlet:0.1", "square", "shift", "random", "units")),
        ("nursery", ("dirichlet:0.1", "square", "random")),
    )
    for scheme in schemes
    for silos in ("5",)
} | {
    f"electricity-{silos}-silos": (
        "--data", DATA, "--sets", "tb_electricity", "--schemes", "iid", "dirichlet:0.3",
        "--silos", silos,
    )
    for silos in ("2", "20")
}  # fmt: skip
SIMFL = {
    f"{name}-{silos}-seed-{seed}": (
        "--what", "simfl", "--data", DATA, "--sets", name, "--silos", silos,
        "--first-seed", seed, "--seeds", "1",
    )
    for names, cases in (
        (_SMALL + _LARGE, (("2", "0"), ("10", "0"), *(("2", seed) for seed in "1234"))),
        (_SMALL + _LARGE, (("5", "0"), ("10", "1"), ("5", "1"))),
        (_SMALL, _LATER),
        (_LARGE, _LATER),
    )
    for silos, seed in cases
    for name in names
}  # fmt: skip
PUBLISHED = {
    part: ("--what", "published", *words[2:])
    for names, seeds in ((_SMALL, "01234"), (_LARGE, "0"))
    for part, words in SIMFL.items()
    if part.startswith(names) and part[-1] in seeds
}

TABLES = {
    "bagging-growth": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "growth", "--sets", name, "--seeds", seeds)
            for name, seeds in (("higgs_26k", "3"), ("adult", "3"), ("made", "1"))
        },
        layouts.growth,
    ),
    "bagging-rates": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "rates", "--sets", name, "--seeds", "2")
            for name in ("higgs_26k", "adult")
        },
        layouts.rates,
    ),
    "bagging-drawn": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "drawn", "--sets", name, "--seeds", "3")
            for name in ("higgs_26k", "adult")
        },
        layouts.drawn,
    ),
    "bagging-flipped": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "flipped", "--sets", name, "--seeds", "3")
            for name in ("adult", "higgs_26k")
        },
        layouts.flipped,
    ),
    "bagging-named": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "named", "--sets", name, "--seeds", "3")
            for name in ("adult", "higgs_26k")
        },
        layouts.named,
    ),
    "bagging-peers": Table(
        "bagging_peers",
        {
            name: (
                "--data", DATA, "--peers", ".venv-peers/bin/python", "--set", name, "--seeds", "1",
            )
            for name in ("higgs_26k",)
        },
        layouts.peers,
    ),
    "published": Table("fedxgbllr", PUBLISHED, layouts.published, beside=("simfl",)),
    "schedules": Table(
        "fedxgbllr",
        {
            f"{name}-seed-{seed}": (
                "--what", "schedules", "--data", DATA, "--sets", name, "--silos", "5",
                "--first-seed", seed, "--seeds", "1",
            )
            for name in _SMALL
            for seed in "0"
        },
        layouts.schedules,
    ),
    "simfl": Table("fedxgbllr", SIMFL, layouts.simfl),
    "default": Table("fedxgbllr", SIMFL, layouts.default, rows_of="simfl"),
    "heads": Table(
        "fedxgbllr",
        {
            f"{name}-seed-{seed}": (
                "--what", "ablations", "--data", DATA, "--sets", name, "--silos", "5",
                "--first-seed", seed, "--seeds", "1",
            )
            for seed in "01234"
            for name in ("abalone", "cpusmall", "higgs_26k", "a9a", "cod_rna")
        },
        layouts.heads,
    ),
    "bytes": Table(
        "fedxgbllr",
        {
            name: ("--what", "bytes", "--data", DATA, "--sets", name, "--silos", "10")
            for name in ("a9a", "higgs_26k")
        },
        layouts.wire,
    ),
    "engine": Table(
        "histogram_engine", {"100k-rows": ("--quick",), "1m-rows": ()}, layouts.engine
    ),
    "adult": Table("adult", {"adult": ()}, layouts.adult),
    "deals": Table("strategies", DEALS, layouts.deals),
    "overview": Table("strategies", DEALS, layouts.overview, rows_of="deals"),
    "cut-points": Table(
        "cut_points",
        {
            name.removeprefix("tb_"): ("--data", DATA, "--sets", name)
            for name in (
                "claims", "amounts", "tb_default_credit", "tb_bank_marketing", "tb_california",
                "tb_electricity", "adult",
            )
        },
        layouts.cut_points,
    ),
    "horizontal-gates": Table(
        "cut_points",
        {
            short: ("--data", DATA, "--gate", f"fate_{short.replace('-', '_')}_homo")
            for short in ("student", "breast", "default-credit")
        },
        layouts.gates,
    ),
    "samplers": Table(
        "histogram_samplers",
        {name: ("--data", DATA, "--sets", name) for name in ("insurance", "machine", "skin")},
        layouts.samplers,
    ),
    "local-tests": Table(
        "histogram_samplers",
        {
            name: ("--data", DATA, "--what", "local", "--sets", name)
            for name in ("insurance", "machine", "skin")
        },
        layouts.local_tests,
    ),
    "party-bins": Table(
        "party_bins",
        {
            short: ("--data", DATA, "--sets", name, "--seeds", seeds)
            for short, name, seeds in (
                ("flights", "flights", "3"),
                ("flights-balanced", "flights, balanced", "3"),
                ("credit", "credit", "2"),
            )
        },
        layouts.by_case,
    ),
    "parameter-search": Table(
        "party_bins",
        {
            name: ("--data", DATA, "--what", "search", "--sets", name)
            for name in ("insurance", "machine")
        },
        layouts.by_case,
    ),
    "vertical-gates": Table(
        "vertical",
        {
            short: ("--data", DATA, "--only", "gates", "--sets", name)
            for short, name in FATE_SETS.items()
        },
        layouts.gates,
    ),
    "vertical-bins": Table(
        "vertical",
        {
            short: ("--data", DATA, "--only", "bins", "--sets", name)
            for short, name in FATE_SETS.items()
        },
        layouts.bins,
    ),
    "vertical-costs": Table(
        "vertical",
        {name: ("--data", DATA, "--only", name) for name in ("breast", "credit", "python")},
        layouts.costs,
    ),
    "vertical-phases": Table("vertical", {"scaling": ("--only", "scaling")}, layouts.phases),
    "vertical-modes": Table(
        "vertical_modes",
        {
            short: ("--data", DATA, "--sets", name, "--splits", splits)
            for short, name, splits in (
                ("breast", "fate_breast_hetero", "20"),
                ("student", "fate_student_hetero", "20"),
                ("ionosphere", "fate_ionosphere_scale_hetero", "20"),
                ("wine", "tb_wine_quality", "5"),
                ("motor", "fate_motor_hetero", "20"),
                ("nursery", "nursery", "5"),
                ("epsilon", "fate_epsilon_5k", "5"),
                ("default-credit", "fate_default_credit_hetero", "5"),
            )
        },
        layouts.modes,
    ),
    "fedga": Table(
        "fedga",
        {
            name: ("--data", DATA, "--sets", name, "--splits", "5", "--runs", "3")
            for name in FEDGA_SETS
        },
        layouts.fedga,
    ),
    "fedga-central": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "central", "--data", DATA, "--sets", name, "--splits", "5", "--runs", "1",
            )
            for name in FEDGA_SETS
        },
        layouts.central,
    ),
    "fedga-bins": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "bins", "--data", DATA, "--sets", name, "--splits", "3", "--runs", "1",
            )
            for name in CLASSIFICATIONS
        },
        layouts.by_who,
    ),
    "dp-depths": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "depths", "--data", DATA, "--sets", name, "--splits", "3", "--runs", "2",
            )
            for name in CLASSIFICATIONS
        },
        layouts.by_who,
    ),
    "dp-shares": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "shares", "--data", DATA, "--sets", name, "--splits", "3", "--runs", "3",
            )
            for name in CLASSIFICATIONS
        },
        layouts.by_who,
    ),
    "fedga-paper": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "paper", "--data", DATA, "--sets", name, "--splits", "3", "--runs", "1",
            )
            for name in FEDGA_SETS
        },
        layouts.paper,
    ),
    "fedga-metrics": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "metrics", "--data", DATA, "--sets", name, "--splits", "2", "--runs", "1",
            )
            for name in ("adult", "tb_default_credit", "tb_california", "tb_bank_marketing")
        },
        layouts.fedga_metrics,
    ),
    "fedga-cost": Table("fedga", {"cost": ("--part", "cost")}, layouts.fedga_cost),
    "fedga-federations": Table(
        "fedga",
        {
            name: (
                "--data", DATA, "--part", "federations", "--sets", name, "--splits", "3",
                "--runs", "1",
            )
            for name in FEDGA_SETS
        },
        layouts.federations,
    ),
    "dp-audit": Table(
        "dp_audit",
        {
            "true": ("--runs", "10000"),
            "half-noise": ("--quick", "--break", "half-noise"),
            "sensitivity": ("--quick", "--break", "sensitivity"),
            "all-parts": ("--quick", "--break", "all-parts"),
        },
        layouts.audit,
    ),
    "dp-parts": Table("dp_audit", {"exact": ("--factors",)}, layouts.parts_known),
}  # fmt: skip
