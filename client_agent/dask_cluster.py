"""The connection to the Dask cluster of a silo's own organisation.

Scheduler and workers see the silo's data, so they belong to the same organisation.
"""

from __future__ import annotations

import threading
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from hedgerow.boosting.errors import FederationError

if TYPE_CHECKING:
    import distributed

CONNECT_SECONDS = 20.0
"""For a scheduler to respond, and for a cluster without workers to get one."""


class DaskCluster:
    """A Dask cluster, connected to when it is first used and again when the connection is lost.

    Parameters
    ----------
    scheduler : str
        ``tcp://HOST:PORT`` or ``tls://HOST:PORT``; Dask's own settings name the files for TLS.

    Raises
    ------
    FederationError
        The package ``dask`` is not installed.
    """

    def __init__(self, scheduler: str) -> None:
        try:
            import distributed  # noqa: F401
            import xgboost.dask  # noqa: F401
        except ImportError as error:
            raise FederationError(
                f"dask = {scheduler!r} needs the extra hedgerow[dask]: {error}"
            ) from error
        self._scheduler = scheduler
        self._client: distributed.Client | None = None
        self._lock = threading.Lock()

    def client(self) -> distributed.Client:
        """Return a client that is connected, the same one while it stays so.

        Raises
        ------
        FederationError
            No scheduler responds.
        """
        import distributed

        with self._lock:
            if self._client is None or self._client.status != "running":
                self._disconnect()
                try:
                    self._client = distributed.Client(
                        self._scheduler, timeout=CONNECT_SECONDS, set_as_default=False
                    )
                except OSError as error:
                    raise FederationError(
                        f"no Dask scheduler responds at {self._scheduler}"
                    ) from error
            return self._client

    def workers(self) -> dict[str, int]:
        """Return the number of threads of each worker by its address, sorted.

        Raises
        ------
        FederationError
            No scheduler responds, or no worker comes in time.
        """
        client = self.client()
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise FederationError("the Dask cluster has no workers") from None
        except OSError as error:
            raise lost() from error
        found: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
        return {address: found[address]["nthreads"] for address in sorted(found)}

    def check(self) -> None:
        """Check that workers can bin and sum rows as this process does.

        Raises
        ------
        FederationError
            No scheduler responds, it has no workers, or one has another version of Hedgerow.
        """
        self.workers()
        own = version("hedgerow")
        try:
            found = self.client().run(version, "hedgerow", on_error="return")
        except OSError as error:
            raise lost() from error
        for theirs in found.values():
            without = isinstance(theirs, PackageNotFoundError)
            if isinstance(theirs, Exception) and not without:
                raise lost() from theirs
            if theirs != own:
                raise FederationError(
                    f"Dask workers: expected hedgerow {own} on each, as in the agent, received "
                    + ("a worker without hedgerow" if without else f"version {theirs}")
                )

    def close(self) -> None:
        """Disconnect; what was sent is released."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def lost() -> FederationError:
    """Return the error of a connection that was lost."""
    return FederationError("the connection to the Dask cluster was lost")
