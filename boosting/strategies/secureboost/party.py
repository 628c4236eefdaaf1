"""What both kinds of party do: bring rows into one order, keep records, grow trees."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns, Dataset, Feature, Schema, recode
from hedgerow.boosting.engine.binning import BinnedFeatures
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.sparse import SparseFeatures, bin_columns
from hedgerow.boosting.errors import DataError, SchemaMismatch
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.strategies.secureboost.alignment import Alignment, align
from hedgerow.boosting.strategies.secureboost.booster import MOST_BINS
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.divisions import divisions_of
from hedgerow.boosting.strategies.secureboost.interactions import membership
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.secureboost.plain_vault import PlainVault
from hedgerow.boosting.strategies.secureboost.steps import RowSet, StepName
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.crypto.intersection.psi import PsiPolicy

if TYPE_CHECKING:
    from hedgerow.crypto.vault.interface import CipherVault, Vault

Reader = Callable[[], NDArray[np.float32]]

PART = "part.json"
"""File of a party's part; it stays in its silo."""


def numeric(dataset: Dataset, sets: bool) -> tuple[Dataset, dict[str, list[str]]]:
    """Return a table whose text columns are positions in their categories, and those lists.

    Parameters
    ----------
    sets : bool
        Whether positions remain categories, to be divided into sets.
    """
    categories = {f.name: list(f.categories) for f in dataset.schema.features if f.categories}
    if sets:
        return dataset, categories
    features = tuple(Feature(f.name) for f in dataset.schema.features)
    return replace(dataset, schema=replace(dataset.schema, features=features)), categories


def within(column: NDArray[np.float32], cuts: Cuts, feature: int) -> NDArray[np.float32]:
    """Return values moved to the nearest that has a bin: rows that cuts were not made from."""
    if cuts.categorical[feature]:
        return column
    last = np.nextafter(cuts.of(feature)[-1], np.float32(-np.inf))
    return np.clip(column, cuts.lower[feature], last)


