"""``hedgerow ledger``, ``privacy`` and ``scores``: what left a silo, what it spent and scored."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.own_scores import OWN_SCORES, read_scores
from hedgerow.boosting.tables import spreadsheet
from hedgerow.client_agent import asked_ids
from hedgerow.client_agent.accountant import AccountDamaged, read_accounts
from hedgerow.client_agent.opened import read_openings, would_add
from hedgerow.client_agent.records import RecordDamaged
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.process import ledgers
from hedgerow.services.process.ledgers import Entry, LedgerBroken, VerifiedLedger
from hedgerow.services.process.terminal import (
    Refused,
    aligned,
    command,
    group,
    listing,
    tell,
    utc,
)
from hedgerow.services.process.texts import visible
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

PATH = click.Path(path_type=Path)


class Broken(click.ClickException):
    """A ledger that does not hold: one line, exit code 1."""

    exit_code = 1


@contextmanager
def _holding() -> Iterator[None]:
    try:
        yield
    except (LedgerBroken, AccountDamaged, RecordDamaged) as error:
        raise Broken(str(error)) from error


def find(path: Path) -> tuple[Path, ...]:
    """Return the ledgers of a path.

    Parameters
    ----------
    path : Path
        A ledger; an agent's state folder, which has one; or a run folder of ``hedgerow local``,
        which has a copy of each silo's.
    """
    if not path.is_dir():
        if not path.is_file():
            raise Refused(f"{path}: no such ledger")
        return (path,)
    own = path / "ledger.jsonl"
    found = (own,) if own.is_file() else tuple(sorted(path.glob("ledger-*.jsonl")))
    if not found:
        raise Refused(f"{path}: no ledger.jsonl of an agent and no ledger-SILO.jsonl of a run")
    return found


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """What the coordinator's record says that it received from a silo for a job."""

    job: str
    bytes_by_silo: dict[str, int]


def _received(path: Path) -> ReceivedBytes:
    """Return what a ``report.json`` says about each silo."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        return ReceivedBytes(
            str(report["job"]), {str(s["name"]): int(s["bytes_up"]) for s in report["silos"]}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is no report of a run") from error


def _checked(path: Path, silo: str, head: str, received: ReceivedBytes | None) -> dict[str, Any]:
    """Verify one ledger; return what there is to tell of it.

    ``bytes`` are those of the data plane, which the coordinator counts for each silo and job;
    ``control`` those of the calls that carry no payload.
    """
    named = path.stem.removeprefix("ledger-")
    # The copies in a run folder say in their names whose they are.
    silo = silo or (named if path.stem.startswith("ledger-") else "")
    found = ledgers.verify(path, silo=silo, head=head)
    summary: dict[str, Any] = {
        "file": str(path),
        "silo": ", ".join(found.silos),
        "lines": len(found.entries),
        "bytes": sum(entry.bytes for entry in found.entries if not entry.is_control),
        "control": sum(entry.bytes for entry in found.entries if entry.is_control),
        "jobs": len({entry.job for entry in found.entries if entry.job}),
        "head": found.head,
        "agrees": None,
        "note": "",
    }
    if received is not None:
        _compare(found, silo or summary["silo"], received, summary)
    elif ledgers.read_head(path) is None:
        summary["note"] = "no head beside it: lines cut off its end would not be found"
    return summary


def _compare(
    found: VerifiedLedger, silo: str, received: ReceivedBytes, summary: dict[str, Any]
) -> None:
    """Hold a ledger against the coordinator's record of the same job."""
    if silo not in received.bytes_by_silo:
        raise LedgerBroken(
            f"{found.path}: {silo or 'nobody'} is not a silo of job {received.job}, whose silos "
            f"are {', '.join(sorted(received.bytes_by_silo))}"
        )
    sent, got = found.sent(received.job), received.bytes_by_silo[silo]
    if sent < got:
        raise LedgerBroken(
            f"{found.path}: lines are missing: the coordinator received {got} bytes from {silo} "
            f"for job {received.job}, the ledger has {sent}"
        )
    summary["agrees"] = sent == got
    summary["note"] = (
        f"equal to report.json: {got:,} bytes"
        if sent == got
        else f"{sent - got:,} bytes more than the coordinator counted: they were sent again, or "
        "did not arrive"
    )


@group()
def ledger() -> None:
    """Tell what left this silo, and prove that nothing was taken out of the record.

    PATH is a ledger, an agent's state folder, or the run folder of `hedgerow local`. Exit codes:
    0 it holds, 1 it does not (the line is named), 2 there is no such ledger.
    """


@ledger.command()
@click.argument("paths", metavar="PATH...", type=PATH, nargs=-1, required=True)
@click.option("--silo", default="", help="Whose ledger it should be.")
@click.option("--head", default="", help="Chain value that was noted earlier: must be in it.")
@click.option(
    "--report",
    type=PATH,
    help="report.json to hold the bytes against; the one beside the ledger if not given.",
)
def verify(paths: tuple[Path, ...], silo: str, head: str, report: Path | None) -> None:
    """Check every line: a deleted, changed or moved one is found and named."""
    summary = []
    with _holding():
        for path in (file for given in paths for file in find(given)):
            beside = path.with_name("report.json")
            against = report or (beside if beside.is_file() else None)
            received = None if against is None else _received(against)
            summary.append(_checked(path, silo, head, received))
    tell(summary, lambda: _show_summary(summary))


