"""How the pages lay out the tables of the papers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.fedxgbllr import interval

Row = dict[str, Any]
Lines = list[list[str]]


def _one(rows: Iterable[Row], **facts: Any) -> Row:
    [found] = [row for row in rows if all(row.get(key) == value for key, value in facts.items())]
    return found


def _spread(row: Row, digits: int) -> str:
    return f"{row['value']:.{digits}f} ± {row['sd']:.{digits}f}"


def _change(row: Row, splits: int) -> str:
    """Return mean and spread, in bold where the 95 % interval over splits excludes 0."""
    from scipy import stats

    half = float(stats.t.ppf(0.975, splits - 1)) * row["sd"] / splits**0.5
    text = f"{row['value']:+.1f} ± {row['sd']:.1f}"
    return f"**{text}**" if abs(row["value"]) > half else text


def cut_points(parts: dict[str, list[Row]]) -> Lines:
    """Lay out areas by set and bins: XGBoost's, and mean differences from it in ten-thousandths.

    Lines of all sets give the mean of the sets' means, and its error from that of each.
    """
    whos = ("xgboost-other", "engine", "histogram", "summary", "vertical", "even")
    lines = [[
        "set", "bins", "XGBoost", "XGBoost, other cuts", "engine, XGBoost's cuts", "`histogram`",
        "`histogram`, summary", "`secureboost`", "even ranks",
    ]]  # fmt: skip
    rows = [row for own in parts.values() for row in own]
    for bins in dict.fromkeys(row["bins"] for row in rows):
        own = [row for row in rows if row["bins"] == bins]
        for name in [*dict.fromkeys(row["set"] for row in own), ""]:
            line = []
            for who in ("xgboost-pooled", *whos):
                of = [r for r in own if r["who"] == who and name in ("", r["set"])]
                error = sum(row["off_sd"] ** 2 / row["n"] for row in of) ** 0.5 / len(of)
                line.append(
                    f"{1e4 * statistics.fmean(r['off'] for r in of):+.1f} ± {1e4 * error:.1f}"
                )
                if who == "xgboost-pooled":
                    line = [f"{statistics.fmean(row['value'] for row in of):.4f}"]
            lines.append([name.removeprefix("tb_") or f"**all {len(parts)}**", str(bins), *line])
    return lines


def samplers(parts: dict[str, list[Row]]) -> Lines:
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


def local_tests(parts: dict[str, list[Row]]) -> Lines:
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


def fedga(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedGA's trees: by set, scores of all kinds of trees, change and nodes."""
    kinds = {
        "own": "own", "fedga": "**FedGA**", "own-at-depth": "own at FedGA's depth",
        "forest": "forest of own", "central": "central CART, FedGA's depth",
        "dp-tree": "DP, every cut", "dp-tree-histogram": "DP, histograms",
        "dp-tree-private": "DP, private edges", "dp-tree-no-noise": "DP, no noise",
    }  # fmt: skip
    others = ("change, %", "silos gaining, %", "nodes own, FedGA", "edit distance")
    lines = [["set", "metric", *kinds.values(), *others]]
    for part, rows in parts.items():
        metric = "mse" if any(row["metric"] == "mse" for row in rows) else "f1"
        scores = [[r for r in rows if (r["metric"], r["who"]) == (metric, kind)] for kind in kinds]
        nodes = [_one(rows, metric="decision_nodes", who=who)["value"] for who in ("own", "fedga")]
        change = _one(rows, metric="delta", who="fedga")
        splits = _one(rows, metric=metric, who="own")["n"]
        gaining = _one(rows, metric="share_gaining", who="fedga")["value"]
        lines.append([
            part, metric, *(f"{own[0]['value']:.4g} ± {own[0]['sd']:.2g}" if own else "–"
                            for own in scores),
            _change(change, splits), f"{100 * gaining:.0f}",
            f"{nodes[0]:.1f}, {nodes[1]:.1f}",
            f"{_one(rows, metric='edit_distance', who='fedga')['value']:.2f}",
        ])  # fmt: skip
    return lines


