"""A coordinator from Python: plan, submit, watch, download, cancel."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.job import ReleaseAudit
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.frames import Frame
from hedgerow.coordinator.operator.library.jobs import Job, JobLike, Plan
from hedgerow.coordinator.operator.library.running import Run, RunFailed
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process.terminal import utc
from hedgerow.services.rpc.channel import Channels
from hedgerow.services.rpc.errors import NotFound, NotReleased
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.rpc.proxies import operators_proxy
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import provenance, release
from hedgerow.services.wire.job_view import FinishedRound, JobState, JobView, SiloView
from hedgerow.services.wire.results import check_file_names
from hedgerow.services.wire.signed_job import DEFAULT_DAYS, OpenedJob
from hedgerow.services.wire.signed_job import FILE as SIGNED

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.exploration import Exploration


def client_for(address: str, identity: Path, server_name: str | None) -> JobClient:
    """Return a client of the coordinator at ``HOST:PORT``.

    A list of revoked certificates, ``ca.crl`` beside the CA's certificate, is obeyed, also one
    that appears later. ``HEDGEROW_PROXY`` names a proxy on the way.

    Raises
    ------
    FederationError
        The identity cannot be used, or the coordinator's certificate is revoked.
    """
    paths = IdentityPaths.of(identity)
    own = FileIdentity(paths)
    revoked = RevokedCertificates(paths)
    channels = Channels(address, paths, Metrics(), server_name, revoked, operators_proxy())
    channels()
    return JobClient(channels, address, own)


def fetch(
    client: JobClient,
    job_id: str,
    out: Path,
    plan: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> JobView:
    """Write the run folder of a job and return its last view; see :func:`run_folder.claim`."""
    view = client.get(job_id)
    files = files_of(client, view)
    run_folder.claim(out, overwrite=overwrite, job_id=job_id)
    run_folder.write(out, view, files, plan)
    return view


def files_of(client: JobClient, view: JobView) -> dict[str, bytes]:
    """Return the files of a job's result by their names.

    Raises
    ------
    ModelRejected
        A name has a path: a coordinator may send any names.
    NotReleased
        The job has an ``[audit]``, and too few of its approvers have signed one of these files.
    """
    check_file_names(view.artefacts, f"the result of job {view.job_id}")
    files = {name: client.download(view.job_id, name)[1] for name in view.artefacts}
    signed = dict.fromkeys((provenance.FILE, release.FILE, SIGNED), b"")
    for name in signed:
        with suppress(NotFound):  # a coordinator of before keeps no statements
            signed[name] = client.download(view.job_id, name)[1]
    rules = client.release_rules(signed[SIGNED], view.job_digest, view.spec)
    if rules is not None and view.artefacts and client.name not in rules.approvals.approvers:
        # The coordinator has looked, too: one that is of before, or lenient, has not.
        digests = provenance.digests(files)
        by = client.releases(signed[release.FILE], rules, view, digests)
        if rules.approvals.missing(by):
            raise NotReleased(release.held_back(view.job_id, rules.approvals, by))
    return files | {name: data for name, data in signed.items() if data}


def audit_to_sign(client: JobClient, folder: Path) -> tuple[release.ReleaseStatement, ReleaseAudit]:
    """Return what an approver would sign of a run folder, and the rules that it keeps to.

    Raises
    ------
    DataError
        The folder has no run or audit, or the audit is not within the limits of its job, as who
        submitted it has signed them.
    """
    try:
        report = json.loads((folder / "report.json").read_bytes())
        job, digest = str(report["job"]), str(report["job_digest"])
        names = list(map(str, report["artefacts"]))
        signed = (folder / SIGNED).read_bytes()
        files = {name: (folder / name).read_bytes() for name in names}
        audit = (folder / release.AUDIT).read_bytes()
        text = audit.decode()
    except FileNotFoundError as error:
        raise DataError(
            f"{folder}: expected a run folder with its files and {release.AUDIT}, which `hedgerow "
            f"audit` writes; there is no {Path(error.filename).name}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: expected a run folder, with its report.json") from error
    rules, digests = client.release_rules(signed, digest, b""), provenance.digests(files)
    if rules is None:
        raise DataError(f"{folder}: its job has no [audit]: the model is not held back")
    own = provenance.digests({**files, release.AUDIT: audit})
    statement = release.ReleaseStatement(client.name, job, digest, own, text)
    statement.check(rules, job, digest, digests)
    return statement, rules


def release_run(
    client: JobClient, folder: Path, statement: release.ReleaseStatement | None = None
) -> tuple[str, ...]:
    """Sign the audit in a run folder as an approver of its release; return who has signed.

    ``statement`` is what :func:`audit_to_sign` returned, where that was shown before.
    """
    line, by = client.release(statement or audit_to_sign(client, folder)[0])
    path, kept = folder / release.FILE, b""
    if path.is_file():
        kept = path.read_bytes()
    write_atomically(path, kept + line + b"\n", 0o644)
    return by


def listed(view: JobView) -> dict[str, Any]:
    """Return a job as a list of jobs shows it."""
    spec = job_wire.parse(view.spec)
    return {
        "job": view.job_id,
        "name": spec.name,
        "strategy": spec.strategy,
        "state": view.state,
        "attempt": view.attempt,
        "operator": view.operator,
        "detail": view.detail,
    }


def shown(view: SiloView) -> dict[str, Any]:
    """Return a silo as a list of silos shows it; times are UTC."""
    return {
        "silo": view.name,
        "state": "connected" if view.alive else "away" if view.version else "never registered",
        "version": view.version,
        "xgboost": view.xgboost,
        "rows": f"at most {view.row_count_class}" if view.row_count_class else "",
        "columns": view.n_columns or "",
        "strategies": ", ".join(view.strategies) or "all",
        "crypto": {True: "answers", False: "does not answer", None: ""}[view.crypto_answers],
        "last_seen": "" if view.last_seen is None else utc(view.last_seen),
        "certificate_end": "" if view.certificate_end is None else utc(view.certificate_end),
        "awaited": "; ".join(view.awaited),
    }


class Client:
    """An operator at a coordinator; :func:`connect` returns one.

    Every method raises :class:`~hedgerow.boosting.errors.FederationError` where the coordinator
    refuses, or cannot be reached.
    """

    def __init__(self, client: JobClient, address: str) -> None:
        self._client = client
        self.address = address
        self._shown: dict[str, OpenedJob] = {}

    def plan(self, job: JobLike, *, model: str | os.PathLike[str] | None = None) -> Plan:
        """Return what a job would cost and reveal with the silos that are registered.

        ``model`` is the run that it goes on from, as for :meth:`submit`.
        """
        return Plan(self._client.plan(_starting(job, model).spec))

    def submit(
        self,
        job: JobLike,
        *,
        days: float = DEFAULT_DAYS,
        model: str | os.PathLike[str] | None = None,
    ) -> str:
        """Sign a job, submit it, and return its identifier.

        Parameters
        ----------
        days : float
            For how long attempts may begin; silos refuse the job afterwards.
        model : Run or path, optional
            The run whose model the job goes on from; the coordinator has it, too.
        """
        return self._client.create(_starting(job, model).spec, days)

    def jobs(self) -> Frame:
        """Return your jobs, newest first; an admin gets everybody's."""
        rows = [listed(view) for view in self._client.list()]
        names = ("job", "name", "strategy", "state", "attempt", "operator", "detail")
        return Frame({name: [row[name] for row in rows] for name in names}, "jobs")

    def silos(self) -> Frame:
        """Return the federation's silos: who is connected, and what their agents announce."""
        rows = [shown(view) for view in self._client.silos()]
        return Frame(
            {name: [row[name] for row in rows] for name in rows[0]} if rows else {}, "silos"
        )

    def watch(self, job_id: str) -> Iterator[JobView]:
        """Yield the job each time it changes, until it has ended; ``rounds`` has the new ones."""
        return self._client.watch(job_id)

    def follow(self, job_id: str, watch: Callable[[FinishedRound], object]) -> JobState:
        """Wait until a job has ended and return its state.

        Parameters
        ----------
        watch : callable
            Called once with each finished round, as of :func:`hedgerow.local`. Where it returns
            true, the job is cancelled; a cancelled job has no model.
        """
        told, stopped, state = 0, False, JobState.PENDING
        for view in self.watch(job_id):
            state = view.state
            for done in view.rounds:
                if done.round >= told and not stopped:
                    told, stopped = done.round + 1, bool(watch(done))
                    if stopped and not view.ended:
                        self.cancel(job_id)
        return state

    def download(
        self,
        job_id: str,
        out: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
    ) -> Run:
        """Write a job's run folder and return the run.

        Parameters
        ----------
        out : path, optional
            A temporary folder, which goes with the run, where it is not given.
        overwrite : bool
            Whether the result of another job in the folder may go.
        """
        folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="hedgerow-run-"))
        fetch(self._client, job_id, folder, overwrite=overwrite)
        return Run.ended(folder, temporary=out is None)

    def explore(
        self,
        label: str = "label",
        *,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        days: float = DEFAULT_DAYS,
        **settings: Any,
    ) -> Exploration:
        """Submit an explore job, wait until it has ended, and return its statistics.

        Parameters
        ----------
        label : str
            Column that the others are compared with.
        out, overwrite
            As of :meth:`download`.
        days : float
            As of :meth:`submit`.
        **settings
            Further keys of the job: ``silos``, ``min_silos``, ``task``, ``bins``, ``features``.

        Raises
        ------
        RunFailed
            The job did not succeed.
        """
        from hedgerow.coordinator.operator.library.exploration import Exploration, job_of

        job_id = self.submit(job_of(label, settings), days=days)
        *_, view = self.watch(job_id)
        if view.state is not JobState.SUCCEEDED:
            raise RunFailed(f"job {job_id}: {view.detail or view.state.lower()}")
        return Exploration(self.download(job_id, out, overwrite=overwrite))

    def approve(self, job_id: str) -> tuple[str, ...]:
        """Approve a job that names you as an approver; return who has approved it.

        What you sign is what :meth:`signed_job` of this client returned last for the identifier,
        not what the coordinator has by now.

        Raises
        ------
        InvalidJob
            It has returned none.
        """
        opened = self._shown.get(job_id)
        if opened is None:
            raise InvalidJob(f"job {job_id}: read what you sign first, by signed_job({job_id!r})")
        return self._client.approve(opened)

    def signed_job(self, job_id: str) -> Job:
        """Return a job as its operator has signed it, not as the coordinator shows it."""
        opened = self._shown[job_id] = self._client.signed(job_id)
        return Job.from_spec(opened.statement.spec)

    def release(self, run: str | os.PathLike[str]) -> tuple[str, ...]:
        """Sign the audit in a run's folder for the release of its model; return who has signed."""
        return release_run(self._client, Path(run))

    def cancel(self, job_id: str) -> JobState:
        """Cancel a job; its silos stop within seconds."""
        return self._client.cancel(job_id)

    def delete(self, *job_ids: str) -> None:
        """Delete jobs that have ended: the coordinator keeps neither record nor model of them."""
        for job_id in job_ids:
            self._client.delete(job_id)

    def __repr__(self) -> str:
        return f"<Client of {self.address}>"


def _starting(job: JobLike, model: str | os.PathLike[str] | None) -> Job:
    """Return a job that goes on from the model of a run, if there is one."""
    return Job.of(job) if model is None else Job.of(job).starting_from(model)


@checked
def connect(
    address: str, identity: str | os.PathLike[str], *, server_name: str | None = None
) -> Client:
    """Return a client of the coordinator at ``HOST:PORT``.

    Parameters
    ----------
    identity : path
        Folder with the operator's tls.key, tls.crt and ca.crt.
    server_name : str, optional
        Name in the coordinator's certificate where it is not the host.
    """
    return Client(client_for(address, Path(identity), server_name), address)
