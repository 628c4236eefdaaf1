"""What a vertical job is expected to move, by formula."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hedgerow.boosting.allowances import UNBOUNDED, StepQuota, most_levels
from hedgerow.boosting.dataset import Schema, unnamed
from hedgerow.boosting.engine.objective import objective_of, unusual_loss
from hedgerow.boosting.engine.quantising import static_bound
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.strategies.secureboost.eini import LEAST_PATHS
from hedgerow.boosting.strategies.secureboost.gradient_layout import layout_of_gradients
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.secureboost.reveals import REVEALS
from hedgerow.boosting.strategies.secureboost.steps import (
    BITMAPS,
    GRADIENTS,
    HISTOGRAMS,
    IDENTIFIERS,
    IN_CLEAR,
    KEYS,
    LEAVES,
    MARGINS,
    PASS_PIECES,
    PIECE_BYTES,
    SCORES,
    SPLITS,
    RelayStep,
    batches,
    size_class,
    source_bytes,
)
from hedgerow.boosting.work import Forecast, Work
from hedgerow.crypto.ciphers.packing import classes_per_ciphertext, usable_bits
from hedgerow.crypto.ciphers.paillier_keys import PROOF_ROUNDS
from hedgerow.crypto.errors import PackingRefused
from hedgerow.crypto.intersection.psi import n_exchanges, tag_bits
from hedgerow.crypto.masking.key_agreement import BOX_OVERHEAD_BYTES
from hedgerow.crypto.vault.blinding import POINT_BYTES

if TYPE_CHECKING:
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.ports import JobParameters

ELGAMAL_BYTES = 96
PLAIN_BYTES = 16
FIELD_BYTES = 6
"""Of a field in a box: its tag, its length, and the shape of an array."""
PIECE_FRAME_BYTES = 20
CALL_UP_BYTES, CALL_DOWN_BYTES = 44, 6
"""Of an exchange in which a party has nothing to say: the key of its place, and a note."""
IDENTITY_BYTES = 2050
"""Certificate with that of its issuer, and signature."""
SCORES_BYTES = 60
"""Numbers for the coordinator."""
BOXES = 10
"""Exchanges that sealing, signing and opening in one take as long as; measured."""
KEY = 7000
"""Encryptions that a Paillier key, its proof and its checks take as long as; measured."""
ASSUMED_BOUND = (4.0, 1.0)
"""Assumed largest g and h of a loss without bounds."""


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes of one level of a tree: whose sums are asked for, that are decided on, and divided."""

    asked: int
    decided: int
    divided: int


def levels(booster: Booster, deepest: int) -> list[Level]:
    """Return the levels of a full tree; each is an exchange of sums.

    Parameters
    ----------
    deepest : int
        Levels at most; 0 for no limit but ``max_leaves``.
    """
    most = booster.max_leaves or 1 << 30
    if booster.grow_policy == "lossguide":
        leaves = min(most, 1 << min(deepest, 30) if deepest else most)
        return [Level(1, 1, 1), *[Level(1, 2, 1)] * (leaves - 2)] if leaves > 1 else []
    found: list[Level] = []
    nodes, asked, leaves = 1, 1, 1
    while leaves < most and (not deepest or len(found) < deepest):
        divided = min(nodes, most - leaves)
        found.append(Level(asked, nodes, divided))
        leaves += divided
        nodes, asked = 2 * divided, divided
    return found


def box_bytes(*fields: float) -> float:
    """Return the length of a sealed box, given the bytes of its fields, its frame included."""
    content = sum(FIELD_BYTES + n for n in fields)
    return size_class(math.ceil(content) + 8) + BOX_OVERHEAD_BYTES + PIECE_FRAME_BYTES


class PartyTraffic:
    """Bytes of one party, by kind of exchange."""

    def __init__(self) -> None:
        self.calls: defaultdict[str, float] = defaultdict(float)
        self.up: defaultdict[str, float] = defaultdict(float)
        self.down: defaultdict[str, float] = defaultdict(float)

    def add(self, call: Call, times: float, up: float, down: float, pieces: float = 1.0) -> None:
        """Add ``times`` exchanges; ``pieces`` is the most that any party gives in one."""
        passes = max(1, math.ceil(pieces / PASS_PIECES))
        self.calls[call.value] += times * passes
        self.up[call.value] += times * (up + passes * CALL_UP_BYTES)
        self.down[call.value] += times * (down + passes * CALL_DOWN_BYTES)


