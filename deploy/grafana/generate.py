"""The Grafana dashboards as code: ``make dashboards`` writes ``deploy/grafana/*.json``.

A test holds the committed files to what this writes, and runs every panel's query against a
Prometheus that scrapes a live job. Processes are told apart by the end of the ``job`` label:
coordinator, agent or agents, crypto. What only a silo's Prometheus sees (agents, crypto) carries
the label ``silo`` from the scrape configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    GraphGradientMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, Threshold, ThresholdsMode

FOLDER = Path(__file__).parent
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
COORDINATOR = 'job=~".*coordinator"'
AGENT = 'job=~".*agents?"'
CRYPTO = 'job=~".*crypto"'
OURS = 'job=~".*(coordinator|agents?|crypto)"'
DATA = f'{COORDINATOR},service="ExchangeService"'
CONTROL = f'{COORDINATOR},service!="ExchangeService"'
MOVED, PLANNED = "hedgerow_message_bytes_total", "hedgerow_planned_bytes_total"
BY_STEP, BY_SILO = "strategy, method, direction", "strategy, silo, direction"
WINDOW = "[$__rate_interval]"
RANGE = "[$__range]"

WAITS = "AwaitAssignment|AcceptAssignment|FetchResult|WatchJob|PreflightJob|Exchange|Relay"
"""Calls that wait for something to happen, or last as long as a job."""

Query = tuple[str, str]
"""Expression and legend."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; a ``number`` shows the last value alone, ``stacked`` areas on each other.

    A number with ``colours`` has each from its value on; the first has none.
    """

    title: str
    says: str
    unit: str
    queries: Sequence[Query]
    number: bool = False
    stacked: bool = False
    width: int = 12
    colours: Sequence[tuple[float | None, str]] = ()


# All series exist from the start: what has not moved is left out, or is 0 / 0.
def _rate(metric: str, labels: str, by: str) -> str:
    return f"(sum by ({by}) (rate({metric}{{{labels}}}{WINDOW})) > 0)"


def _gained(metric: str, labels: str, by: str) -> str:
    return f"(sum by ({by}) (increase({metric}{{{labels}}}{RANGE})) > 0)"


def _quantile(q: float, metric: str, labels: str, by: str) -> str:
    inner = f"sum by (le, {by}) (rate({metric}_bucket{{{labels}}}{WINDOW}))"
    return f"histogram_quantile({q}, {inner}) >= 0"


def _mean(metric: str, labels: str, by: str) -> str:
    total, count = _rate(f"{metric}_sum", labels, by), _rate(f"{metric}_count", labels, by)
    return f"{total} / {count}"


def _a_round(metric: str, labels: str, by: str, per: str = "hedgerow_rounds_total") -> str:
    over = _rate(per, COORDINATOR, "strategy")
    return f"{_rate(metric, labels, by)} / on (strategy) group_left () {over}"


FEDERATION = (
    Panel(
        "Silos alive",
        "Silos that hold a lease.",
        "none",
        [(f'hedgerow_silos{{{COORDINATOR},state="alive"}}', "")],
        number=True,
        width=4,
    ),
    Panel(
        "Silos away",
        "Silos that have registered before and hold no lease now.",
        "none",
        [(f'hedgerow_silos{{{COORDINATOR},state="away"}}', "")],
        number=True,
        width=4,
        colours=((None, "green"), (1, "orange")),
    ),
    Panel(
        "Jobs running",
        "Jobs that have started and not ended.",
        "none",
        [(f'hedgerow_jobs{{{COORDINATOR},state="running"}}', "")],
        number=True,
        width=4,
    ),
    Panel(
        "Jobs failed",
        "Of the last thousand jobs.",
        "none",
        [(f'hedgerow_jobs{{{COORDINATOR},state="failed"}}', "")],
        number=True,
        width=4,
        colours=((None, "green"), (1, "orange")),
    ),
    Panel(
        "Rounds",
        "Rounds finished within the time shown.",
        "none",
        [(f"sum(increase(hedgerow_rounds_total{{{COORDINATOR}}}{RANGE}))", "")],
        number=True,
        width=4,
    ),
    Panel(
        "First certificate to end",
        "Time until the next certificate of any process ends.",
        "s",
        [(f"min(hedgerow_certificate_expiry_seconds{{{OURS}}} > 0) - time()", "")],
        number=True,
        width=4,
        colours=((None, "red"), (0, "orange"), (7 * 86400, "green")),
    ),
    Panel(
        "Alerts",
        "Alerts of these processes that fire, by name; 0 where none does.",
        "none",
        [
            (
                'count by (alertname) (ALERTS{alertstate="firing",alertname=~"Hedgerow.*"})'
                " or vector(0)",
                "{{alertname}}",
            )
        ],
    ),
    Panel(
        "Waiting",
        "How long a job has been waiting now, by what it waits for; 0 where none waits.",
        "s",
        [(f"hedgerow_waiting_seconds{{{COORDINATOR}}}", "{{what}}")],
    ),
    Panel(
        "Database",
        "Time since the coordinator's database answered: about a second where it works.",
        "s",
        [(f"hedgerow_store_silence_seconds{{{COORDINATOR}}}", "{{instance}}")],
    ),
    Panel(
        "Disk free",
        "Share of the disk of each process' folders that is free.",
        "percentunit",
        [(f"hedgerow_disk_free_ratio{{{OURS}}}", "{{job}} {{instance}} {{folder}}")],
    ),
    Panel(
        "Silos",
        "By state: alive with a lease, or away.",
        "none",
        [(f"hedgerow_silos{{{COORDINATOR}}}", "{{state}}")],
        stacked=True,
    ),
    Panel(
        "Jobs",
        "By state.",
        "none",
        [(f"hedgerow_jobs{{{COORDINATOR}}}", "{{state}}")],
        stacked=True,
    ),
    Panel(
        "Rounds a minute",
        "Rounds finished, by strategy.",
        "none",
        [(f"60 * {_rate('hedgerow_rounds_total', COORDINATOR, 'strategy')}", "{{strategy}}")],
    ),
    Panel(
        "Round time",
        "Median and 95th percentile by strategy; estimated from the histogram's buckets.",
        "s",
        [
            (_quantile(0.5, "hedgerow_round_seconds", COORDINATOR, "strategy"), "{{strategy}} p50"),
            (
                _quantile(0.95, "hedgerow_round_seconds", COORDINATOR, "strategy"),
                "{{strategy}} p95",
            ),
        ],
    ),
    Panel(
        "Calls by outcome",
        "gRPC calls ended at the coordinator, by status.",
        "reqps",
        [(_rate("hedgerow_calls_total", COORDINATOR, "code"), "{{code}}")],
        stacked=True,
    ),
    Panel(
        "Calls open",
        "Calls being served: silos' streams of exchanges, long polls.",
        "none",
        [(f"hedgerow_calls_open{{{COORDINATOR}}}", "{{method}}")],
        stacked=True,
    ),
    Panel(
        "Awaited silos",
        "How long a job has been waiting for each silo; 0 where none waits.",
        "s",
        [(f"hedgerow_awaited_seconds{{{COORDINATOR}}}", "{{silo}}")],
    ),
    Panel(
        "Rejected offers",
        "Offers within the time shown that did not fit their step, by silo and step.",
        "none",
        [
            (
                _gained("hedgerow_rejected_offers_total", COORDINATOR, "silo, method"),
                "{{silo}} {{method}}",
            )
        ],
    ),
    Panel(
        "Privacy budget spent",
        "Epsilon that all jobs have spent on a silo's table; the silo's own Prometheus has it.",
        "none",
        [(f"hedgerow_privacy_spent_epsilon{{{AGENT}}}", "{{silo}} {{table}}")],
    ),
    Panel(
        "Lease held",
        "1 while an agent holds its lease at a coordinator that answers.",
        "none",
        [(f"hedgerow_lease_held{{{AGENT}}}", "{{silo}} {{instance}}")],
    ),
    Panel(
        "Certificates end in",
        "Time until the certificate of each process ends.",
        "s",
        [
            (
                f"(hedgerow_certificate_expiry_seconds{{{OURS}}} > 0) - time()",
                "{{job}} {{instance}}",
            )
        ],
    ),
    Panel(
        "Memory",
        "Resident memory of each process.",
        "bytes",
        [(f"process_resident_memory_bytes{{{OURS}}}", "{{job}} {{instance}}")],
    ),
    Panel(
        "CPU",
        "Cores that each process uses.",
        "none",
        [(f"rate(process_cpu_seconds_total{{{OURS}}}{WINDOW})", "{{job}} {{instance}}")],
    ),
)

COMMUNICATION = (
    Panel(
        "Data plane",
        "Protobuf bytes of exchanges within the time shown; TLS and HTTP/2 come on top.",
        "bytes",
        [(_gained(MOVED, DATA, "direction"), "{{direction}}")],
        number=True,
        width=8,
    ),
    Panel(
        "Control plane",
        "Protobuf bytes of leases, assignments and operators within the time shown.",
        "bytes",
        [(_gained(MOVED, CONTROL, "direction"), "{{direction}}")],
        number=True,
        width=8,
    ),
    Panel(
        "Moved against planned",
        "Data-plane bytes of finished rounds over what the plan foresaw for them; 1 is as planned.",
        "none",
        [
            (
                f"{_gained('hedgerow_round_bytes_sum', COORDINATOR, 'strategy, direction')} / "
                f"{_gained(PLANNED, COORDINATOR, 'strategy, direction')}",
                "{{strategy}} {{direction}}",
            )
        ],
        number=True,
        width=8,
    ),
    Panel(
        "Bytes by step",
        "Data plane, by step and direction; up is from the silos to the coordinator.",
        "Bps",
        [(_rate(MOVED, DATA, "method, direction"), "{{method}} {{direction}}")],
        stacked=True,
    ),
    Panel(
        "Bytes by silo",
        "Data plane, by silo and direction.",
        "Bps",
        [(_rate(MOVED, DATA, "silo, direction"), "{{silo}} {{direction}}")],
        stacked=True,
    ),
    Panel(
        "Bytes a round",
        "Mean data-plane bytes of a round over all silos, and what the plan foresaw.",
        "bytes",
        [
            (
                _mean("hedgerow_round_bytes", COORDINATOR, "strategy, direction"),
                "{{strategy}} {{direction}}",
            ),
            (
                f"{_rate(PLANNED, COORDINATOR, 'strategy, direction')} / "
                f"on (strategy) group_left () "
                f"{_rate('hedgerow_rounds_total', COORDINATOR, 'strategy')}",
                "{{strategy}} {{direction}} planned",
            ),
        ],
    ),
    Panel(
        "Bytes a round by step",
        "Mean data-plane bytes of a round over all silos, by step, and what the plan foresaw.",
        "bytes",
        [
            (_a_round(MOVED, DATA, BY_STEP), "{{strategy}} {{method}} {{direction}}"),
            (_a_round(PLANNED, COORDINATOR, BY_STEP), "{{strategy}} {{method}} {{direction}} plan"),
        ],
    ),
    Panel(
        "Bytes a round by silo",
        "Mean data-plane bytes of a round of each silo, and what the plan foresaw for one.",
        "bytes",
        [
            (_a_round(MOVED, DATA, BY_SILO), "{{strategy}} {{silo}} {{direction}}"),
            (
                _a_round(PLANNED, COORDINATOR, "strategy, direction", "hedgerow_round_silos_total"),
                "{{strategy}} {{direction}} plan",
            ),
        ],
    ),
    Panel(
        "Bytes since the start",
        "Cumulative data-plane bytes since the coordinator started, by step and direction.",
        "bytes",
        [
            (
                f"sum by (method, direction) (hedgerow_message_bytes_total{{{DATA}}})",
                "{{method}} {{direction}}",
            )
        ],
        stacked=True,
    ),
    Panel(
        "Messages by step",
        "Frames of the data plane, by step and direction.",
        "cps",
        [
            (
                _rate("hedgerow_messages_total", DATA, "method, direction"),
                "{{method}} {{direction}}",
            )
        ],
    ),
    Panel(
        "Time of calls and exchanges",
        "95th percentile by method or kind of exchange, waiting at barriers included; calls that "
        "wait for work are left out.",
        "s",
        [
            (
                _quantile(
                    0.95, "hedgerow_call_seconds", f'{COORDINATOR},method!~"{WAITS}"', "method"
                ),
                "{{method}}",
            )
        ],
    ),
)

SECRETS = (
    Panel(
        "Ciphertexts",
        "Ciphertexts handled within the time shown, by operation.",
        "none",
        [(_gained("hedgerow_ciphertexts_total", CRYPTO, "op"), "{{op}}")],
        number=True,
        width=12,
    ),
    Panel(
        "Values masked",
        "Values masked for secure sums within the time shown, by silo.",
        "none",
        [(_gained("hedgerow_masked_values_total", CRYPTO, "silo"), "{{silo}}")],
        number=True,
        width=12,
    ),
    Panel(
        "Ciphertexts a second",
        "By operation and silo.",
        "ops",
        [(_rate("hedgerow_ciphertexts_total", CRYPTO, "op, silo"), "{{op}} {{silo}}")],
    ),
    Panel(
        "Values masked a second",
        "By silo.",
        "ops",
        [(_rate("hedgerow_masked_values_total", CRYPTO, "silo"), "{{silo}}")],
    ),
    Panel(
        "Queue",
        "Calls that wait for a place (their requests are not read yet), and calls worked on.",
        "none",
        [(f"hedgerow_crypto_calls{{{CRYPTO}}}", "{{silo}} {{state}}")],
    ),
    Panel(
        "Calls by method",
        "Calls of the agent that have ended.",
        "reqps",
        [(_rate("hedgerow_calls_total", CRYPTO, "method, code"), "{{method}} {{code}}")],
        stacked=True,
    ),
    Panel(
        "Time of calls",
        "95th percentile by method.",
        "s",
        [(_quantile(0.95, "hedgerow_call_seconds", CRYPTO, "method"), "{{method}}")],
    ),
    Panel(
        "Bytes between agent and crypto process",
        "They stay within the silo.",
        "Bps",
        [
            (
                _rate(MOVED, CRYPTO, "silo, direction"),
                "{{silo}} {{direction}}",
            )
        ],
    ),
    Panel(
        "CPU",
        "Cores that each crypto process uses.",
        "none",
        [(f"rate(process_cpu_seconds_total{{{CRYPTO}}}{WINDOW})", "{{silo}} {{instance}}")],
    ),
    Panel(
        "Memory",
        "Resident memory of each crypto process.",
        "bytes",
        [(f"process_resident_memory_bytes{{{CRYPTO}}}", "{{silo}} {{instance}}")],
    ),
)

BOARDS = {
    "federation": ("Federation", "Silos, jobs, rounds, processes.", FEDERATION),
    "communication": ("Communication", "Bytes by step, silo and round.", COMMUNICATION),
    "crypto": ("Crypto", "Rates and queues of the silos' crypto processes.", SECRETS),
}


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel
    if panel.number:
        made = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        steps = [Threshold(value, colour) for value, colour in panel.colours or ((None, "text"),)]
        made = made.thresholds(
            dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
        )
    else:
        made = (
            timeseries.Panel()
            .min(0)
            .gradient_mode(GraphGradientMode.NONE)
            .fill_opacity(25 if panel.stacked else 0)
            .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
            .legend(
                common.VizLegendOptions()
                .display_mode(LegendDisplayMode.TABLE)
                .placement(LegendPlacement.BOTTOM)
                .calcs(["lastNotNull", "max"])
                .show_legend(True)
            )
        )
        if panel.stacked:
            made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    made = (
        made.title(panel.title)
        .description(panel.says)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(4 if panel.number else 8)
    )
    for index, (expression, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend)
        query = query.instant() if panel.number else query.range()
        made = made.with_target(query.ref_id(chr(ord("A") + index)))
    return made


def render(name: str) -> str:
    """Return a dashboard as JSON."""
    title, says, panels = BOARDS[name]
    built = (
        dashboard.Dashboard(f"Hedgerow / {title}")
        .uid(f"hedgerow-{name}")
        .description(says)
        .tags(["hedgerow"])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )
    for panel in panels:
        built = built.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def main() -> None:
    """Write the dashboards."""
    for name in BOARDS:
        (FOLDER / f"{name}.json").write_text(render(name), encoding="utf-8")
        print(f"deploy/grafana/{name}.json", file=sys.stderr)


if __name__ == "__main__":
    main()
