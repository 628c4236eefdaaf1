"""The common model of a horizontal job in a silo: checked, kept, and scored on its own test rows.

The coordinator writes the model's files. A silo whose half has run to the end knows the model
itself and takes no other; it signs what it has checked. A silo that was away at the end takes a
result that other silos have signed. Scores are of a checked model only, stay in the silo, and leave
where its policy says so.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import numpy as np
import structlog

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import ModelRejected, OfferRejected, SignatureInvalid
from hedgerow.boosting.exchange import Discloses, Silo
from hedgerow.boosting.intervals import COVERAGE, PredictionInterval
from hedgerow.boosting.own_scores import LEAST_ROWS
from hedgerow.boosting.ports import Artefact, Identity, JobParameters, Result, SiloStart
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import MarginRows
from hedgerow.client_agent.parts import AgentParts
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.records import RecordDamaged
from hedgerow.client_agent.state import StateFolder
from hedgerow.services.process.imports import versions_of
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.provenance import RunStatement, digests, signed
from hedgerow.services.wire.results import JobResult, ResultSignature, result_message
from hedgerow.services.wire.signed_job import OpenedJob

SCHEMA = "schema.json"
_MODELS = ("model.ubj", "ensemble.ubj")
SPEC, AGREED, _CHECKED = "result/spec", "result/agreed", "result/checked"
_TOLD = "result/told"

log = structlog.get_logger()


def expect(parts: AgentParts, start: SiloStart, spec: bytes) -> None:
    """Remember what a model must be of, should this silo be away when its job ends."""
    job = start.job
    if job.vertical or not job.keep_model or job.strategy.result is Result.PERSONAL:
        return
    memory = parts.state.memory(start.job_id)
    memory.remember(SPEC, spec)
    silos = "\0".join(start.silos).encode()
    memory.remember(AGREED, start.job_digest + bytes.fromhex(start.schema.digest) + silos)


def mark(state: StateFolder, job_id: str, model: bytes, strategy: str) -> None:
    """Remember that the silo has itself checked a job's model, and keeps it."""
    state.memory(job_id).remember(_CHECKED, hashlib.sha256(model).digest() + strategy.encode())


def checked(state: StateFolder, job_id: str) -> tuple[str, str]:
    """Return the SHA-256 of the model that the silo has marked, and its strategy.

    Both are empty where there is none: also of a model that only other silos have signed, and where
    its file is gone.
    """
    marked = state.memory(job_id).recall(_CHECKED) or b""
    found = hashlib.sha256(state.kept(job_id, MODEL_FILE) or b"").digest()
    return (found.hex(), marked[32:].decode()) if marked[:32] == found else ("", "")


def sign(
    parts: AgentParts, opened: OpenedJob, start: SiloStart, result: JobResult
) -> ResultSignature:
    """Return the silo's signature over a result that it has checked, and what it states of it."""
    identity, digest = parts.identity(), result.digest
    statement = RunStatement(
        silo=parts.silo,
        job=start.job_id,
        job_digest=start.job_digest.hex(),
        spec_digest=hashlib.sha256(opened.statement.spec).hexdigest(),
        operator=opened.operator,
        silos=tuple(sorted(start.silos)),
        files=digests(result.files),
        ledger=parts.ledger.chain,
        versions=versions_of("hedgerow", "xgboost"),
    )
    return ResultSignature(
        parts.silo,
        digest,
        identity.sign(result_message(start.job_id, start.job_digest, digest)),
        identity.certificate,
        signed(statement, identity),
    )


def check_signed(
    identity: Identity,
    others: Collection[str],
    least: int,
    job_id: str,
    job_digest: bytes,
    result: JobResult,
) -> None:
    """Check that at least ``least`` of the ``others`` in a job have signed a result.

    Signatures over another result, or by another silo of the federation, do not count.

    Raises
    ------
    ModelRejected
        Too few have.
    """
    message = result_message(job_id, job_digest, result.digest)
    names: set[str] = set()
    for own in result.signatures:
        if own.digest != result.digest or own.silo not in others:
            continue
        with suppress(SignatureInvalid):
            identity.verify(Silo(own.silo), own.certificate, message, own.signature)
            names.add(own.silo)
    if len(names) < least:
        raise ModelRejected(
            f"the result of job {job_id}: expected signatures of {least} other silos, received "
            f"{len(names)}"
        )


def check_schema(job_id: str, result: JobResult, digest: str) -> None:
    """Check that a result has the schema on which the silos agreed, by its digest in hex.

    The model's check does not read it; in another order its categories and classes would be others.

    Raises
    ------
    ModelRejected
        It has another one, or none.
    """
    with suppress(OfferRejected):
        if schema_wire.load(result.files.get(SCHEMA, b"")).digest == digest:
            return
    raise ModelRejected(f"the result of job {job_id} has another schema than the job")


