"""``[audit]`` of a job: refused where no audit could release its model, and read as signed."""

from __future__ import annotations

import hashlib
import json

import pytest

from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.job import Approvals, ReleaseAudit
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.provenance import statement_payload
from hedgerow.services.wire.release import AUDIT, PREDICATE, ReleaseStatement

GATE = '[audit]\napprovers = ["dpo"]\n'


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ('strategy = "explore"\n', "not one stock model"),
        ('strategy = "fedga"\n', "not one stock model"),
        ('strategy = "secureboost"\n[secureboost]\nactive = "a"\n', "not one stock model"),
        ('strategy = "histogram"\ntask = "survival"\n[columns]\nevent = "died"\n', "bounds"),
        ('strategy = "histogram"\ntask = "regression"\nlabel = ["a", "b"]\n', "has 2 labels"),
    ],
)
def test_a_job_that_no_audit_takes_has_none(job: str, why: str) -> None:
    job_wire.decode(job_file.parse(job))
    with pytest.raises(InvalidJob, match=rf"\[audit\]: .*{why}"):
        job_wire.decode(job_file.parse(job + GATE))
    assert job_wire.decode(job_file.parse('strategy = "bagging"\n' + GATE)).audit is not None


def test_an_audit_that_is_no_text_or_has_no_number_is_refused_in_words() -> None:
    own = {"approver": "dpo", "job": "j", "job_digest": "0", "audit": "\ud800"}
    with pytest.raises(DataError, match="an audit of characters"):
        ReleaseStatement.read(statement_payload(PREDICATE, {AUDIT: "0" * 64}, own))
    limits = [{"name": "membership_auc_max", "found": 10**400, "passed": True}]
    text = json.dumps({"limits": limits, "passed": True, "model_sha256": "m"})
    files = {"model.ubj": "m", AUDIT: hashlib.sha256(text.encode()).hexdigest()}
    rules = ReleaseAudit(Approvals(("dpo",)), (("membership_auc_max", 0.5),))
    with pytest.raises(DataError, match="expected an audit"):
        ReleaseStatement("dpo", "j", "0", files, text).check(rules, "j", "0", {"model.ubj": "m"})
