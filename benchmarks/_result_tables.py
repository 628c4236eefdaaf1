"""The tables of the papers: what runs each of their parts, and how the pages lay them out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

DATA = "DIR"
"""Stands for the folder of the data sets."""

Row = dict[str, Any]
Lines = list[list[str]]


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
    """

    module: str
    parts: dict[str, tuple[str, ...]]
    shown: Callable[[dict[str, list[Row]]], Lines]

    def command(self, part: str, data: str) -> list[str]:
        """Return the words after ``python`` that run a part."""
        where = [data if word == DATA else word for word in self.parts[part]]
        return ["-m", f"benchmarks.{self.module}", *where]


# --- how each table is shown ---


def _one(rows: Iterable[Row], **facts: Any) -> Row:
    [found] = [row for row in rows if all(row.get(key) == value for key, value in facts.items())]
    return found


def _spread(row: Row, digits: int) -> str:
    return f"{row['value']:.{digits}f} ± {row['sd']:.{digits}f}"


def _samplers(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Table V of the MVS paper: by set and sampler, two scores and three readings."""
    lines = [["set", "sampler", "metric", "last", "selected", "top 1 %", "paper, top 1 %"]]
    for part, rows in parts.items():
        names = dict.fromkeys((row["sampler"], row["unit"]) for row in rows)
        for sampler, metric in names:
            digits = 0 if metric == "rmse" else 3
            own = [row for row in rows if (row["sampler"], row["unit"]) == (sampler, metric)]
            readings = {row["metric"].rpartition(", ")[2]: row for row in own}
            lines.append([
                part, "pooled XGBoost" if sampler == "central" else sampler, metric,
                *(_spread(readings[each], digits) for each in ("last", "selected", "top 1 %")),
                f"{own[0]['published']:g}",
            ])  # fmt: skip
    return lines


def _local_tests(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Figure 5 of the MVS paper: by set and sampler, silos' own tests beside all's."""
    lines = [
        ["set", "sampler", "metric", "global", "local less global", "between silos", "better, %"]
    ]
    for part, rows in parts.items():
        for sampler in dict.fromkeys(row["sampler"] for row in rows):
            own = [row for row in rows if row["sampler"] == sampler]
            whole, apart, spread, better = own
            digits = 0 if whole["unit"] == "rmse" else 4
            lines.append([
                part, sampler, whole["unit"], _spread(whole, digits),
                f"{apart['value']:+.{digits}f} ± {apart['sd']:.{digits}f}",
                f"{spread['value']:.{digits}f}", f"{better['value']:.0f}",
            ])  # fmt: skip
    return lines


def _fedga(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedGA's trees: by set, scores of all kinds of trees, change and nodes."""
    kinds = {
        "own": "own", "fedga": "**FedGA**", "own-at-depth": "own at FedGA's depth",
        "forest": "forest of own", "central": "central CART", "dp-tree": "DP, every cut",
        "dp-tree-histogram": "DP, histograms", "dp-tree-private": "DP, private edges",
        "dp-tree-no-noise": "DP, no noise",
    }  # fmt: skip
    others = ("change, %", "silos gaining, %", "nodes own, FedGA", "edit distance")
    lines = [["set", "metric", *kinds.values(), *others]]
    for part, rows in parts.items():
        metric = "mse" if any(row["metric"] == "mse" for row in rows) else "f1"
        scores = [[r for r in rows if (r["metric"], r["who"]) == (metric, kind)] for kind in kinds]
        nodes = [_one(rows, metric="decision_nodes", who=who)["value"] for who in ("own", "fedga")]
        change = _one(rows, metric="delta", who="fedga")
        gaining = _one(rows, metric="share_gaining", who="fedga")["value"]
        lines.append([
            part, metric, *(f"{own[0]['value']:.4g}" if own else "–" for own in scores),
            f"{change['value']:+.1f} ± {change['sd']:.1f}", f"{100 * gaining:.0f}",
            f"{nodes[0]:.1f}, {nodes[1]:.1f}",
            f"{_one(rows, metric='edit_distance', who='fedga')['value']:.2f}",
        ])  # fmt: skip
    return lines


def _federations(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedGA's change against own trees by number of silos, and by the share drawn."""
    names = dict.fromkeys(row["who"] for rows in parts.values() for row in rows)
    lines = [["set", *(f"{name} silos" for name in names)]]
    for part, rows in parts.items():
        changes = [_one(rows, metric="delta", who=name) for name in names]
        lines.append([part, *(f"{row['value']:+.1f} ± {row['sd']:.1f}" for row in changes)])
    return lines


def _by_who(parts: dict[str, list[Row]]) -> Lines:
    """Lay out a score of several trees: a line a set and their mean, a column a tree."""
    names = list(dict.fromkeys(row["who"] for rows in parts.values() for row in rows))
    lines, of_all = [["set", *names]], []
    for part, rows in parts.items():
        found = [_one(rows, who=who) for who in names]
        lines.append([part, *(_spread(row, 3) for row in found)])
        of_all.append([row["value"] for row in found])
    return [
        *lines,
        ["mean", *(f"{statistics.fmean(own):.3f}" for own in zip(*of_all, strict=True))],
    ]


def _by_case(parts: dict[str, list[Row]]) -> Lines:
    """Lay out scores by set, silos and metric, a column a method."""
    names = list(dict.fromkeys(row["who"] for rows in parts.values() for row in rows))
    lines = [["set", "silos", "metric", *names]]
    for part, rows in parts.items():
        for case, metric in dict.fromkeys((row["case"], row["metric"]) for row in rows):
            own = [_one(rows, case=case, metric=metric, who=who) for who in names]
            digits = 0 if metric == "rmse" else 3
            lines.append([part, case, metric, *(_spread(row, digits) for row in own)])
    return lines


def _gates(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FATE's gates: one split, and the mean difference of all splits."""
    lines = [["set", "metric", "ours, one split", "XGBoost", "mean difference, %"]]
    for part, rows in parts.items():
        [name] = {row["metric"] for row in rows if row["who"] == "xgboost-pooled"}
        mean, error = (
            _one(rows, metric=f"{name}_to_xgboost_{kind}")["value"]
            for kind in ("mean", "standard_error")
        )
        lines.append([
            part, name.rpartition("_")[2],
            *(f"{_one(rows, metric=name, who=who)['value']:.4f}"
              for who in ("native", "xgboost-pooled")),
            f"{mean:+.2f} ± {error:.2f}",
        ])  # fmt: skip
    return lines


def _heads(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Table 4 of the FedXGBllr paper: by set, the score of each network."""
    kinds = ("cnn", "conv3", "dense")
    lines = [["set", "silos", "seeds", *(f"`{kind}`" for kind in kinds)]]
    seeds = [row for rows in parts.values() for row in rows if "_seed_" in row["metric"]]
    for name in dict.fromkeys(row["metric"].rpartition("_silos_seed_")[0] for row in seeds):
        own = [row for row in seeds if row["metric"].rpartition("_silos_seed_")[0] == name]
        by = {kind: [row["value"] for row in own if row["who"] == kind] for kind in kinds}
        short, _, silos = name.rpartition("_")
        lines.append([short, silos, f"{len(by['cnn'])}", *map(_mean_and_spread, by.values())])
    return lines


def _mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _modes(parts: dict[str, list[Row]]) -> Lines:
    """Lay out SecureBoost's modes: by set, score, paired difference from standard, and CPU."""
    lines = [
        ["set", "mode", "metric", "splits", "mean", "less standard", "CPU s", "less standard, %"]
    ]
    for part, rows in parts.items():
        scored = [row for row in rows if "_seed_" in row["metric"]]
        metric = scored[0]["metric"].rpartition("_seed_")[0].rpartition("_")[2]
        modes = dict.fromkeys(row["who"] for row in scored)
        by = {who: [row["value"] for row in scored if row["who"] == who] for who in modes}
        cpu = {who: _one(rows, who=who, unit="s")["value"] for who in modes}
        for who, values in by.items():
            gaps = [a - b for a, b in zip(values, by["standard"], strict=True)]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5
            own = who == "standard"
            lines.append([
                part, who, metric, f"{len(values)}", f"{statistics.fmean(values):.4f}",
                "–" if own else f"{statistics.fmean(gaps):+.4f} ± {error:.4f}", f"{cpu[who]:.1f}",
                "–" if own else f"{100 * (cpu[who] / cpu['standard'] - 1):+.0f}",
            ])  # fmt: skip
    return lines


def _simfl(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Tables 2 and 3 of the FedXGBllr paper: by set and silos, scores and SimFL's bytes."""
    kinds = ("xgboost-pooled", "mean", "cnn", "simfl")
    lines = [
        ["set", "silos", "seeds", "pooled", "mean", "`cnn`", "SimFL", "SimFL, MB", "formula, MB"]
    ]
    seeds = [row for rows in parts.values() for row in rows if "_seed_" in row["metric"]]
    for name in dict.fromkeys(row["metric"].rpartition("_seed_")[0] for row in seeds):
        own = [row for row in seeds if row["metric"].rpartition("_seed_")[0] == name]
        by = {kind: [row["value"] for row in own if row["who"] == kind] for kind in kinds}
        scores = [_mean_and_spread(values) for values in by.values()]
        mb = [
            statistics.mean(row["value"] for row in own if row["who"] == who) / 1e6
            for who in ("simfl-bytes", "simfl-formula-bytes")
        ]
        short, silos, _ = name.rsplit("_", 2)
        lines.append([
            short, silos, f"{len(by['simfl'])}", *scores, *(f"{each:.1f}" for each in mb),
        ])  # fmt: skip
    return lines


def _growth(parts: dict[str, list[Row]]) -> Lines:
    """Lay out tree against tree plus: by set and trees a silo and round."""
    lines = [["set", "n", "best AUC", "AUC at 180 trees", "rounds", "trees", "MB", "CPU ms a tree"]]
    for part, rows in parts.items():
        for who in dict.fromkeys(row["who"] for row in rows):
            own = {row["metric"]: row for row in rows if row["who"] == who}
            reached = [
                f"{own[name]['value']:.{digits}f}" if name in own else "–"
                for name, digits in (("rounds", 1), ("trees", 0), ("megabytes", 2))
            ]
            if "rounds" in own and own["rounds"]["n"] < own["best_auc"]["n"]:
                reached[0] += f" ({own['rounds']['n']} of {own['best_auc']['n']} seeds)"
            lines.append([
                part, who.removeprefix("n = "),
                *(_spread(own[name], 4) for name in ("best_auc", "auc_at_180_trees")),
                *reached, f"{own['cpu_a_tree']['value']:.0f}",
            ])  # fmt: skip
    return lines


def _rates(parts: dict[str, list[Row]]) -> Lines:
    """Lay out AUC after 6 and after 24 rounds: by set, silos and sizes, and by rate."""
    lines = [["set", "silos", "sizes", "`plain`", "`rows`, not raised", "`rows`", "`gain`"]]
    for part, rows in parts.items():
        for case in dict.fromkeys(tuple(row["who"].split(", ")[:2]) for row in rows):
            own = [row for row in rows if tuple(row["who"].split(", ")[:2]) == case]
            who = dict.fromkeys(row["who"] for row in own)
            cells = [
                [_one(own, who=each, metric=name)["value"] for name in ("early_auc", "auc")]
                for each in who
            ]
            lines.append([
                part, case[0].removesuffix(" silos"), case[1],
                *(f"{early:.4f}, {last:.4f}" for early, last in cells),
            ])  # fmt: skip
    return lines


def _drawn(parts: dict[str, list[Row]]) -> Lines:
    """Lay out the silos that a round draws: by set and number."""
    lines = [["set", "silos a round", "AUC, last round", "best AUC", "MB"]]
    for part, rows in parts.items():
        for who in dict.fromkeys(row["who"] for row in rows):
            scores = [_spread(_one(rows, who=who, metric=name), 4) for name in ("auc", "best_auc")]
            moved = _one(rows, who=who, metric="megabytes")["value"]
            lines.append([part, who, *scores, f"{moved:.2f}"])
    return lines


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

TABLES = {
    "bagging-growth": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "growth", "--sets", name, "--seeds", "3")
            for name in ("higgs_26k", "adult")
        },
        _growth,
    ),
    "bagging-rates": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "rates", "--sets", name, "--seeds", "2")
            for name in ("higgs_26k", "adult")
        },
        _rates,
    ),
    "bagging-drawn": Table(
        "bagging_rates",
        {
            name: ("--data", DATA, "--what", "drawn", "--sets", name, "--seeds", "3")
            for name in ("higgs_26k", "adult")
        },
        _drawn,
    ),
    "simfl": Table(
        "fedxgbllr",
        {
            f"{name}-{silos}-seed-{seed}": (
                "--what", "simfl", "--data", DATA, "--sets", name, "--silos", silos,
                "--first-seed", seed, "--seeds", "1",
            )
            for silos, seeds in (("2", "0"), ("10", "0"), ("2", "1234"))
            for seed in seeds
            for name in ("abalone", "cpusmall", "cod_rna", "higgs_26k", "a9a")
        },
        _simfl,
    ),
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
        _heads,
    ),
    "samplers": Table(
        "histogram_samplers",
        {name: ("--data", DATA, "--sets", name) for name in ("insurance", "machine", "skin")},
        _samplers,
    ),
    "local-tests": Table(
        "histogram_samplers",
        {
            name: ("--data", DATA, "--what", "local", "--sets", name)
            for name in ("insurance", "machine", "skin")
        },
        _local_tests,
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
        _by_case,
    ),
    "parameter-search": Table(
        "party_bins",
        {
            name: ("--data", DATA, "--what", "search", "--sets", name)
            for name in ("insurance", "machine")
        },
        _by_case,
    ),
    "vertical-gates": Table(
        "vertical",
        {
            short: ("--data", DATA, "--only", "gates", "--sets", name)
            for short, name in (
                ("student", "fate_student_hetero"),
                ("breast", "fate_breast_hetero"),
                ("ionosphere", "fate_ionosphere_scale_hetero"),
                ("motor", "fate_motor_hetero"),
                ("epsilon", "fate_epsilon_5k"),
                ("default-credit", "fate_default_credit_hetero"),
            )
        },
        _gates,
    ),
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
        _modes,
    ),
    "fedga": Table(
        "fedga",
        {
            name: ("--data", DATA, "--sets", name, "--splits", "5", "--runs", "3")
            for name in FEDGA_SETS
        },
        _fedga,
    ),
    "fedga-bins": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "bins", "--data", DATA, "--sets", name, "--splits", "3", "--runs", "1",
            )
            for name in CLASSIFICATIONS
        },
        _by_who,
    ),
    "dp-depths": Table(
        "fedga_inputs",
        {
            name: (
                "--what", "depths", "--data", DATA, "--sets", name, "--splits", "3", "--runs", "2",
            )
            for name in CLASSIFICATIONS
        },
        _by_who,
    ),
    "fedga-federations": Table(
        "fedga",
        {
            name: (
                "--data", DATA, "--part", "federations", "--sets", name, "--splits", "3",
                "--runs", "1",
            )
            for name in FEDGA_SETS
        },
        _federations,
    ),
}  # fmt: skip