def test_scores(
    parts: AgentParts, job: JobParameters, found: Artefact, test: Dataset | None
) -> dict[str, float]:
    """Return a model's scores on the silo's own test rows by metric; they are for the silo."""
    result = job.strategy.result
    if test is None or job.vertical or result is Result.TABLE:
        return {}
    if isinstance(result, Result):
        model = load(found.files[found.model])
        margins = MarginRows(test, model, parts.n_threads).margins.astype(np.float64)
    else:
        margins = result(found.files, test)
    names = job.metrics or metrics.defaults(job.task)
    scores = metrics.evaluate(
        names, test.labels, margins, objective=job.objective, weight=test.weight
    )
    if isinstance(result, Result) and (told := PredictionInterval.of(model.attributes)):
        scores[COVERAGE] = told.coverage(metrics.link(job.objective, margins), test.labels)
    return scores


def leaving(policy: Policy, scores: Mapping[str, float], n_rows: int) -> dict[str, float]:
    """Return what leaves of scores on the silo's own test rows, by metric.

    Nothing unless the silo's policy names the class; then four significant digits, of 20 rows or
    more: for a model made for the question, scores tell labels.
    """
    why = ""
    if not lets_scores(policy):
        why = "the policy lets none leave"
    elif n_rows < LEAST_ROWS:
        why = f"there are fewer than {LEAST_ROWS}"
    if why or not scores:
        if scores:
            log.info("scores of test rows kept", why=why)
        return {}
    return {name: metrics.rounded(s) for name, s in scores.items() if math.isfinite(s)}


def lets_scores(policy: Policy) -> bool:
    """Return whether scores on the silo's own test rows may leave, which no budget covers."""
    return Discloses.SCORES in policy.classes and not policy.require_dp


def scores_may_leave(policy: Policy, job: JobParameters) -> bool:
    """Return whether a job tells scores on the silo's own test rows, where the policy lets it."""
    is_scored = not job.vertical and job.strategy.result is not Result.TABLE
    return is_scored and lets_scores(policy)


def told_once(state: StateFolder, job_id: str, found: Artefact) -> bool:
    """Note of which model a job's scores leave; False where those of another one have left.

    Another attempt may end with another model, and a difference of scores tells more than one.
    """
    memory = state.memory(job_id)
    digest = hashlib.sha256(found.files[found.model]).digest()
    earlier = memory.recall(_TOLD)
    if earlier is None:
        memory.remember(_TOLD, digest)
    return earlier in (None, digest)


class LateResults:
    """Fetches the models of jobs that ended while this silo was away.

    Parameters
    ----------
    fetch : callable
        From a job's identifier to its result.
    """

    def __init__(self, parts: AgentParts, fetch: Callable[[str], JobResult | None]) -> None:
        self._parts = parts
        self._fetch = fetch

    def bring(self, job_id: str) -> bool:
        """Keep the model of a job that has ended; False where it is to be retried.

        Nothing is fetched where the silo has its result, or the job keeps none in silos.
        """
        memory, state = self._parts.state.memory(job_id), self._parts.state
        try:
            spec, agreed = memory.recall(SPEC), memory.recall(AGREED)
            if spec is None or agreed is None or state.kept(job_id, SCHEMA) is not None:
                return True
            job = job_wire.decode(spec)
            result = self._fetch(job_id)
            if result is None:
                return False
            identity, silo = self._parts.identity(), self._parts.silo
            others = {*agreed[64:].decode().split("\0")} - {silo}
            least = max(job.least_silos - 1, 1)
            check_signed(identity, others, least, job_id, agreed[:32], result)
            check_schema(job_id, result, agreed[32:64].hex())
        except NotFound:
            return True
        except (ModelRejected, RecordDamaged) as error:
            log.warning("model not kept", job=job_id, why=str(error))
            return True
        for name, data in kept_files(result.files, spec).items():
            state.keep(job_id, name, data)
        log.info("model kept", job=job_id)
        return True


def kept_files(files: Mapping[str, bytes], spec: bytes) -> dict[str, bytes]:
    """Return what a silo keeps of a horizontal job's result: a folder that scores rows.

    The schema is last: where it is, all is.
    """
    whole = {**files, "job.toml": job_file.dump(spec).encode()}
    model = next((name for name in _MODELS if name in files), "")
    report = {"strategy": job_wire.parse(spec).strategy, "model": model, "artefacts": [*files]}
    whole["report.json"] = json.dumps(report).encode()
    return dict(sorted(whole.items(), key=lambda item: item[0] == SCHEMA))
