"""``hedgerow verify``: a run folder beside what its silos have signed."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FILE, FOLDER, parse_pairs
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("run", type=FOLDER)
@click.option("--ca", type=FILE, required=True, help="The federation's CA certificates, ca.crt.")
@click.option(
    "--ledger", "ledgers", multiple=True, metavar="SILO=FILE",
    help="A silo's ledger, which must have the line that its statement ends with.",
)  # fmt: skip
def verify(run: Path, ca: Path, ledgers: tuple[str, ...]) -> None:
    """Check that RUN is what its silos have signed: files, job, who took part. Needs no network.

    Every part is named that is right, wrong or missing; the exit code is 1 unless all are right.
    """
    from hedgerow.coordinator.operator import verifying
    from hedgerow.services.identity.certificates import read

    files = {silo: Path(path) for silo, path in parse_pairs(ledgers, "--ledger").items()}
    found = verifying.findings(run, read(ca), files)

    def show() -> None:
        rows = [(one.part, one.state, one.said) for one in found]
        listing(verifying.HEADINGS, rows, keep=("part", "is"))

    tell([asdict(one) for one in found], show)
    if any(one.state != "right" for one in found):
        sys.exit(1)