def _show_summary(summary: list[dict[str, Any]]) -> None:
    numbers = ("lines", "data", "control", "jobs")
    rows = [
        (
            Path(row["file"]).name,
            row["silo"],
            f"{row['lines']:,}",
            f"{row['bytes']:,}",
            f"{row['control']:,}",
            row["jobs"],
            f"yes, {row['note']}" if row["note"] else "yes",
        )
        for row in summary
    ]
    listing(("file", "silo", *numbers, "holds"), rows, keep=numbers, right=numbers)
    for row in summary:
        click.echo(f"{Path(row['file']).name} head {row['head']}")


@ledger.command()
@click.argument("path", type=PATH)
@click.option("--job", default="", help="This job only.")
@click.option("--lines", is_flag=True, help="Every payload, not sums by kind.")
def show(path: Path, job: str, lines: bool) -> None:
    """Show what left, by job and kind of payload, and what each kind tells its reader."""
    with _holding():
        entries = list(_entries(find(path), job))
    if lines:
        tell([asdict(entry) for entry in entries], lambda: _show_lines(entries))
        return
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.silo, []).append(entry)
    found = [
        {"silo": silo, **asdict(total)}
        for silo, group in groups.items()
        for total in ledgers.totals(group)
    ]
    tell(found, lambda: _show_totals(found))


def _show_totals(found: list[dict[str, Any]]) -> None:
    for silo, of_job in dict.fromkeys((row["silo"], row["job"]) for row in found):
        rows = [
            (
                row["step"],
                row["kind"] if row["call"].startswith(ledgers.DATA_PLANE) else "control call",
                row["discloses"],
                f"{row['payloads']:,}",
                f"{row['bytes']:,}",
                utc(row["last_time"]),
            )
            for row in found
            if (row["silo"], row["job"]) == (silo, of_job)
        ]
        click.echo(f"silo {silo}, {f'job {of_job}' if of_job else 'of no job'}")
        headings = ("step", "payload", "discloses", "times", "bytes", "last")
        listing(headings, rows, right=("times", "bytes"))
    for step, reveals in dict.fromkeys((row["step"], row["reveals"]) for row in found):
        click.echo(f"{step} tells: {reveals}")


def _show_lines(entries: Iterable[Entry]) -> None:
    # As wide as it is: a line a payload, for people with wide terminals and for grep.
    place = ("round", "level", "pass")
    headings = ("time", "silo", "job", *place, "step", "discloses", "times", "bytes", "sha256")
    rows = (
        (
            utc(entry.time),
            entry.silo,
            entry.job,
            *(("",) * 3 if entry.is_control else (entry.round, entry.level, entry.passing)),
            entry.step,
            entry.discloses,
            f"{entry.count:,}",
            f"{entry.bytes:,}",
            entry.sha256[:16],
        )
        for entry in entries
    )
    for line in aligned(headings, rows, right=("times", "bytes")):
        click.echo(line)


@ledger.command()
@click.argument("path", type=PATH)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File to write: .csv, .parquet or .json.",
)
@click.option("--job", default="", help="This job only.")
def export(path: Path, out: Path, job: str) -> None:
    """Write a verified ledger as a table, for auditors' own tools."""
    if out.suffix not in (".csv", ".parquet", ".json"):
        raise Refused(f"--out {out}: the ending should be .csv, .parquet or .json")
    with _holding():
        entries = list(_entries(find(path), job))
        write_atomically(out, _encoded(entries, out.suffix), mode=0o600)
    tell({"file": str(out), "lines": len(entries)}, f"{out}: {len(entries):,} lines")


def _encoded(entries: list[Entry], suffix: str) -> bytes:
    rows = [asdict(entry) for entry in entries]
    if suffix == ".json":
        return json.dumps(rows, indent=1).encode()
    names = [field.name for field in fields(Entry)]
    if suffix == ".csv":
        return spreadsheet.write_rows(names, ([row[name] for name in names] for row in rows))
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
    schema = pa.schema([(field.name, types[str(field.type)]) for field in fields(Entry)])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), out, compression="zstd")
    return out.getvalue()


def _entries(paths: Iterable[Path], job: str) -> Iterator[Entry]:
    for path in paths:
        for entry in ledgers.verify(path).entries:
            if not job or entry.job == job:
                yield entry


