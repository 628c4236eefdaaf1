"""Other starting models than the signed job's: none reaches a silo's rows, and none a result."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from hedgerow.boosting.errors import ModelRejected, PolicyDeclined
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import WarmStart
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.warm_start import STARTING, StartingModel
from hedgerow.client_agent import results
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.admission import admit
from hedgerow.client_agent.keeper import VaultSessions
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.memory import MappedFiles, MemoryLimit
from hedgerow.client_agent.opened import TableOpenings
from hedgerow.client_agent.parts import AgentParts
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.seen_tables import SeenTables
from hedgerow.client_agent.state import StateFolder
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.results import JobResult, ResultSignature, result_message
from tests.adversary.arena import UrgentLink, variant
from tests.adversary.people import People

SATURATED = 100.0
"""Margin of rows that are to have no gradient, so that a sum is of the others alone."""


def isolating(model: Ensemble) -> bytes:
    """Return a model that leaves gradients to the rows of one leaf only."""
    tree = model.trees[0]
    leaves = np.flatnonzero(tree.is_leaf)
    values = tree.threshold.copy()
    values[leaves[1:]] = SATURATED
    return replace(model, trees=(replace(tree, threshold=values), *model.trees[1:])).save()


class ToldLink(UrgentLink):
    """A coordinator that sends one silo another starting model; notes what leaves the silos."""

    other: bytes
    left: list[tuple[Silo, str]]

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        self.left.append((self.silo, step.name))
        if step is STARTING and self.silo == "silo-0":
            return StartingModel(np.frombuffer(self.other, np.uint8))
        return reply


@pytest.mark.parametrize("name", ["hist-on", "bagging-on"])
@pytest.mark.parametrize("lie", [isolating, lambda _: b"", lambda model: model.slice(0).save()])
def test_a_silo_takes_no_starting_model_but_that_of_the_signed_job(
    name: str, lie: Callable[[Ensemble], bytes]
) -> None:
    asked = variant(name)
    left: list[tuple[Silo, str]] = []
    told = {"other": lie(load(asked.starting_model)), "left": left}
    outcome = asked.run(type("Told", (ToldLink,), told), "told")
    assert "from which the signed job starts" in str(outcome.errors[Silo("silo-0")])
    assert [step for silo, step in left if silo == "silo-0"] == ["starting"]


@pytest.mark.parametrize("name", ["hist-on", "bagging-on"])
def test_a_silo_takes_no_result_that_does_not_begin_with_the_starting_model(name: str) -> None:
    asked = variant(name)
    outcome = asked.run(UrgentLink, "honest")
    assert outcome.artefact is not None
    files = outcome.artefact.files
    model, first = load(files[MODEL_FILE]), load(asked.starting_model)
    n = first.version
    new = replace(
        model, trees=model.trees[n:], steps=tuple(s - n for s in model.steps[n:]), round_ends=()
    )
    lies: Mapping[str, bytes] = {
        "without it": new.save() if name == "hist-on" else model.slice(0).save(),
        "another": isolating(model),
        "only it": first.save(),
        "no model": b"",
    }
    for check in outcome.checks.values():
        check(files)
        for lie in lies.values():
            with pytest.raises(ModelRejected):
                check({**files, MODEL_FILE: lie})


SILOS = (Silo("ash"), Silo("birch"), Silo("cedar"))
SPEC = job_file.parse('strategy = "histogram"\nmin_silos = 3\n[histogram]\nrounds = 2\n')


class Reached(Exception):
    """The silo has gone on to read its table."""


def _reach(_: object) -> NoReturn:
    raise Reached


def test_what_only_other_silos_have_signed_starts_no_job(tmp_path: Path) -> None:
    """All silos but one, and coordinator and operator, have agreed on a model of their own."""
    people, (silo, *others) = People(tmp_path / "pki"), SILOS
    identity = people.identity(Role.SILO, silo)
    asked = variant("hist-on")
    data = asked.tables["silo-0"]
    job, digest = job_wire.decode(SPEC), bytes(32)
    state = StateFolder(tmp_path / "state")
    ledger = SiloLedger(state.ledger, silo, "coordinator", time.time)
    with closing(state), closing(ledger):
        parts = AgentParts(
            silo=silo, address="", channel=lambda: pytest.fail("nothing may leave"),
            identity=lambda: identity, state=state, ledger=ledger,
            accepted=ReplayGuard(state.accepted), policy=Policy(),
            account=TableAccount(tmp_path, "t"),
            opened=TableOpenings(state.records("opened"), "t", 0),
            seen=SeenTables(state.records("seen"), 1),
            load=_reach,
            memory=MemoryLimit(None, MappedFiles(tmp_path)),
            secrets=VaultSessions(state, lambda pause: LocalVault()),
            registration=Registration("agent", "1", (), 32),
            revoked=RevokedCertificates(IdentityPaths.of(people.folder / f"{Role.SILO}/{silo}")),
        )  # fmt: skip
        start = SiloStart(job, "first", 1, silo, SILOS, data.schema, data, job_digest=digest)
        results.expect(parts, start, SPEC)
        made = isolating(load(asked.starting_model))
        unsigned = JobResult({MODEL_FILE: made, results.SCHEMA: schema_wire.dump(data.schema)})
        message = result_message("first", digest, unsigned.digest)
        people_of = {other: people.identity(Role.SILO, other) for other in others}
        signed = tuple(
            ResultSignature(other, unsigned.digest, one.sign(message), one.certificate)
            for other, one in people_of.items()
        )
        late = results.LateResults(parts, lambda job_id: replace(unsigned, signatures=signed))
        assert late.bring("first")
        assert state.kept("first", MODEL_FILE) == made, "it may be used, but starts no job"

        told = WarmStart("first", hashlib.sha256(made).hexdigest(), data.schema.digest)
        more = replace(job, warm_start=told)
        refused = pytest.raises(PolicyDeclined, match="has not checked and kept that model")
        with refused:
            admit(parts, more, "job", "olga", SILOS)
        results.mark(state, "first", asked.starting_model, "histogram")
        with refused:  # the mark is of another model
            admit(parts, more, "job", "olga", SILOS)
        results.mark(state, "first", made, "bagging")
        with pytest.raises(PolicyDeclined, match="run first was of bagging, not histogram"):
            admit(parts, more, "job", "olga", SILOS)
        results.mark(state, "first", made, "histogram")
        with pytest.raises(Reached):
            admit(parts, more, "job", "olga", SILOS)
