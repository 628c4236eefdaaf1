"""``hedgerow first-round``: from which round of a job a silo's rows are in its model."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.streams import own_draws
from hedgerow.boosting.tables.digests import check_known
from hedgerow.client_agent import results, sources
from hedgerow.client_agent.__main__ import vaults_of
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.records import Records
from hedgerow.client_agent.state import JobMemory
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import Identities
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process import settings
from hedgerow.services.process.terminal import command, tell
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import job as job_wire


@command("first-round")
@click.option("--config", type=click.Path(path_type=Path), required=True, help="The agent's.")
@click.option("--job", required=True, metavar="JOB", help="Identifier of a job that has ended.")
@click.option("--column", required=True, help="Column of the silo's table that tells rows apart.")
@click.option(
    "--value", "values", required=True, multiple=True, help="Of a row that is to be left out."
)
def first_round(config: Path, job: str, column: str, values: tuple[str, ...]) -> None:
    """Say from which round of JOB on some rows of this silo's table are in its model.

    Ask before the rows are taken out of the table. Then take them out, and let the operator train
    the later rounds again: `hedgerow retrain RUN --from ROUND`. Nothing leaves this machine.
    """
    loaded = settings.load(AgentSettings, config)
    found, n_rows, n_rounds = _first_round(loaded, job, column, frozenset(values))
    mattered = found < n_rounds
    told = {"job": job, "rows": n_rows, "rounds": n_rounds,
            "first_round": found + 1 if mattered else None}  # fmt: skip
    line = f"{n_rows:,} rows are in the model of {job} from round {found + 1} of {n_rounds} on"
    tell(told, line if mattered else f"{n_rows:,} rows are in no tree of {job}: it can stay")


def _first_round(
    config: AgentSettings, job_id: str, column: str, values: frozenset[str]
) -> tuple[int, int, int]:
    """Return the first round, from 0, the rows with these values, and the job's rounds."""
    paths = IdentityPaths.of(config.identity)
    revoked = RevokedCertificates(paths, config.revoked, config.state / "revoked.crl")
    silo = Silo(Identities(paths, revoked)().subject.name)
    memory = _memory(config.state, job_id)
    spec, agreed = memory.recall(results.SPEC), memory.recall(results.AGREED)
    table = memory.recall("table")
    if spec is None or agreed is None or table is None:
        raise FederationError(
            f"{config.state}: expected a horizontal job in which this silo has taken part, and "
            f"which keeps the model, received {job_id}"
        )
    job = job_wire.decode(spec)
    rows = sources.SourceRows(config.data, config.test, config.hold_back, silo, b"")
    if rows.divides(job):
        raise DataError("hold_back: which rows it holds back follows from the whole table, so that "
                        "all rows matter from the first round")  # fmt: skip
    data = rows.train(job)
    check_known(table.decode(), data.digest)
    if data.unlabelled:
        raise DataError("expected labels of all rows, received a table that lacks some")
    texts = sources.texts(config.data, column)
    if unknown := values.difference(texts):
        raise DataError(
            f"column {column}: expected values of rows, received {len(unknown)} of {len(values)} "
            "that no row has"
        )
    wanted = np.array([one in values for one in texts])
    vaults, _ = vaults_of(config, paths, Metrics(), revoked)
    draws = own_draws(vaults(lambda: None), job, table.decode())
    silos = tuple(map(Silo, agreed[64:].decode().split("\0")))
    firsts = job.strategy.first_rounds(job.parameters, job, silos, silo, draws, data.n_samples)
    return int(firsts[wanted].min()), int(wanted.sum()), job.parameters.n_results


def _memory(state: Path, job_id: str) -> JobMemory:
    """Return a job's records, which an agent that runs may hold."""
    if not job_id or "/" in job_id or job_id.startswith("."):
        raise FederationError("a job's identifier has letters, digits and dashes")
    try:
        key = (state / "records.key").read_bytes()
    except OSError as error:
        raise FederationError(f"{state}: expected the state folder of an agent") from error
    folder = Path("jobs", job_id, "memory")
    return JobMemory(Records(state / folder, state / "turns" / folder, key), lambda *_: None)