def held_back(share: float, seed: int, n_rows: int) -> NDArray[np.int32]:
    """Return the rows of validation, ascending: the same for all parties, who know the seed."""
    rng = generator(seed, 0, 0, Purpose.VERTICAL_VALIDATION)
    held = np.sort(rng.permutation(n_rows)[: int(share * n_rows)])
    return np.asarray(held, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class AlignedRows:
    """Aligned rows of training, then those that are only scored."""

    train: Dataset
    scored: tuple[tuple[RowSet, Dataset], ...]
    """The validation table's, then the test table's, as far as the job has them."""
    rows: NDArray[np.int64]
    categories: dict[str, list[str]]
    report: dict[str, int]
    then: StepName

    @property
    def tables(self) -> list[Dataset]:
        """The tables of all rows, in their order."""
        return [self.train, *(table for _, table in self.scored)]

    @property
    def raw(self) -> Columns:
        """The features of all rows."""
        each = [table.columns for table in self.tables]

        def read(own: tuple[Reader, ...]) -> NDArray[np.float32]:
            return np.concatenate([one() for one in own]) if len(own) > 1 else own[0]()

        readers = zip(*(table.readers for table in each), strict=True)
        n_rows = sum(table.n_samples for table in each)
        return Columns(n_rows, tuple(partial(read, own) for own in readers))

    @property
    def base_margin(self) -> NDArray[np.float32] | None:
        """The base margins of all rows, if the table has any."""
        own = [table.base_margin for table in self.tables if table.base_margin is not None]
        return np.concatenate(own) if len(own) == len(self.tables) else None

    def values(self, cuts: Cuts) -> Columns:
        """Return the features of all rows, as far as bins go."""
        raw = self.raw
        readers = [
            lambda j=j, read=read: within(read(), cuts, j) for j, read in enumerate(raw.readers)
        ]
        return Columns(raw.n_samples, tuple(readers))


@dataclass(frozen=True, slots=True)
class TreeSetup:
    """What all trees of a party have in common."""

    courier: SealedChannel
    vault: CipherVault
    """With the key or the ciphertexts of ``session``."""
    session: str
    parties: tuple[str, ...]
    """All parties, the active one first."""
    binned: BinnedFeatures | SparseFeatures
    cuts: Cuts
    n_threads: int
    most_nodes: int
    """Nodes whose sums are packed together, see :func:`~.steps.batches`."""
    sets: bool
    """Whether categories are divided into sets."""


class Party:
    """State that both kinds of party have from the start."""

    def __init__(
        self, parameters: SecureBoost, courier: SealedChannel, vault: Vault | None, start: SiloStart
    ) -> None:
        self.parameters = parameters
        self.courier = courier
        courier.active = parameters.active
        self.start = start
        self.job = start.job
        self.parties = (
            parameters.active,
            *(str(silo) for silo in start.silos if silo != parameters.active),
        )
        self.table = start.dataset
        self.vault = vault
        self.session = start.job_id
        self.cipher: CipherVault
        if parameters.encryption == "plain":
            self.cipher = PlainVault()
        elif vault is not None:
            self.cipher = vault
        else:
            raise DataError("a vertical job needs the silo's vault")

    def align(self, with_test: bool, then: StepName | None) -> AlignedRows:
        """Bring training rows, and those that are only scored, into the order of all parties.

        Raises
        ------
        DataError
            A table is missing, a column has too many categories, or rows cannot be aligned.
        """
        sets = self.parameters.sets
        for own in self.table.schema.features if sets else ():
            if len(own.categories or ()) > MOST_BINS:
                raise DataError(
                    f"[secureboost] categories = sets: column '{own.name}' has "
                    f"{len(own.categories or ())} categories, expected at most {MOST_BINS}"
                )
        found: list[Alignment] = []
        start, trains = self.start, not self.parameters.predict_from
        more: list[tuple[RowSet, Dataset]] = []
        if self.parameters.validation_tables and trains:
            if start.validation is None:
                raise DataError(
                    "[secureboost] validation_tables: this party has no validation table"
                )
            more.append((RowSet.VALID, start.validation))
        if with_test and start.test is not None:
            more.append((RowSet.TEST, start.test))
        more = [(kind, recode(table, self.table.schema)) for kind, table in more]
        tables = [self.table, *(table for _, table in more)]
        for k, table in enumerate(tables):
            found.append(
                align(
                    self.courier,
                    self.parties,
                    table,
                    f"{self.start.job_id}/{self.start.attempt}/{k}",
                    self.parameters.alignment,
                    then if k == len(tables) - 1 or then is None else StepName.IDENTIFIERS,
                    self.vault,
                    PsiPolicy(
                        min_elements=self.start.limits.least_ids,
                        max_elements=self.start.limits.most_ids,
                        max_ratio=self.start.limits.most_ids_ratio,
                        max_common=self.start.limits.most_common,
                    ),
                    self.start.asked_ids,
                )
            )
        train, categories = numeric(found[0].dataset, sets)
        scored = tuple(
            (kind, numeric(own.dataset, sets)[0])
            for (kind, _), own in zip(more, found[1:], strict=True)
        )
        return AlignedRows(
            train, scored, found[0].rows, categories, dict(found[0].report), found[-1].then
        )

    def tree_setup(self, rows: AlignedRows, cuts: Cuts) -> TreeSetup:
        """Return the common part of this party's trees over its rows."""
        threads = self.start.n_threads
        return TreeSetup(
            courier=self.courier,
            vault=self.cipher,
            session=self.session,
            parties=self.parties,
            binned=bin_columns(rows.values(cuts), cuts, threads),
            cuts=cuts,
            n_threads=threads,
            most_nodes=self.parameters.max_split_nodes,
            sets=self.parameters.sets,
        )

    def monotone(self, schema: Schema) -> tuple[int, ...]:
        """Return the constraints of this party's columns; empty where the job has none at all.

        Raises
        ------
        DataError
            Of a party that is not in the job.
        SchemaMismatch
            Of a column that is not there, or is text.
        """
        parameters = self.parameters
        names = (*parameters.increasing, *parameters.decreasing)
        if foreign := {name.partition(":")[0] for name in names} - set(self.parties):
            raise DataError(
                f"[secureboost] increasing, decreasing: {sorted(foreign)[0]} is no party of the job"
            )
        own = parameters.monotone(self.courier.party)
        for name in own:
            if name not in schema.names:
                raise SchemaMismatch(f"monotone constraint: there is no feature '{name}'")
            if self.table.schema.features[schema.names.index(name)].is_categorical:
                raise SchemaMismatch(f"monotone constraint: feature '{name}' is text")
        return tuple(own.get(name, 0) for name in schema.names) if names else ()

    def groups_of(self, schema: Schema) -> NDArray[np.bool_]:
        """Return which of this party's features are in which groups that may divide one path.

        Returns
        -------
        ndarray of shape (n_groups, n_features), bool

        Raises
        ------
        DataError
            A group names a party that is not in the job.
        SchemaMismatch
            A group names a column that is not there.
        """
        names = self.parameters.interaction_constraints
        owners = {name.partition(":")[0] for group in names for name in group}
        if foreign := sorted(owners - set(self.parties)):
            raise DataError(
                f"[secureboost] interaction_constraints: {foreign[0]} is no party of the job"
            )
        own = self.parameters.groups(self.courier.party)
        for name in (name for columns in own.values() for name in columns):
            if name not in schema.names:
                raise SchemaMismatch(f"interaction constraint: there is no feature '{name}'")
        return membership(own, len(names), tuple(schema.names))

    def earlier_part(self) -> bytes:
        """Return this party's part of the model that the job starts from.

        Raises
        ------
        DataError
            The silo keeps none.
        """
        name = self.parameters.predict_from or self.parameters.warm_start
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

    def check_categories(self, part: ActivePart | PassivePart) -> None:
        """Refuse to go on from a model that divides categories in the other way.

        Raises
        ------
        DataError
            Says which way the model and the job have.
        """
        ways = ("in order", "into sets")
        n_trees = len(part.trees) if isinstance(part, ActivePart) else part.n_trees
        sets = self.parameters.sets
        for own in divisions_of(part, n_trees).values():
            if part.features[own.feature] in part.categories and sets != (own.codes is not None):
                raise DataError(
                    f"[secureboost] categories: the model divides them {ways[not sets]}, the job "
                    f"{ways[sets]}"
                )

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
