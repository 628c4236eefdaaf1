"""What both silo halves do: begin, meet, bring rows into one order, remember, refuse."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Feature, recode
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.errors import (
    DataError,
    FederationError,
    JobStopped,
    PlacePassed,
    QuorumLost,
    SchemaMismatch,
    StaleAttempt,
    Unreachable,
)
from hedgerow.boosting.exchange import Link
from hedgerow.boosting.ports import Artefact, SiloStart
from hedgerow.boosting.strategies.secureboost.alignment import Alignment, align
from hedgerow.boosting.strategies.secureboost.courier import Courier
from hedgerow.boosting.strategies.secureboost.plain_vault import (
    REFUSED,
    PlainVault,
    VaultForgot,
    said,
)
from hedgerow.boosting.strategies.secureboost.steps import END, IDENTIFIERS, KEYS, STEPS
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.crypto.psi import PsiPolicy

if TYPE_CHECKING:
    from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
    from hedgerow.crypto.vault import CipherVault, Vault

PART = "part.json"
"""File of a party's part; it stays in its silo."""
UNFIT = "its table cannot be used for this job; the log of its agent says why"
"""What others are told of a table that lacks a column or holds the wrong type."""
"""Purpose of the random stream that draws validation rows."""
_NOT_OURS = (JobStopped, StaleAttempt, PlacePassed, QuorumLost, VaultForgot)
"""Errors that end an attempt, not the job, or that others have told already."""


def run(
    strategy: SecureBoost, link: Link, vault: Vault | None, start: SiloStart
) -> Artefact | None:
    """Take part until the job ends; return this party's part, which stays here."""
    from hedgerow.boosting.strategies.secureboost.active import ActiveHalf
    from hedgerow.boosting.strategies.secureboost.passive import PassiveHalf

    context = f"{start.job_id}/{start.attempt}".encode()
    courier = Courier(link, str(start.silo), context, os.urandom, start.first_round)
    courier.next = KEYS.name
    half: ActiveHalf | PassiveHalf
    try:
        if str(start.silo) == strategy.active:
            half = ActiveHalf(strategy, courier, vault, start)
        else:
            half = PassiveHalf(strategy, courier, vault, start)
        return half.run()
    except _NOT_OURS:
        raise
    except SchemaMismatch as error:
        # It names columns: the cause is for the log of this silo alone.
        if courier.next != END:
            courier.refuse(STEPS[courier.next], UNFIT)
        raise DataError(UNFIT) from error
    except (FederationError, *REFUSED) as error:
        # What a vault refuses is what another party sent. The text of a foreign exception may
        # hold a value: the other parties and the coordinator get its type.
        if not isinstance(error, Unreachable) and courier.next != END:
            courier.refuse(STEPS[courier.next], said(error))
        if isinstance(error, FederationError):
            raise
        raise DataError(said(error)) from error


def numeric(dataset: Dataset) -> tuple[Dataset, dict[str, list[str]]]:
    """Return a table whose text columns are the places of their categories, and those lists."""
    categories = {f.name: list(f.categories) for f in dataset.schema.features if f.categories}
    features = tuple(Feature(f.name) for f in dataset.schema.features)
    return replace(dataset, schema=replace(dataset.schema, features=features)), categories


def within(X: NDArray[np.float32], cuts: Cuts) -> NDArray[np.float32]:
    """Return values moved to the nearest that has a bin: rows that cuts were not made from."""
    last = np.nextafter(cuts.values[cuts.offsets[1:] - 1], np.float32(-np.inf))
    return np.asarray(np.clip(X, cuts.lower, last), dtype=np.float32)


