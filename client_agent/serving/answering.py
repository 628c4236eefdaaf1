"""A passive party's answers: directions of its own rows, to the parties that its settings name.

Nothing dials in: the agent keeps a stream to the coordinator's relay. A question counts when it is
in a box of a session that the asking party signed, about a model that the settings name for it,
and within its limits. What it reveals is counted in the ledger before it is sent.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import structlog

from hedgerow.boosting.errors import FederationError, LimitReached
from hedgerow.boosting.strategies.secureboost.directions import packed
from hedgerow.boosting.strategies.secureboost.divisions import Divisions
from hedgerow.boosting.strategies.secureboost.model import PassivePart, load_part
from hedgerow.boosting.strategies.secureboost.party import PART
from hedgerow.client_agent.config import AgentSettings, Answers
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.serving.meter import RowMeter, renew
from hedgerow.client_agent.serving.rows import PartColumns, RowStore, file_stamp, open_rows, stamp
from hedgerow.services.process import settings
from hedgerow.services.wire.answers import Answer, Question

log = structlog.get_logger()

LOOK_SECONDS = 2.0
"""Time between two looks for other settings, parts and rows."""
KIND = "Directions"
REVEALS = (
    "Of each row that it names, the active party learns whether this party has it, and at each of "
    "this party's divisions in the model, not only on the row's path, on which side it is (in a "
    "tree of the mode mix that is kept by its leaves, which of them it reaches); not values, "
    "features' names or thresholds."
)


@dataclass(frozen=True, slots=True)
class Answered:
    """A part that answers: its divisions and the rows it has."""

    model: str
    divisions: Divisions
    rows: RowStore


class Answering:
    """What an agent answers; follows its settings, its parts and its rows.

    Parameters
    ----------
    file : Path or None
        Of the settings: its table ``[answers]`` takes effect when it changes.
    """

    def __init__(
        self, config: AgentSettings, file: Path | None, silo: str, ledger: SiloLedger
    ) -> None:
        self._config, self._file, self._silo, self._ledger = config, file, silo, ledger
        self._answers: Answers | None = None
        self._read: tuple[int, ...] = ()
        self._models: dict[bytes, Answered] = {}
        self._meters: dict[str, RowMeter] = {}
        self._stamp: object = None
        self._said = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="answers", daemon=True)

    def start(self) -> Answering:
        """Load what there is, and begin to follow it."""
        self.look()
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; what was sent gets its lines."""
        self._ended.set()
        self._thread.join(10.0)
        for meter in self._meters.values():
            meter.close()

    def may_ask(self, asker: str) -> bool:
        """Whether a party may open a session."""
        return self._answers is not None and asker in self._answers.askers

    def answer(self, asker: str, question: Question) -> Answer:
        """Return the answer to a question; also where it is a refusal."""
        rules = None if self._answers is None else self._answers.askers.get(asker)
        model = question.model.hex()
        if rules is None or model not in rules.models:
            return Answer(refusal=f"{self._silo} does not answer {asker} about model {model[:12]}")
        known = self._models.get(question.model)
        if known is None:
            return Answer(refusal=f"{self._silo} has no part of model {model[:12]}")
        if not question.ids:
            return Answer(n_divisions=len(known.divisions.nodes))
        try:
            meter = self._meters[asker]
            meter.admit(known.model, len(question.ids))
            X, present = known.rows.find(question.ids)
        except LimitReached as error:
            return Answer(refusal=f"{self._silo}: {error}", later=True)
        except FederationError as error:
            log.error("no answer", asker=asker, why=str(error))
            return Answer(refusal=f"{self._silo} cannot answer now", later=True)
        directions = known.divisions.directions(X)
        directions[~present] = False
        data = packed(directions)
        meter.sent(known.model, data)
        unknown = tuple((~present).nonzero()[0].tolist())
        return Answer(data, len(known.divisions.nodes), unknown)

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Take up what has changed; what cannot be used leaves what was."""
        try:
            # A caller without quota is refused before parts and rows are looked at.
            read = file_stamp(self._file)
            if self._file is not None and read != self._read:
                self._config = settings.load(AgentSettings, self._file)
                self._read = read
            answers = self._config.answers
            if answers is not self._answers:
                askers = answers.askers if answers else {}
                renew(self._meters, self._ledger, KIND, REVEALS, askers)
                self._answers = answers
            stamp = self._stamps()
            if stamp == self._stamp:
                return
            models = {} if answers is None else self._loaded(answers)
        except (FederationError, OSError) as error:  # retried: a database may be away
            if str(error) != self._said:
                self._said = str(error)
                log.error("answers not read again", why=self._said)
            return
        self._models, self._stamp, self._said = models, stamp, ""
        log.info("answers", models=[digest.hex()[:12] for digest in models])

    def _parts(self) -> list[Path]:
        answers = self._config.answers
        folder = self._config.state / "jobs"
        if answers is not None and answers.parts is not None:
            folder = answers.parts
        return sorted(folder.rglob(PART))

    def _stamps(self) -> object:
        answers = self._config.answers
        rows = (answers.rows if answers else None) or self._config.data
        return self._read, [file_stamp(path) for path in self._parts()], stamp(rows)

    def _loaded(self, answers: Answers) -> dict[bytes, Answered]:
        wanted = {digest for rules in answers.askers.values() for digest in rules.models}
        found: dict[bytes, Answered] = {}
        for path in self._parts():
            part = load_part(path.read_bytes())
            if not isinstance(part, PassivePart) or part.digest not in wanted:
                continue
            columns = PartColumns(part.features, part.categories)
            rows = open_rows(answers.rows or self._config.data, columns)
            found[bytes.fromhex(part.digest)] = Answered(part.model, Divisions.of(part), rows)
        missing = wanted - {digest.hex() for digest in found}
        if missing:
            log.warning("no part of a model", models=sorted(d[:12] for d in missing))
        return found
