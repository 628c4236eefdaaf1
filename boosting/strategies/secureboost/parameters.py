"""Vertical SecureBoost: parties with different columns of the same rows train one model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import InvalidJob, OfferRejected
from hedgerow.boosting.exchange import Hub, Link, Silo
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    Forecast,
    RoundResult,
    Safeguards,
    SiloStart,
)
from hedgerow.boosting.strategies.secureboost.steps import END, KEYS, SCORES, STEPS, Turn

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.engine.sampling import Sampler
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.crypto.vault import Vault

ENCRYPTIONS = ("paillier", "elgamal", "plain")
KEY_BITS = (2048, 3072, 4096)
MODES = ("standard", "mix", "layered")
MOST_PARTIES = 5
SUMMARY = "vertical.json"
"""File that the coordinator keeps of a job: who took part, which round is the best."""


@dataclass(frozen=True, slots=True)
class SecureBoost:
    """Lossless gradient boosting over parties that hold different columns of the same rows.

    The *active* party holds the labels, one to four *passive* parties hold features only. The
    active party encrypts each row's gradient; passive parties sum ciphertexts over the rows below
    each of their bin edges; the active party decrypts these sums, picks the best division among its
    own and theirs, and the owner of the division tells which rows go left. All of it travels
    through the coordinator, which sees ciphertexts, lengths, scores and the names of steps; what
    else parties say to each other is sealed between two of them.

    ===========  ===============  ===============================  ==============================
    step         RPC              active party offers              passive party offers
    ===========  ===============  ===============================  ==============================
    keys         ExchangeKeys     signed keys, also for Paillier   signed keys
    identifiers  ..Identifiers    blinded ids, sealed              blinded ids, sealed
    gradients    ..Gradients      encrypted gradients; sampled     number of its candidates
                                  rows, sealed
    histograms   ..Histograms     nothing                          encrypted sums of candidates,
                                                                   shuffled and re-randomised
    splits       ..Splits         who divides which node, and its  nothing
                                  own row bitmaps, sealed
    bitmaps      ..Splits         nothing                          its row bitmaps, sealed
    margins      ..Scores         rows at nodes of others, sealed  the same
    leaves       ..Gradients      encrypted leaf values (EINI)     encrypted sums of them
    scores       ..Scores         scores; digest of structures     nothing
    ===========  ===============  ===============================  ==============================

    Every party takes part in every exchange, and every reply names the next step, which the active
    party decides. A level of a tree takes two exchanges, or three where a passive party divides a
    node. Of two children only the one with fewer rows is summed; the other one is parent minus
    child, in plaintext at the active party.

    **Equality.** With the same cuts the trees are those of
    :func:`boosting.engine.pooled.train_pooled` over the joined table, columns of the
    active party first, rows sorted by id; guards
    (``min_leaf``, ``max_purity``) can make a difference where they bite. Columns of text are
    divided by the place of their category in alphabetical order. Default parameters of the booster
    are XGBoost's.

    **Reveals.** See :attr:`reveals`.

    Parameters
    ----------
    active : str
        The silo with the labels.
    rounds : int
    encryption : {"paillier", "elgamal", "plain"}
        ``plain`` shows gradients to passive parties and coordinator; only with ``allow_insecure``.
    key_bits : {2048, 3072, 4096}
    mode : {"standard", "mix", "layered"}
        ``mix``: parties take turns, each tree has the features of one. ``layered``: upper levels
        of every tree from the one passive party, lower ones from the active party.
    complete_secure : int
        First rounds that use the active party's features only; later trees tell passive parties
        nearly as much about labels, see ``docs/threat-model.md``.
    multi_output : bool
        One tree with vector leaves a round for all classes, instead of one a class.
    sampling : {"none", "uniform", "goss", "mvs"}
        Of rows, by the active party; ``none`` leaves it to the booster's ``subsample``.
    sampling_rate, top_rate, other_rate : float
        As in :class:`hedgerow.boosting.engine.sampling.Sampler`.
    alignment : {"psi", "digest"}
        ``digest`` for tables whose rows are the same in the same order already.
    fraction_bits : int
        Of encrypted gradients, below the smaller bound of g and h; 0 for 26 (Paillier), or as
        many as fit (ElGamal).
    min_leaf : int
        Least rows on either side of a passive party's division.
    max_purity : float in (0.5, 1]
        Largest estimated share of one label on either side of a passive party's division, for
        binary tasks; 1 turns the rule off.
    max_split_nodes : int
        Most nodes of a level whose sums a passive party makes, and the active one decrypts, at a
        time: it bounds the memory of both and of their crypto processes. 0 for as many as have
        16,384 candidates together. The model is the same for any value.
    rounds_per_party : int
        Mix: rounds of one party before the next one's turn.
    host_depth, guest_depth : int
        Layered: levels of the passive, then of the active party; they replace ``max_depth``.
    validation : float in [0, 1)
        Share of the rows that is kept from training, scored each round and used to stop early.
    early_stopping_rounds : int
        0 for never.
    inference : {"standard", "eini"}
        How a prediction job scores rows, see ``docs/strategies/secureboost.md``.
    predict_from : str
        Job whose model scores the parties' tables, instead of training.
    warm_start : str
        Job whose model training goes on from.
    allow_insecure : bool
        Allow ``plain``. For tests and measurements.

    References
    ----------
    K. Cheng et al., SecureBoost: a lossless federated learning framework, 2021. W. Chen et al.,
    SecureBoost+, 2021. X. Chen et al., EINI: efficient and interpretable inference, 2021.
    """

    name: ClassVar[str] = "secureboost"
    reveals: ClassVar[str] = (
        "Coordinator: names and sizes (rounded to an eighth) of what parties send, ciphertexts, "
        "scores each round; not the rows, ids, columns, labels or trees. Numbers of exchanges and "
        "of ciphertexts show it the depth of each tree and about how many candidates differ at "
        "its nodes, and who sends bitmaps shows which parties divide nodes of a level, not which "
        "nodes or where. Passive parties: "
        "how many ids each party has and which of their own rows all parties have; the rows of "
        "every node of every tree in which they take part, which of their own candidates won, and "
        "which rows are sampled or held back; rows of one leaf tend to share a label, most of all "
        "in the first trees (complete_secure keeps those to the active party, but later ones tell "
        "nearly as much). Active party: sums "
        "of gradients over the rows on one side of every candidate of a passive party, in secret "
        "order, and which rows the chosen ones send left; not features, thresholds or values, but "
        "how often each anonymous feature divides; how many ids each party has and, with three or "
        "more parties, how many ids each group of parties shares, not which. Silos that collude "
        "with the active party show it their own columns, nothing of others. In mode layered "
        "and mix passive parties see the rows only of the levels and trees that are theirs. With "
        "encryption = plain gradients are readable by passive parties and the coordinator: labels "
        "follow from them."
    )

    active: str
    rounds: int = 10
    encryption: str = "paillier"
    key_bits: int = 2048
    mode: str = "standard"
    complete_secure: int = 0
    multi_output: bool = False
    sampling: str = "none"
    sampling_rate: float = 0.5
    top_rate: float = 0.2
    other_rate: float = 0.1
    alignment: str = "psi"
    fraction_bits: int = 0
    min_leaf: int = 3
    max_purity: float = 0.999
    max_split_nodes: int = 0
    rounds_per_party: int = 1
    host_depth: int = 3
    guest_depth: int = 2
    validation: float = 0.0
    early_stopping_rounds: int = 0
    inference: str = "standard"
    predict_from: str = ""
    warm_start: str = ""
    allow_insecure: bool = False

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.rounds

    def safeguards(self, job: JobParameters) -> Safeguards:
        """Return what a silo's policy asks about."""
        deepest = job.booster.max_depth
        if self.mode == "layered":
            both = self.host_depth + self.guest_depth
            # The first rounds may be the active party's alone, under the booster's own limit.
            unbounded = self.complete_secure and not deepest
            deepest = 0 if unbounded else max(both, deepest if self.complete_secure else 0)
        key_bits = {"paillier": self.key_bits, "plain": 0}.get(self.encryption)
        return Safeguards(deepest, secure=self.encryption != "plain", key_bits=key_bits)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range, or two that clash."""
        from hedgerow.boosting.strategies.secureboost.booster import check_booster

        for key, known in (
            ("encryption", ENCRYPTIONS),
            ("mode", MODES),
            ("alignment", ("psi", "digest")),
            ("inference", ("standard", "eini")),
            ("key_bits", KEY_BITS),
        ):
            if getattr(self, key) not in known:
                hint = ""
                if key == "key_bits":
                    hint = "; a shorter key can be broken"
                raise InvalidJob(
                    f"secureboost.{key}: expected one of {', '.join(map(str, known))}, "
                    f"{getattr(self, key)!r} came{hint}"
                )
        for key, least, most in (
            ("rounds", 1, 1 << 20),
            ("complete_secure", 0, 1 << 20),
            ("fraction_bits", 0, 52),
            ("min_leaf", 1, 1 << 30),
            ("max_purity", 0.5, 1),
            ("max_split_nodes", 0, 1 << 16),
            ("rounds_per_party", 1, 1 << 20),
            ("host_depth", 1, 16),
            ("guest_depth", 1, 16),
            ("validation", 0, 0.9),
            ("early_stopping_rounds", 0, 1 << 20),
        ):
            value = getattr(self, key)
            if not least <= value <= most:
                raise InvalidJob(
                    f"secureboost.{key}: expected a value from {least:g} to {most:g}, "
                    f"{value:g} came"
                )
        if self.encryption == "plain" and not self.allow_insecure:
            raise InvalidJob(
                "secureboost.encryption: plain shows gradients, and with them labels, to all "
                "parties; it needs allow_insecure = true"
            )
        if self.early_stopping_rounds and not self.validation:
            raise InvalidJob("secureboost.early_stopping_rounds: needs a share of validation rows")
        if self.inference == "eini" and self.encryption == "plain":
            raise InvalidJob("secureboost.inference: eini encrypts, encryption = plain does not")
        if self.predict_from and self.warm_start:
            raise InvalidJob("secureboost: predict_from does not train, warm_start does")
        if job.has_test:
            raise InvalidJob("test_data: a vertical job is scored on the parties' own test tables")
        check_booster(job, mode=self.mode, sampling=self.sampling)
        self.sampler(job.booster)
        self._validate_parties(job)
        metrics.check(job.metrics, job.task)

    def _validate_parties(self, job: JobParameters) -> None:
        if not job.silos:
            return
        if self.active not in job.silos:
            raise InvalidJob(
                f"secureboost.active: {self.active!r} is none of the silos {', '.join(job.silos)}"
            )
        self.check_parties(job.silos)

    def check_parties(self, silos: tuple[str, ...]) -> None:
        """Raise :class:`InvalidJob` where so many parties cannot train in this mode."""
        if not 2 <= len(silos) <= MOST_PARTIES:
            raise InvalidJob(
                f"a vertical job has one active and 1 to {MOST_PARTIES - 1} passive parties; "
                f"{len(silos)} silos came"
            )
        if self.mode == "layered" and len(silos) != 2:
            raise InvalidJob("secureboost.mode: layered has one passive party")

    def sampler(self, booster: Booster) -> Sampler:
        """Return how the active party samples rows."""
        from hedgerow.boosting.engine.sampling import Sampler

        if self.sampling == "none":
            return Sampler.of(booster)
        return Sampler(
            self.sampling,
            self.sampling_rate,
            top_rate=self.top_rate,
            other_rate=self.other_rate,
        )

    def turn(self, round: int, parties: tuple[str, ...]) -> Turn:
        """Return who takes part in the trees of a round; ``parties`` has the active one first."""
        if round < self.complete_secure:
            return Turn(())
        if self.mode == "standard":
            return Turn(parties[1:])
        if self.mode == "layered":
            return Turn(parties[1:], own=False, passive_depth=self.host_depth)
        turn = (round - self.complete_secure) // self.rounds_per_party % len(parties)
        return Turn((parties[turn],), own=False) if turn else Turn(())

    async def coordinate(self, hub: Hub, start: CoordinatorStart) -> AsyncIterator[RoundResult]:
        """Relay what parties say to each other, and note the scores of each round."""
        from hedgerow.boosting.strategies.secureboost.courier import Relay

        silos = start.silos
        if Silo(self.active) not in silos:
            raise InvalidJob(f"the active party {self.active!r} takes no part in this job")
        self.check_parties(tuple(str(silo) for silo in silos))
        round = 0
        if start.checkpoint is not None:
            state = json.loads(start.checkpoint)
            if state["final"]:
                return
            round = int(state["round"]) + 1
        relay = Relay(hub, silos, Silo(self.active), round)
        then = KEYS.name
        while then != END:
            if then not in STEPS:
                raise OfferRejected(f"{self.active} named a step {then!r} that does not exist")
            passed = await relay.pass_on(STEPS[then])
            if then == SCORES.name:
                yield self._result(passed.numbers, round, silos, passed.then == END)
                round += 1
                relay.begin_round(round)
            then = passed.then

    def _result(
        self, numbers: Mapping[str, float], round: int, silos: tuple[Silo, ...], final: bool
    ) -> RoundResult:
        scores: dict[str, dict[str, float]] = {}
        for name, value in numbers.items():
            table, dot, metric = name.partition(".")
            if dot:
                scores.setdefault(table, {})[metric] = value
        best = int(numbers.get("best_round", round))
        state = {
            "strategy": self.name,
            "active": self.active,
            "parties": sorted(silos),
            "round": round,
            "best_round": best,
            "final": final,
        }
        return RoundResult(round, json.dumps(state).encode(), scores, silos, final, best)

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run a party's half; its part of the model stays in the silo."""
        from hedgerow.boosting.strategies.secureboost.party import run

        return run(self, link, vault, start)

    def artefact(self, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
        """Return what the coordinator knows of the result: the parts are the parties'."""
        return Artefact({SUMMARY: checkpoint + b"\n"}, SUMMARY)

    def forecast(
        self, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
    ) -> Forecast:
        """Return the bytes of a job whose trees are full."""
        from hedgerow.boosting.strategies.secureboost.forecast import forecast

        return forecast(self, job, schema, n_samples)

    def forecasts(
        self, job: JobParameters, schemas: Mapping[Silo, Schema], n_samples: Mapping[Silo, int]
    ) -> dict[Silo, Forecast]:
        """Return the forecast of each party."""
        from hedgerow.boosting.strategies.secureboost.forecast import forecasts

        return forecasts(self, job, schemas, n_samples)
