"""What a strategy's half keeps of a job inside its rounds, as files beside the checkpoints."""

from __future__ import annotations

import threading

from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed
from hedgerow.coordinator.server.waiting import StorePatience


class JobJournal:
    """What a strategy's half keeps of a job inside its rounds.

    See :class:`hedgerow.boosting.ports.Journal`.

    Parameters
    ----------
    patience : StorePatience, optional
        How long a record that cannot be stored is retried.
    """

    def __init__(
        self, artefacts: Artefacts, job_id: str, patience: StorePatience | None = None
    ) -> None:
        self._artefacts = artefacts
        self._job_id = job_id
        self._patience = patience
        self._known: dict[str, bytes] | None = None
        self._closed = threading.Event()

    def load(self) -> JobJournal:
        """Read all records, so that recalling them later does not wait for the store."""
        names = (name.partition("journal/") for name in self._artefacts.list(self._job_id))
        self._known = {key: self._read(key) for before, found, key in names if found and not before}
        return self

    def remember(self, key: str, value: bytes) -> None:
        """Store a record durably; with a patience, wait while the store fails."""
        patience = self._patience
        while True:
            try:
                self._artefacts.write_checked(self._job_id, f"journal/{key}", value)
                break
            except StorageFailed as error:
                if patience is None or self._closed.wait(patience.failed(error)):
                    raise
        if patience is not None:
            patience.worked()
        if self._known is not None:
            self._known[key] = value

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""
        if self._known is not None:
            return self._known.get(key)
        if not self._artefacts.exists(self._job_id, f"journal/{key}"):
            return None
        return self._read(key)

    def _read(self, key: str) -> bytes:
        return self._artefacts.read_checked(self._job_id, f"journal/{key}")

    def close(self) -> None:
        """Wait no longer: the attempt has ended."""
        self._closed.set()