def held_back(share: float, seed: int, n_rows: int) -> NDArray[np.int32]:
    """Return the rows of validation, ascending: the same for all parties, who know the seed."""
    rng = generator(seed, 0, 0, Purpose.VERTICAL_VALIDATION)
    held = np.sort(rng.permutation(n_rows)[: int(share * n_rows)])
    return np.asarray(held, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Rows:
    """Aligned rows of training, then of evaluation."""

    train: Dataset
    test: Dataset | None
    rows: NDArray[np.int64]
    categories: dict[str, list[str]]
    report: dict[str, int]
    then: str

    @property
    def raw(self) -> NDArray[np.float32]:
        """The features of all rows."""
        return self.train.X if self.test is None else np.concatenate([self.train.X, self.test.X])

    def values(self, cuts: Cuts) -> NDArray[np.float32]:
        """Return the features of all rows, as far as bins go."""
        tables = [self.train.X] if self.test is None else [self.train.X, self.test.X]
        return np.concatenate([within(X, cuts) for X in tables])


class Half:
    """State that both halves have from the start."""

    def __init__(
        self, strategy: SecureBoost, courier: Courier, vault: Vault | None, start: SiloStart
    ) -> None:
        self.strategy = strategy
        self.courier = courier
        self.start = start
        self.job = start.job
        self.parties = (
            strategy.active,
            *(str(silo) for silo in start.silos if silo != strategy.active),
        )
        self.table = start.dataset
        self.vault = vault
        self.session = start.job_id
        self.cipher: CipherVault
        if strategy.encryption == "plain":
            self.cipher = PlainVault()
        elif vault is not None:
            self.cipher = vault
        else:
            raise DataError("a vertical job needs the silo's vault")

    def align(self, with_test: bool, then: str) -> Rows:
        """Bring training rows and evaluation rows into the order of all parties."""
        found: list[Alignment] = []
        tables = [self.table]
        if with_test and self.start.test is not None:
            tables.append(recode(self.start.test, self.table.schema))
        for k, table in enumerate(tables):
            found.append(
                align(
                    self.courier,
                    self.parties,
                    table,
                    f"{self.start.job_id}/{self.start.attempt}/{k}",
                    self.strategy.alignment,
                    then if k == len(tables) - 1 else IDENTIFIERS.name,
                    self.vault,
                    PsiPolicy(min_elements=self.start.ids[0], max_elements=self.start.ids[1]),
                )
            )
        train, categories = numeric(found[0].dataset)
        test = numeric(found[1].dataset)[0] if len(found) > 1 else None
        return Rows(train, test, found[0].rows, categories, dict(found[0].report), found[-1].then)

    def earlier_part(self) -> bytes:
        """Return this party's part of the model that the job starts from.

        Raises
        ------
        DataError
            The silo keeps none.
        """
        name = self.strategy.predict_from or self.strategy.warm_start
        data = self.courier.link.recall(f"kept:{name}/{PART}")
        if data is None:
            raise DataError(f"{self.courier.party} keeps no part of a model of job {name!r}")
        return data

    def use_columns(self, features: list[str], categories: Mapping[str, list[str]]) -> None:
        """Bring the table's columns into the order of a part, its texts to the part's places.

        Raises
        ------
        SchemaMismatch
            A column is missing.
        """
        schema = replace(
            self.start.dataset.schema,
            features=tuple(
                Feature(name, tuple(categories[name]) if name in categories else None)
                for name in features
            ),
        )
        self.table = recode(self.start.dataset, schema)

    def recalled(self) -> dict[str, Any]:
        """Return this party's record of the last finished round; empty at the beginning.

        Raises
        ------
        DataError
            The attempt goes on after a round of which there is no record here.
        """
        if self.start.first_round == 0:
            return {}
        last = self.start.first_round - 1
        data = self.courier.link.recall(f"secureboost/{last % 2}")
        record = json.loads(data) if data else {"round": -1}
        if record["round"] != last:
            raise DataError(f"there is no record of round {last} here to go on from")
        return dict(record)

    def remember(self, round: int, record: dict[str, Any]) -> None:
        """Make the record of a round durable; the one before it stays."""
        data = json.dumps({"round": round, **record}).encode()
        self.courier.link.remember(f"secureboost/{round % 2}", data)