@dataclass(frozen=True, slots=True)
class TreeSizes:
    """Of one tree's gradients and answers."""

    rows: int
    """Common rows."""
    sampled: int
    """Ciphertexts of one part, padding included."""
    parts: tuple[tuple[int, int], ...]
    """For each ciphertext of a row: its bytes, and how many candidates go into one of an answer."""
    candidates: int
    """Of a node, at one passive party."""
    features: int
    """Of that party."""
    least: int
    """Fewest rows of a sum: groups of a node that are smaller are merged."""

    @property
    def gradients(self) -> int:
        """Bytes of the ciphertexts of all sampled rows."""
        return self.sampled * sum(width for width, _ in self.parts)

    @property
    def pieces(self) -> int:
        """Frames that they take."""
        return sum(math.ceil(self.sampled * width / PIECE_BYTES) for width, _ in self.parts)

    def answer(self, asked: int, most_nodes: int) -> tuple[int, int]:
        """Return the bytes of the sums of ``asked`` nodes, and the frames that they take."""
        nodes, candidates = range(asked), self.candidates
        if asked > 1:  # of each pair of nodes one
            rows = self.rows / (2 * asked)
            candidates = min(candidates, math.ceil(self.features * rows / self.least))
        blocks = [
            width * math.ceil(len(nodes[batch]) * candidates / slots)
            for batch in batches(asked, self.candidates, most_nodes)
            for width, slots in self.parts
        ]
        return sum(blocks), sum(math.ceil(block / PIECE_BYTES) for block in blocks)


