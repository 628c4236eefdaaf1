"""Changes of jobs for any number of pages: one thread watches a job, however many look at it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator

from hedgerow.boosting.errors import FederationError
from hedgerow.services.rpc.jobs import JobClient

Told = tuple[str, str]
QUIET_SECONDS = 15.0
"""How often a page gets a comment where nothing is new: so a closed one is noticed, too."""


class _Page:
    """Changes that a page has not received yet."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Told] = asyncio.Queue()

    def tell(self, told: Told) -> None:
        """Queue a change for the page; from any thread."""
        self._loop.call_soon_threadsafe(self._queue, told)

    def _queue(self, told: Told) -> None:
        # The page asks for the job as it is: changes that it has not taken yet are one.
        if told[0] != "change" or self._waiting.empty():
            self._waiting.put_nowait(told)

    async def next(self) -> Told | None:
        """Return the next change; None where there was none for a while."""
        try:
            return await asyncio.wait_for(self._waiting.get(), QUIET_SECONDS)
        except TimeoutError:
            return None


class Watching:
    """Threads that watch jobs for pages.

    A page that is closed leaves at once; the thread ends with the job, or at the first change that
    nobody looks at any more.
    """

    def __init__(self, client: JobClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._pages: dict[str, set[_Page]] = {}

    async def events(self, job_id: str) -> AsyncIterator[str]:
        """Yield server-sent events: ``change`` each time; last ``end``, or ``trouble`` with why."""
        page = _Page()
        with self._lock:
            pages = self._pages.get(job_id)
            if pages is None:
                pages = self._pages[job_id] = set()
                threading.Thread(target=self._watch, args=(job_id, pages), daemon=True).start()
            pages.add(page)
        page.tell(("change", ""))
        try:
            last = False
            while not last:
                told = await page.next()
                last = told is not None and told[0] != "change"
                yield f"event: {told[0]}\ndata: {json.dumps(told[1])}\n\n" if told else ": \n\n"
        finally:
            with self._lock:
                pages.discard(page)

    def _watch(self, job_id: str, pages: set[_Page]) -> None:
        last = ("trouble", "the console watches this job no more: load the page again")
        try:
            for _ in self._client.watch(job_id):
                with self._lock:
                    if not pages:
                        del self._pages[job_id]
                        return
                    for page in pages:
                        page.tell(("change", ""))
            last = ("end", "")
        except FederationError as error:
            last = ("trouble", str(error))
        finally:
            with self._lock:
                if self._pages.get(job_id) is pages:
                    del self._pages[job_id]
                for page in pages:
                    page.tell(last)