@command()
@click.argument("path", type=PATH)
@click.option("--queries", is_flag=True, help="Every query of every job, too.")
@click.option("--job", type=PATH, help="Say what the secure sums of this job file would open.")
def privacy(path: Path, queries: bool, job: Path | None) -> None:
    """Show what jobs have spent of the privacy budget of this silo's tables, asked and opened.

    PATH is the agent's state folder. Budgets add up: epsilons by basic composition, and costs rho
    of Skellam noise, whose epsilon is that at the delta that is shown. Secure sums
    are opened over sets of silos; one is close that is no union of its job's groups, or tells fewer
    than three silos apart by the sets before it. Exit codes: 0 the accounts are whole, 1 they are
    damaged, 2 there is no such folder or job file.
    """
    if not path.is_dir():
        raise Refused(f"{path}: no such folder")
    with _holding():
        summary = read_accounts(path).summary()
        asked, openings = asked_ids.read(path), read_openings(path)

    def of_table(name: str) -> dict[str, Any]:
        found = next((one for one in summary if one["table"] == name), None)
        if found is None:
            found = {"table": name, "spent": 0.0, "delta": 0.0, "max_epsilon": "inf", "jobs": []}
            summary.append(found)
        return found

    for name, about in asked.items():
        of_table(name)["ids"] = about
    parsed = None if job is None else job_wire.decode(job_file.load(job))
    for name, own in openings.items():
        of_table(name)["sums"] = {
            "sets": [asdict(one) for one in own.opened],
            "close": own.n_close,
            "max_close_sums": own.max_close_sums,
            "companions": own.companions,
            "explored": own.explored,
            "max_explorations": own.max_explorations,
            "binnings": [asdict(one) for one in own.binnings],
            "max_binnings": own.max_binnings,
            "max_label_binnings": own.max_label_binnings,
        } | ({} if parsed is None else {"job": would_add(parsed, own)})
    rows: list[tuple[object, ...]] = []
    for table in summary:
        for row in (*table["jobs"], {"job": "all jobs", **table}):
            name, count = table["table"], len(row["queries"]) if "queries" in row else ""
            spent, limit = (f"{float(row[key]):.6g}" for key in ("spent", "max_epsilon"))
            spent += f" at delta {row['delta']:.3g}" if row.get("delta") else ""
            rows.append((name, row["job"], count, spent, limit, _against(row)))
            for query in row.get("queries", ()) if queries else ():
                pure = "rho" not in query
                cost = f"{float(query['epsilon']):.6g}" if pure else f"rho {query['rho']:.4g}"
                rows.append(("", "", query["query"], cost, "", _against({"queries": [query]})))
    headings = ("table", "job", "queries", "epsilon spent", "limit", "holds against")
    counts = [
        (name, job, count, about["limit"] or "none" if job == "all jobs" else "")
        for name, about in asked.items()
        for job, count in (*about["jobs"].items(), ("all jobs", about["answered"]))
    ]

    def shown() -> None:
        listing(headings, rows, keep=("job",))
        if counts:
            listing(("table", "job", "ids asked", "limit"), counts, keep=("job",))
        for name, own in openings.items():
            sets = [(o.job, len(o.silos), "close" if o.close else "", ", ".join(o.silos))
                    for o in own.opened]  # fmt: skip
            title = f"sums opened of {name}: {own.n_close} close sets of {own.max_close_sums}"
            if own.explored:
                title += f"; {len(own.explored)} explore jobs of {own.max_explorations}"
            listing(("first job", "silos", "", "names"), sets, title=title, keep=("first job",))
            ways = [(one.job, one.what, one.how, ", ".join(one.silos)) for one in own.binnings]
            if ways:
                title = f"ways in which jobs divided {name}: at most {own.max_binnings} of columns"
                title += f", {own.max_label_binnings} of each label"
                listing(("first job", "", "how", "silos"), ways, title=title, keep=("first job",))
            if own.companions:
                click.echo(
                    visible(f"sums of {name} open only over all of {', '.join(own.companions)}")
                )
            if parsed is not None:
                click.echo(visible(f"{job}: {would_add(parsed, own)}"))

    tell(summary, shown)


def _against(row: dict[str, Any]) -> str:
    """Return whom the epsilon of a job's queries holds against; of all jobs, of the weakest."""
    of_jobs = (row, *row.get("jobs", ()))
    asked = [query for job in of_jobs for query in job.get("queries", ())]
    if any(query.get("coordinator_only") for query in asked):
        return "coordinator only"
    return "coordinator and silos" if asked else ""


@command()
@click.argument("path", type=PATH)
@click.option("--job", default="", help="This job only.")
def scores(path: Path, job: str) -> None:
    """Show how models do on this silo's own rows; most policies keep these numbers here.

    PATH is the agent's state folder. A horizontal job has one entry: the finished model on the
    silo's test rows. Of a vertical job the active party has one for each round.
    """
    if not path.is_dir():
        raise Refused(f"{path}: no such folder")
    found: list[dict[str, Any]] = []
    for file in sorted(path.glob(f"jobs/*/{OWN_SCORES}")):
        if job in ("", file.parent.name):
            try:
                found.append({"job": file.parent.name, "scores": read_scores(file.read_bytes())})
            except DataError as error:
                raise Broken(f"{file}: {error}") from error
    rows = [
        (one["job"], number, data, name, "" if value is None else f"{value:.5f}")
        for one in found
        for number, entry in enumerate(one["scores"])
        for data, own in entry.items()
        for name, value in own.items()
    ]
    headings = ("job", "entry", "rows", "metric", "score")
    tell(found, lambda: listing(headings, rows, keep=("job",), right=("entry", "score")))