def forecast(
    strategy: SecureBoost, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return bytes of a job whose trees are full, for a silo with as many columns as ``schema``.

    Notes
    -----
    Rows up from the active party: n · C a tree and ciphertext part, C = key_bits / 4 bytes. Answers
    of a passive party: one child a pair of nodes, ⌈candidates / slots⌉ · C, and two bytes a
    candidate that say which sum is its own. Row bitmaps: n / 8 a level, each way. What is sealed is
    padded to a size class.
    """
    n_parties = max(len(n_samples), 2)
    parties = (strategy.active, *(f"\0{k}" for k in range(1, n_parties)))
    n_rows = max(min(n_samples.values(), default=1), 1)
    sizes = _sizes(strategy, job, schema, n_rows)
    scoring, booster = bool(strategy.predict_from), job.booster
    if strategy.information:
        booster = replace(booster, max_depth=1)
    rounds = strategy.n_rounds
    turns = Counter(() if scoring else strategy.turn(r, parties).passive for r in range(rounds))
    active = bool(schema.label)
    # A passive party does not know here which of them it is: the mean of all.
    chosen = parties[:1] if active else parties[1:]
    trees = 1 if strategy.multi_output else max(schema.n_outputs, 1)
    found = [PartyTraffic() for _ in chosen]
    for me, traffic in zip(chosen, found, strict=True):
        _meet(traffic, strategy, parties, me, n_rows)
        for turn, n in turns.items():
            if turn:
                _tree(traffic, strategy, booster, parties, me, turn, n * trees, sizes)
        result = 0.0 if strategy.information else box_bytes(32, 4)
        if me == parties[0]:
            traffic.add(Call.SCORES, rounds, (n_parties - 1) * result + SCORES_BYTES, 0)
        else:
            traffic.add(Call.SCORES, rounds, 0, result)
    steps: dict[str, tuple[int, int, int]] = {}
    for call in found[0].calls:
        calls, up, down = (
            math.ceil(sum(values[call] for values in each) / len(found))
            for each in zip(*((t.calls, t.up, t.down) for t in found), strict=True)
        )
        steps[call] = calls, up, down
    shared = sum(n for turn, n in turns.items() if turn) * trees
    exchanges = sum(calls for calls, _, _ in steps.values())
    notes: tuple[str, ...] = (
        f"about {exchanges} exchanges between {n_parties} parties, larger ones in passes",
        "for full trees, and features with max_bin bins; small nodes need fewer sums, features "
        "with missing values up to twice as many",
        "as many columns at each passive party as in this silo's table; no rows of tests or "
        "validation tables: each such table is an intersection and a bitmap more",
    )
    if scoring:
        unknown = (
            f"scores with the model of {strategy.predict_from!r}, whose size is not known here: "
        )
        notes = (unknown + "about 4 bytes more, each way, for each row, tree and change of owner",)
    if scoring and strategy.inference == "eini":
        each = strategy.key_bits // 4 if strategy.encryption == "paillier" else ELGAMAL_BYTES
        notes = (
            unknown
            + f"{each} bytes more, from each party to the next, for each row, leaf and output",
            f"ends with an error where a party's divisions lead fewer than {LEAST_PATHS} ways "
            "through the trees: the sums would reveal which one a row takes",
        )
    return Forecast(
        rounds=rounds,
        steps=steps,
        reveals=REVEALS,
        notes=(*unusual_loss(job.objective, job.booster), *notes),
        cpu_class=_cpu_class(strategy.encryption, shared, n_rows),
        work=_work(strategy, booster, steps, sizes, n_parties, shared, active=active),
    )


def _work(
    strategy: SecureBoost,
    booster: Booster,
    steps: Mapping[str, tuple[int, int, int]],
    sizes: TreeSizes,
    n_parties: int,
    trees: int,
    *,
    active: bool,
) -> dict[str, dict[Work, float]]:
    """Return what a party computes: boxes at each exchange, points, ciphertexts of full trees.

    A key of k bits takes (k / 2048)^2.5 of one of 2048; decryption under ElGamal as long as about
    five encryptions, and its table as 100,000.
    """
    found: dict[str, dict[Work, float]] = {
        step: {Work.EXCHANGE: BOXES * steps.get(step, (0, 0, 0))[0] / 2}
        for step in (*steps, Call.HISTOGRAMS.value)
    }
    if strategy.alignment != "digest":
        found[Call.IDENTIFIERS.value][Work.POINT] = sizes.rows * n_parties / 2
    if strategy.encryption == "plain" or not trees:
        return found
    paillier = strategy.encryption == "paillier"
    slower = (strategy.key_bits / 2048) ** 2.5 if paillier else 1.0
    encrypt = Work.PAILLIER_ENCRYPT if paillier else Work.ELGAMAL_ENCRYPT
    add = Work.PAILLIER_ADD if paillier else Work.ELGAMAL_ADD
    rows = sizes.sampled * len(sizes.parts) * trees * slower
    deepest = strategy.host_depth if strategy.mode == "layered" else booster.max_depth
    asked = [level.asked for level in levels(booster, deepest)]
    answered = (
        trees
        * slower
        * sum(math.ceil(n * sizes.candidates / slots) for n in asked for _, slots in sizes.parts)
    )
    if active:
        keys, read = (KEY * slower, answered) if paillier else (1e5, 0.0)
        found[Call.KEYS.value][encrypt] = keys
        found[Call.GRADIENTS.value][encrypt] = rows
        opened = (n_parties - 1) * answered
        if read:
            found[Call.HISTOGRAMS.value][Work.PAILLIER_DECRYPT] = opened
        else:
            found[Call.HISTOGRAMS.value][encrypt] = 5 * opened
    else:
        mean = (1 + 0.5 * (len(asked) - 1)) * sizes.features
        found[Call.HISTOGRAMS.value] |= {encrypt: answered, add: 0.72 * rows * mean}
    return found


def forecasts(
    strategy: SecureBoost,
    job: JobParameters,
    schemas: Mapping[Silo, Schema],
    n_samples: Mapping[Silo, int],
) -> dict[Silo, Forecast]:
    """Return the forecast of each party of ``n_samples``.

    Parameters
    ----------
    schemas : Mapping
        Of the parties whose columns are known. A passive party without one is taken to have as many
        columns as the others on average. The active party's bytes depend on that average, not on
        its own columns.
    """
    active = Silo(strategy.active)
    passive = [schema.n_features for silo, schema in schemas.items() if silo != active]
    n_classes = schemas[active].n_classes if active in schemas else job.classes
    average = Schema(unnamed(round(sum(passive) / max(len(passive), 1))), "", job.task, n_classes)
    return {
        silo: forecast(
            strategy,
            job,
            replace(average, label=job.label)
            if silo == active
            else replace(schemas.get(silo, average), n_classes=n_classes),
            n_samples,
        )
        for silo in n_samples
    }


def allowances(
    strategy: SecureBoost, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: sums and divisions once a level of each tree.

    How many exchanges an earlier model takes is not known from the job.
    """
    scoring, routed = bool(strategy.predict_from), bool(strategy.warm_start)
    rounds = strategy.n_rounds
    # Rows of training and of evaluation, and those of validation.
    align = (2 + strategy.validation_tables) * max(n_exchanges(n_silos), 3)
    trees = strategy.trees_per_round(job)
    deepest = job.booster.max_depth
    if strategy.mode == "layered":
        deepest = strategy.host_depth + strategy.guest_depth
    levels = trees * (1 if strategy.information else most_levels(job.booster, deepest))
    exchanges = UNBOUNDED if scoring or routed else 2 + align + trees + 3 * levels

    def each(step: RelayStep, times: int) -> StepQuota:
        if strategy.encryption == "plain":
            step = IN_CLEAR.get(step.name, step)
        return StepQuota(step, times, rounds, exchanges, streamed=True)

    found = [each(KEYS, 1), each(IDENTIFIERS, align), each(SCORES, rounds)]
    if scoring or routed:
        found.append(each(MARGINS, UNBOUNDED))
    if scoring:
        return (*found, each(LEAVES, UNBOUNDED))
    of_level = (each(step, rounds * levels) for step in (HISTOGRAMS, SPLITS, BITMAPS))
    return (*found, each(GRADIENTS, rounds * trees), *of_level)


def _cpu_class(encryption: str, n_trees: int, n_rows: int) -> str:
    """Return how long the crypto processes compute with compiled kernels, by order of size."""
    a_tree, a_row = {"paillier": (1.5, 1e-4)}.get(encryption, (0.3, 2e-5))
    seconds = n_trees * (a_tree + a_row * n_rows)
    return "seconds" if seconds < 60 else "minutes" if seconds < 3600 else "hours"


def _meet(
    traffic: PartyTraffic, strategy: SecureBoost, parties: tuple[str, ...], me: str, n_rows: int
) -> None:
    """Add the exchange of keys and the alignment."""
    n_others = len(parties) - 1
    public = {"paillier": (1 + PROOF_ROUNDS) * strategy.key_bits // 8 + 24, "elgamal": 80}
    hello = 33 + IDENTITY_BYTES + PIECE_FRAME_BYTES
    key = public.get(strategy.encryption, 0)
    leads = me == parties[0]
    others = n_others * hello + (0 if leads else key)
    traffic.add(Call.KEYS, 1, hello + (key if leads else 0), others)
    if strategy.alignment == "digest":
        box = box_bytes(32)
        up, down = (n_others * box, n_others * box) if leads else (box, box)
        traffic.add(Call.IDENTIFIERS, 3, up / 3, down / 3)
        return
    points = box_bytes(10, n_rows * POINT_BYTES)
    bits = tag_bits(n_rows, [n_rows] * n_others)
    tags = box_bytes(10, n_rows * math.ceil(bits / 8))
    matches = box_bytes(10, math.ceil(n_rows / 8))
    # Every set goes to every other party; the leader's returns as tags, and with three parties
    # or more its matches go the way back.
    way_back = n_others if n_others > 1 else 0
    if leads:
        up, down = points + n_others * matches + bool(way_back) * matches, n_others * points + tags
    else:
        up = ((n_others * n_others + n_others - 1) * points + tags + way_back * matches) / n_others
        down = (n_others * (n_others - 1) + n_others) * points / n_others
        down += matches + way_back * matches / n_others
    times = n_exchanges(len(parties))
    traffic.add(Call.IDENTIFIERS, times, up / times, down / times, points / PIECE_BYTES)


def _tree(
    traffic: PartyTraffic,
    strategy: SecureBoost,
    booster: Booster,
    parties: tuple[str, ...],
    me: str,
    turn: tuple[str, ...],
    times: float,
    sizes: TreeSizes,
) -> None:
    """Add ``times`` trees in which the passive parties of ``turn`` take part."""
    leads, involved = me == parties[0], me in turn
    n = len(turn)
    copies = 1 if len(turn) == len(parties) - 1 else n
    bits = sizes.candidates * len(
        strategy.interaction_constraints
    )  # a bound: a party may have none
    about, offer = box_bytes(math.ceil(sizes.rows / 8), 24), box_bytes(4, math.ceil(bits / 8))
    up, down = 0.0, 0.0
    if leads:
        up, down = copies * sizes.gradients + n * about, n * offer
    elif involved:
        up, down = offer, sizes.gradients + about
    traffic.add(Call.GRADIENTS, times, up, down, copies * sizes.pieces + n)
    own = 1 / len(parties) if strategy.mode == "standard" else 0.0
    theirs = (1 - own) / n
    deepest = strategy.host_depth if strategy.mode == "layered" else booster.max_depth
    for level in levels(booster, deepest):
        allowed = math.ceil(level.decided * sizes.candidates / 8)
        places = level.asked * sizes.candidates * source_bytes(sizes.candidates)
        sums, pieces = sizes.answer(level.asked, strategy.max_split_nodes)
        answer = sums + box_bytes(allowed, places)
        traffic.add(Call.HISTOGRAMS, times, answer * involved, n * answer * leads, pieces + 1)
        if strategy.information:
            continue  # nothing is divided
        d = level.divided
        divided = box_bytes(6 * d, 4 * d * theirs, sizes.rows * own / 8)
        traffic.add(Call.SPLITS, times, n * divided * leads, divided * involved, n)
        masks = sizes.rows * theirs / 8
        happens, mine = 1 - own**d, 1 - (1 - theirs) ** d
        to_active, to_passive = box_bytes(masks, d * theirs), box_bytes(masks)
        up = mine * (to_active + (n - 1) * to_passive) * involved
        down = mine * (n * to_active * leads + (n - 1) * to_passive * involved)
        traffic.add(Call.SPLITS, times * happens, up / happens, down / happens, n)


def _sizes(strategy: SecureBoost, job: JobParameters, schema: Schema, n_rows: int) -> TreeSizes:
    booster = job.booster
    n_outputs = max(schema.n_outputs, 1)
    classes = n_outputs if strategy.multi_output else 1
    sampler = strategy.sampler(booster)
    kept = {"none": 1.0, "goss": sampler.top_rate + sampler.other_rate}
    n_fit = n_rows - int(strategy.validation * n_rows)
    sampled = size_class(max(int(n_fit * kept.get(sampler.method, sampler.rate)), 1))
    parts = [(ELGAMAL_BYTES, 1)] * classes
    if strategy.encryption == "plain":
        parts = [(PLAIN_BYTES * classes, 1)]
    elif strategy.encryption == "paillier":
        objective = objective_of(job.objective, job.task, booster)
        bound = static_bound(objective, sampler, n_outputs, 1.0) or ASSUMED_BOUND
        bits = strategy.fraction_bits
        try:
            layout = layout_of_gradients("paillier", size_class(n_fit), bound, classes, bits)
            rooms = classes_per_ciphertext(layout, strategy.key_bits)
        except PackingRefused as error:
            raise InvalidJob(f"secureboost.key_bits: {error}") from error
        most = usable_bits(strategy.key_bits) // layout.pair_bits
        parts = [(strategy.key_bits // 4, most // room) for room in rooms]
    used = max(1, int(booster.colsample_bytree * schema.n_features)) if schema.n_features else 0
    most = n_rows if strategy.sets else min(booster.max_bin, n_rows)
    n_bins = [
        min(len(f.categories), most) if f.categories else min(booster.max_bin, n_rows)
        for f in schema.features
    ]
    mean = sum(n - 1 for n in n_bins) / max(len(n_bins), 1)
    return TreeSizes(n_rows, sampled, tuple(parts), round(used * mean), used, strategy.min_leaf)