def central(parts: dict[str, list[Row]]) -> Lines:
    """Lay out CART on all rows at its own depth: score and mean depth by set."""
    lines = [["set", "metric", "central CART, its own depth", "depth"]]
    for part, rows in parts.items():
        [score] = [row for row in rows if row["metric"] != "depth"]
        depth = _one(rows, metric="depth")["value"]
        value = f"{score['value']:.4g} ± {score['sd']:.2g}"
        lines.append([part, score["metric"], value, f"{depth:.1f}"])
    return lines


def paper(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedGA as in the paper beside our default: changes and nodes by set."""
    lines = [["set", "change, default, %", "change, paper, %", "nodes own", "default", "paper"]]
    for part, rows in parts.items():
        changes = [_one(rows, metric="delta", who=who) for who in ("fedga", "paper")]
        nodes = [_one(rows, metric="decision_nodes", who=who) for who in ("own", "fedga", "paper")]
        lines.append([
            part, *(_change(row, row["n"]) for row in changes),
            *(f"{row['value']:.1f}" for row in nodes),
        ])  # fmt: skip
    return lines


def fedga_metrics(parts: dict[str, list[Row]]) -> Lines:
    """Lay out scores of own and FedGA's trees, and changes, by set and what is searched for."""
    names = {"f1": "F1", "accuracy": "accuracy", "auc": "AUC"}
    lines = [["set", "searched for", *(f"{name}: own, FedGA, change" for name in names.values())]]
    for part, rows in parts.items():
        searched = [row["who"] for row in rows if row["metric"] == "f1 change"]
        for metric in searched:
            cells = []
            for name in names:
                own, found = (
                    _one(rows, metric=name, who=f"{who}, {metric}")["value"]
                    for who in ("own", "fedga")
                )
                cells.append(f"{own:.4f}, {found:.4f}, {found - own:+.4f}")
            lines.append([part.removeprefix("tb_"), names.get(metric, metric), *cells])
    return lines


def fedga_cost(parts: dict[str, list[Row]]) -> Lines:
    """Lay out the CPU of a generation, and of scikit-learn's trees beside it."""
    lines = [["what", "CPU s"]]
    for row in (row for rows in parts.values() for row in rows):
        what = f"scikit-learn, {row['metric'].removesuffix('_seconds').replace('_', ' ')}"
        if row["who"] == "hedgerow":
            what = f"FedGA, {row['structures']} structures, {row['leaf_share']:.0%} leaves"
        lines.append([what, f"{row['value']:.3f}"])
    return lines


def federations(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedGA's change against own trees by number of silos, and by the share drawn."""
    names = dict.fromkeys(row["who"] for rows in parts.values() for row in rows)
    lines = [["set", *(f"{name} silos" for name in names)]]
    for part, rows in parts.items():
        changes = [_one(rows, metric="delta", who=name) for name in names]
        lines.append([part, *(_change(row, row["n"]) for row in changes)])
    return lines


def by_who(parts: dict[str, list[Row]]) -> Lines:
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


def by_case(parts: dict[str, list[Row]]) -> Lines:
    """Lay out scores by set, silos and metric, a column a method."""
    names = list(dict.fromkeys(row["who"] for rows in parts.values() for row in rows))
    lines = [["set", "silos", "metric", *names]]
    for part, rows in parts.items():
        for case, metric in dict.fromkeys((row["case"], row["metric"]) for row in rows):
            own = [_one(rows, case=case, metric=metric, who=who) for who in names]
            digits = 0 if metric == "rmse" else 3
            lines.append([part, case, metric, *(_spread(row, digits) for row in own)])
    return lines


def gates(parts: dict[str, list[Row]]) -> Lines:
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


def heads(parts: dict[str, list[Row]]) -> Lines:
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


def default(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedXGBllr's default beside the mean of the ensembles: paired, by set and silos.

    The last line counts on how many of them it is better, and on how many the interval says so.
    """
    lines = [["set", "silos", "seeds", "mean", "`cnn`", "difference", "best round by seed"]]
    better, surely_better, surely_worse = 0, 0, 0
    seeds = [row for rows in parts.values() for row in rows if "_seed_" in row["metric"]]
    for name in dict.fromkeys(row["metric"].rpartition("_seed_")[0] for row in seeds):
        own = [row for row in seeds if row["metric"].rpartition("_seed_")[0] == name]
        mean, cnn, best = (
            [row["value"] for row in own if row["who"] == who]
            for who in ("mean", "cnn", "cnn-best-round")
        )
        error = own[0]["unit"] == "MSE"
        gaps = [100 * (b / a - 1) if error else b - a for a, b in zip(mean, cnn, strict=True)]
        middle, half = interval(gaps)
        gain = -middle if error else middle
        better += gain > 0
        surely_better += gain > half
        surely_worse += -gain > half
        short, silos, _ = name.rsplit("_", 2)
        lines.append([
            short, silos, f"{len(gaps)}", f"{statistics.mean(mean):.2f}",
            f"{statistics.mean(cnn):.2f}",
            f"{middle:+.2f}" + (f" ± {half:.2f}" if len(gaps) > 1 else "") + " %" * error,
            ", ".join(f"{round_:.0f}" for round_ in best),
        ])  # fmt: skip
    said = f"better {better}; interval without 0: better {surely_better}, worse {surely_worse}"
    return [*lines, [f"all {len(lines) - 1}", "", "", "", "", said, ""]]


def modes(parts: dict[str, list[Row]]) -> Lines:
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


_PAPER_TABLE_2 = {
    "a9a": "85.1 85.1 84.7", "cod_rna": "97.0 96.5 95.8", "higgs_26k": "71.5 70.9 70.3",
    "abalone": "3.6 4.4 4.9", "cpusmall": "8.0 8.5 9.5",
}  # fmt: skip


def published(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Table 2 of the FedXGBllr paper: as published, and other ways, by set and silos."""
    kinds = {
        "published-text": "as published, text's booster",
        "published-code": "as published, code's booster", "cnn": "default", "linear": "`ridge`",
        "leaves": "`leaves`", "shared-leaves": "`leaves`, `share_penalties`", "mean": "mean",
        "xgboost-pooled": "pooled",
    }  # fmt: skip
    lines = [["set", "silos", "seeds", "paper", *kinds.values()]]
    seeds = [row for rows in parts.values() for row in rows if "_seed_" in row["metric"]]
    cases = {row["metric"].rpartition("_silos_seed_")[0] for row in seeds}
    for case in sorted(cases, key=lambda case: (case.rpartition("_")[0], int(case.split("_")[-1]))):
        own = [row for row in seeds if row["metric"].startswith(f"{case}_silos_seed_")]
        by = [[row["value"] for row in own if row["who"] == kind] for kind in kinds]
        name, _, silos = case.rpartition("_")
        said = _PAPER_TABLE_2[name].split()[("2", "5", "10").index(silos)]
        lines.append([name, silos, f"{len(by[0])}", said, *map(_mean_and_spread, by)])
    return lines


def schedules(parts: dict[str, list[Row]]) -> Lines:
    """Lay out scores by epochs a round, E, and rounds, R: a line a set and E, a column an R."""
    seeds = [row for rows in parts.values() for row in rows if "_seed_" in row["metric"]]
    rounds = ("1", "10", "100")
    lines = [["set", "epochs a round", *(f"{number} rounds" for number in rounds)]]
    for name in dict.fromkeys(row["metric"].partition("_")[0] for row in seeds):
        for epochs in rounds:
            cells = [
                [row["value"] for row in seeds
                 if row["metric"].startswith(f"{name}_") and row["who"] == f"{epochs}, {number}"]
                for number in rounds
            ]  # fmt: skip
            lines.append([name, epochs, *(_mean_and_spread(c) if c else "–" for c in cells)])
    return lines


def simfl(parts: dict[str, list[Row]]) -> Lines:
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


def growth(parts: dict[str, list[Row]]) -> Lines:
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


def peers(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FLeXGBoost here beside other libraries: AUC, bytes and CPU."""
    lines = [["set", "library", "AUC, last round", "best AUC", "MB", "control MB", "CPU s"]]
    for part, rows in parts.items():
        for who in dict.fromkeys(row["who"] for row in rows):
            cells = []
            for metric, digits in (
                ("auc", 4), ("best_auc", 4), ("megabytes", 2), ("control_megabytes", 2),
                ("cpu_seconds", 0),
            ):  # fmt: skip
                own = [r["value"] for r in rows if (r["who"], r["metric"]) == (who, metric)]
                cells.append(f"{statistics.fmean(own):.{digits}f}" if own else "–")
            lines.append([part, who, *cells])
    return lines


def rates(parts: dict[str, list[Row]]) -> Lines:
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


def flipped(parts: dict[str, list[Row]]) -> Lines:
    """Lay out AUC by rate, all silos right and one wrong."""
    lines = [["set", "silos", "`plain`", "`rows`", "`gain`", "`gain`, trimmed"]]
    for part, rows in parts.items():
        own = {row["who"]: _spread(row, 4) for row in rows}
        for silos in dict.fromkeys(who.partition(", ")[0] for who in own):
            modes = ("plain", "rows", "gain", "trimmed")
            lines.append([part, silos, *(own.get(f"{silos}, {mode}", "–") for mode in modes)])
    return lines


def named(parts: dict[str, list[Row]]) -> Lines:
    """Lay out one bad silo: AUC, and by each rule what silos add, who is named, AUC without."""
    lines = [[
        "set", "first silo", "AUC", "first adds; least of another", "named: first, others",
        "AUC without", "by sums: first; least of another", "named: first, others", "AUC without",
    ]]  # fmt: skip
    said = {"clean": "as the others", "differ": "as the others, labels dealt by Dirichlet(0.3)"}
    for part, rows in parts.items():
        for who in dict.fromkeys(row["who"] for row in rows):
            own = {row["metric"]: row for row in rows if row["who"] == who}
            cells = [part, said.get(who, who), _spread(own["auc"], 4)]
            for first, least, rule in (
                ("bad_adds", "least_sound", ""),
                ("bad_falls", "least_sound_falls", "_by_sums"),
            ):
                if first not in own:
                    cells += ["–"] * 3
                    continue
                adds = (f"{own[name]['value']:+.4f}" for name in (first, least))
                named = (
                    f"{own[f'{which}_named{rule}']['value'] * own['auc']['n']:.0f}"
                    f" of {most * own['auc']['n']}"
                    for which, most in (("bad", 1), ("sound", 4))
                )
                without = _spread(own[f"auc_without{rule}"], 4)
                cells += ["; ".join(adds), ", ".join(named), without]
            lines.append(cells)
    return lines


def drawn(parts: dict[str, list[Row]]) -> Lines:
    """Lay out the silos that a round draws: by set and number."""
    lines = [["set", "silos a round", "AUC, last round", "best AUC", "MB"]]
    for part, rows in parts.items():
        for who in dict.fromkeys(row["who"] for row in rows):
            scores = [_spread(_one(rows, who=who, metric=name), 4) for name in ("auc", "best_auc")]
            moved = _one(rows, who=who, metric="megabytes")["value"]
            lines.append([part, who, *scores, f"{moved:.2f}"])
    return lines


def audit(parts: dict[str, list[Row]]) -> Lines:
    """Lay out the audit of epsilon: by mechanism, bounds of the true one and of broken ones.

    Raises
    ------
    ValueError
        Parts have other mechanisms or claims, or in another order.
    """
    lines = [["mechanism", "epsilon claimed", *parts]]
    for found in zip(*parts.values(), strict=True):
        [(mechanism, claimed)] = {(row["mechanism"], row["claimed"]) for row in found}
        lines.append([
            mechanism, f"{claimed:.3g}",
            *(("**{:.3g}**" if row["at_least"] > row["claimed"] else "{:.3g}").format(
                row["at_least"]) for row in found),
        ])  # fmt: skip
    return lines


def parts_known(parts: dict[str, list[Row]]) -> Lines:
    """Lay out epsilon against silos that know their parts: by sum, and by what is stated."""
    rows = [row for found in parts.values() for row in found]
    stated = list(dict.fromkeys(row["stated"] for row in rows))
    lines = [["silos", "honest", "subtract", *(f"stated {epsilon:g}" for epsilon in stated)]]
    cases = dict.fromkeys((row["silos"], row["honest"], row["known"]) for row in rows)
    for case in cases:
        own = [r for r in rows if (r["silos"], r["honest"], r["known"]) == case]
        lines.append([*map(str, case), *(f"{row['epsilon']:.3g}" for row in own)])
    return lines


def engine(parts: dict[str, list[Row]]) -> Lines:
    """Lay out one thread of the engine beside one of XGBoost: CPU seconds a tree."""
    lines = [["", *(cell for part in parts for cell in (f"{part}: s a tree", "to XGBoost"))]]
    trees = [
        {row["metric"] + row["who"]: row["value"] for row in rows
         if row["metric"].startswith("tree") and row["unit"] == "s"}
        for rows in parts.values()
    ]  # fmt: skip
    for key in trees[0]:
        who = key.removeprefix("tree").removeprefix(", ").replace("xgboost-pooled", "XGBoost")
        name = who.removesuffix("hedgerow")
        cells = []
        for own in trees:
            cells += [f"{own[key]:.4f}", f"{own[key] / next(iter(own.values())):.2f}"]
        lines.append([f"engine, {name or 'lossless'}" if name != who else who, *cells])
    return lines


def wire(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Table 3 of the FedXGBllr paper: by set and options, megabytes and the score."""
    kinds = ("network", "trees", "rates", "scores", "total")
    lines = [["set", "options", *(f"{kind}, MB" for kind in kinds), "accuracy, %"]]
    for part, rows in parts.items():
        ours = [row for row in rows if row["who"] == "hedgerow"]
        for options in dict.fromkeys(row["metric"].partition(" ")[2] for row in ours):
            own = {
                row["metric"].partition(" ")[0].rpartition("_")[2]: row["value"]
                for row in ours if row["metric"].partition(" ")[2] == options
            }  # fmt: skip
            name = "lossless" if options == "lossless" else f"`{options}`"
            sizes = [f"{own[kind] / 1e6:.3f}" for kind in kinds]
            lines.append([part, name, *sizes, f"{own['score']:.2f}"])
        for row in rows:
            if row["who"] != "hedgerow" and "_bytes_total" in row["metric"]:
                lines.append([part, "SimFL's formula", *"––––", f"{row['value'] / 1e6:.1f}", "–"])
    return lines


def adult(parts: dict[str, list[Row]]) -> Lines:
    """Lay out a comparison of strategies and baselines: three scores and bytes."""
    names = ("accuracy", "auc", "logloss")
    lines = [["", *names, "up, kB", "down, kB", "rounds"]]
    for row in (row for rows in parts.values() for row in rows):
        moved = [row["bytes_up"], row["bytes_down"]]
        lines.append([
            row["name"], *(f"{row['metrics'][name]:.4f}" for name in names),
            *("–" if each is None else f"{each / 1e3:,.1f}" for each in moved), f"{row['rounds']}",
        ])  # fmt: skip
    return lines


_WHO = {
    "local": "silos alone, mean of 5", "mean": "mean of the silos' models", "bagging": "`bagging`",
    "fedxgbllr": "`fedxgbllr`", "histogram": "`histogram`", "pooled": "XGBoost, pooled",
}  # fmt: skip


_DEALS = {
    "iid": "evenly", "dirichlet:0.3": "labels: Dirichlet 0.3",
    "dirichlet:0.1": "labels: Dirichlet 0.1", "square": "sizes: 1, 4, 9, 16, 25",
    "shift": "features: by ranks of a column", "flipped": "evenly; one silo's labels flipped",
    "random": "evenly; one silo's labels random", "units": "evenly; one silo's numbers × 1000",
}  # fmt: skip
_OWN = {
    "histogram": ("[no single tree](threat-model.md#attacks-that-once-worked)",
                  "its group's sums stop; the round ends"),
    "bagging": ("[rows and positives of 69 to 100 % of a first tree's leaves]"
                "(strategies/bagging.md#what-single-trees-tell)",
                "the round ends without its trees"),
    "fedxgbllr": ("as `bagging`", "the round ends without its part; its trees stay"),
    "simfl": ("[gradients in clear](strategies/simfl.md)", "its turns give no tree"),
    "mean": ("as `bagging`", "its model is not in the mean"),
}  # fmt: skip
_MEAN = "mean of the silos' models"


def deals(parts: dict[str, list[Row]]) -> Lines:
    """Lay out test scores by set and how rows are dealt, from silos alone to all rows pooled."""
    columns = {**_WHO, "simfl": "`simfl`"}
    lines = [["set", "silos", "rows dealt", "score", *columns.values()]]
    for rows in parts.values():
        for scheme in dict.fromkeys(row["scheme"] for row in rows):
            own = [row for row in rows
                   if row["scheme"] == scheme and row["metric"] in ("auc", "accuracy")]  # fmt: skip
            by = {row["who"]: f"{row['value']:.4f}" for row in own}
            lines.append([
                own[0]["set"].removeprefix("tb_"), f"{own[0]['silos']}", _DEALS[scheme],
                own[0]["metric"].replace("auc", "AUC"), *(by.get(who, "–") for who in columns),
            ])  # fmt: skip
    return [lines[0], *sorted(lines[1:], key=lambda line: line[0])]


def overview(parts: dict[str, list[Row]]) -> Lines:
    """Lay out five silos by set and strategy: gaps to pooled, costs, leaks, what a loss does.

    Pooled is XGBoost on sound rows of all silos, also where one silo's labels are flipped.
    """
    rows = [row for own in parts.values() for row in own if row["silos"] == 5]
    schemes = [scheme for scheme in _DEALS if any(row["scheme"] == scheme for row in rows)]
    costs = {"mb": ("MB", 1), "exchanges": ("exchanges", 0), "cpu_seconds": ("CPU s", 1)}
    lines = [[
        "set", "strategy", *(_DEALS[scheme] for scheme in schemes),
        *(name for name, _ in costs.values()), "what others learn, measured", "a silo is lost",
    ]]  # fmt: skip
    for name in sorted({row["set"] for row in rows}):
        for who, words in _OWN.items():
            by = {(r["scheme"], r["metric"]): r["value"] for r in rows
                  if (r["set"], r["who"]) == (name, who)}  # fmt: skip
            best = {r["scheme"]: r["value"] for r in rows
                    if (r["set"], r["who"]) == (name, "pooled")}  # fmt: skip
            best |= dict.fromkeys(("flipped", "random", "units"), best.get("iid", 0.0))
            scores = {at: by[at, metric] - best[at] for at, metric in by
                      if metric in ("auc", "accuracy")}  # fmt: skip
            lines.append([
                name.removeprefix("tb_"), _MEAN if who == "mean" else f"`{who}`",
                *(f"{scores[at]:+.4f}" if at in scores else "–" for at in schemes),
                *(f"{by['iid', kind]:.{digits}f}" if ("iid", kind) in by else "–"
                  for kind, (_, digits) in costs.items()),
                *words,
            ])  # fmt: skip
    return lines


def costs(parts: dict[str, list[Row]]) -> Lines:
    """Lay out whole vertical jobs: by set, trees, encryption and kernels, what they took."""
    lines = [["job", "CPU s", "wall s a tree", "MB", "GB", "test AUC"]]
    kinds = ("_cpu", "_wall_tree", "_bytes", "_pss", "_test_auc")
    digits = (1, 2, 1, 2, 4)
    for rows in parts.values():
        jobs = dict.fromkeys(
            (row["metric"].removesuffix("_cpu"), row["who"])
            for row in rows
            if row["metric"].endswith("_cpu")
        )
        for job, who in jobs:
            name, scheme, trees = job.split("_")
            scheme = {"paillier": "Paillier 2048", "elgamal": "ElGamal"}[scheme]
            found = [_one(rows, metric=job + kind, who=who)["value"] for kind in kinds]
            lines.append([
                f"{name}, {trees} trees, {scheme}" + ", pure Python" * (who == "python"),
                *(f"{value:.{n}f}" for value, n in zip(found, digits, strict=True)),
            ])  # fmt: skip
        lines += [
            ["XGBoost on the joined table, 10 trees", *"––––", f"{row['value']:.4f}"]
            for row in rows
            if row["who"] == "xgboost-pooled"
        ]
    return lines


def phases(parts: dict[str, list[Row]]) -> Lines:
    """Lay out a vertical tree by rows and mode: CPU seconds by phase, and MB by step."""
    seconds = ("encrypt", "send", "load", "histogram", "compress", "decrypt", "split", "cpu")
    steps = {"gradients": "Gradients", "sums": "Histograms", "splits": "Splits"}
    lines = [["rows", "", *seconds[:-1], "all", *(f"{step}, MB" for step in steps)]]
    for rows in parts.values():
        for who in dict.fromkeys(row["who"] for row in rows):
            mode, _, n_rows = who.removesuffix(" rows").rpartition(", ")
            by = {row["metric"]: row["value"] for row in rows if row["who"] == who}
            lines.append([
                f"{int(n_rows):,}", mode,
                *(f"{by.get(f'{each}_seconds', 0.0):.2f}" for each in seconds),
                *(f"{by[f'Exchange{each}_bytes']:.2f}" for each in steps.values()),
            ])  # fmt: skip
    return lines


def bins(parts: dict[str, list[Row]]) -> Lines:
    """Lay out a vertical job's score by numbers of bins, beside the active party alone."""
    numbers = list(dict.fromkeys(row["who"] for rows in parts.values() for row in rows))
    costs = [f"{what}, {', '.join(n.split()[0] for n in numbers)}" for what in ("MB", "CPU s")]
    lines = [["set", "metric", "active party alone", *numbers, *(f"a tree: {c}" for c in costs)]]
    for part, rows in parts.items():
        [alone] = {row["metric"] for row in rows if row["metric"].endswith("_alone")}
        score = alone.removesuffix("_alone")
        cells, moved = [], []
        for who in numbers:
            own = {row["metric"].removeprefix(score): row["value"] for row in rows
                   if row["who"] == who}  # fmt: skip
            cells.append(
                f"{own['']:.4f} ({own['_to_alone_mean']:+.1f} ± "
                f"{own['_to_alone_standard_error']:.1f} %)"
            )
            trees = [
                _one(rows, who=who, metric=f"{score.rpartition('_')[0]}_tree_{each}")["value"]
                for each in ("bytes", "cpu")
            ]
            moved.append([f"{each:.2f}" for each in trees])
        lines.append([
            part, score.rpartition("_")[2], f"{_one(rows, metric=alone, who=who)['value']:.4f}",
            *cells, *(", ".join(each) for each in zip(*moved, strict=True)),
        ])  # fmt: skip
    return lines
