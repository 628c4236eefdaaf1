"""A coordinator that changes or reorders the schema on which the silos of a job agreed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import SchemaMismatch
from hedgerow.boosting.exchange import Silo
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.attempt import Attempt
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
from hedgerow.services.rpc.federation import (
    Agreement,
    Assignment,
    AttemptKey,
    Registration,
    SiloGroup,
)
from hedgerow.services.wire import job_file
from hedgerow.services.wire.acceptance import Answer
from hedgerow.services.wire.signed_job import open_job, sign_job
from tests.adversary.people import People

SPEC = job_file.parse(
    'strategy = "dp_tree"\n[dp_tree]\nepsilon = 2.0\n[columns]\npositive = "ill"\n'
)
SILO = Silo("ash")
ROSTER = (SILO, Silo("birch"), Silo("cedar"))
AGREED = Schema(
    (Feature("age"), Feature("wage"), Feature("kind", ("a", "b", "c"))), "label", Task.BINARY, 2,
    ("well", "ill"),
)  # fmt: skip


class Reached(Exception):
    """The attempt has gone on to its first exchange."""


def _reach() -> NoReturn:
    raise Reached


@pytest.fixture
def take_part(tmp_path: Path) -> Callable[[Schema, int], list[Answer]]:
    """Run an attempt of one job at a silo, whose coordinator says that this is the schema."""
    people = People(tmp_path / "pki")
    identity = people.identity(Role.SILO, SILO)
    job = sign_job(SPEC, people.identity(Role.OPERATOR, "olga"))
    job_id = open_job(job, identity).statement.job_id

    def run(agreed: Schema, number: int) -> list[Answer]:
        state = StateFolder(tmp_path)
        ledger = SiloLedger(state.ledger, SILO, "coordinator", time.time)
        rng = np.random.default_rng(1)
        X = rng.integers(0, 3, (20, 3)).astype(np.float32)
        dataset = Dataset(AGREED, X, rng.integers(0, 2, 20).astype(np.float64))
        parts = AgentParts(
            silo=SILO, address="", channel=_reach, identity=lambda: identity, state=state,
            ledger=ledger, accepted=ReplayGuard(state.accepted), policy=Policy(),
            account=TableAccount(tmp_path, "t"),
            opened=TableOpenings(state.records("opened"), "t", 0),
            seen=SeenTables(state.records("seen"), 1),
            load=lambda job: dataset,
            memory=MemoryLimit(None, MappedFiles(tmp_path)),
            secrets=VaultSessions(state, lambda pause: LocalVault()),
            registration=Registration("agent", "1", (), 32),
            revoked=RevokedCertificates(IdentityPaths.of(people.folder / f"{Role.SILO}/{SILO}")),
        )  # fmt: skip
        answers: list[Answer] = []

        def answer(given: Answer) -> Agreement:
            answers.append(given)
            return Agreement(agreed, ROSTER, 0, (SiloGroup(ROSTER),))

        assignment = Assignment(AttemptKey(job_id, number), ROSTER, job)
        try:
            Attempt(parts, assignment, answer).run()
        finally:
            ledger.close()
            state.close()
        return answers

    return run


LIES = {
    "a column left out": replace(AGREED, features=AGREED.features[:2]),
    "a column of another type": replace(AGREED, features=(*AGREED.features[:2], Feature("kind"))),
    "another label": replace(AGREED, label="age"),
    "classes in another order": replace(AGREED, classes=("ill", "well")),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_schema_that_is_not_the_tables_own_is_refused(
    take_part: Callable[[Schema, int], list[Answer]], lie: str
) -> None:
    with pytest.raises(SchemaMismatch):
        take_part(LIES[lie], 1)


AGE, WAGE, KIND = AGREED.features


@pytest.mark.parametrize(
    "features",
    [
        (WAGE, AGE, KIND),
        *((AGE, WAGE, Feature("kind", kinds)) for kinds in map(tuple, ("cba", "abcd", "ab"))),
    ],
    ids=["columns in another order", "categories in another order", "one more", "one less"],
)
def test_the_schema_of_a_job_never_changes_between_attempts(
    take_part: Callable[[Schema, int], list[Answer]], features: tuple[Feature, ...]
) -> None:
    with pytest.raises(Reached):
        take_part(AGREED, 1)
    changed = replace(AGREED, features=features)
    with pytest.raises(SchemaMismatch, match="has changed the schema"):
        take_part(changed, 2)
    with pytest.raises(Reached):
        take_part(AGREED, 3)
