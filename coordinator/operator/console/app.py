"""The console's pages and what they do: each is calls of one operator at one coordinator."""

from __future__ import annotations

import importlib
import json
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from altair.utils import schemapi
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from hedgerow.boosting.errors import FederationError, InvalidJob, Unauthorised
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.selection import FILE, SELECT, Selection
from hedgerow.coordinator.operator.console.columns import columns_of, with_columns
from hedgerow.coordinator.operator.console.guard import (
    REPORT,
    USER,
    form_token,
    read_form,
    who,
)
from hedgerow.coordinator.operator.console.seen import (
    SENT_HEADS,
    approvals_of,
    asks_of,
    downloaded,
    events_of,
    example_forest,
    example_view,
    progress_of,
    row_of,
    run_of,
    sent_of,
    why_of,
)
from hedgerow.coordinator.operator.console.watching import Watching
from hedgerow.coordinator.operator.exploring import job_file as training_job
from hedgerow.coordinator.operator.exploring import proposal
from hedgerow.coordinator.operator.library.clients import shown
from hedgerow.coordinator.operator.preflight import MARKS, remarks
from hedgerow.coordinator.operator.report import page as report
from hedgerow.coordinator.operator.report.explored import explored
from hedgerow.coordinator.operator.report.figures import importance
from hedgerow.coordinator.operator.report.overview import overview
from hedgerow.coordinator.operator.report.runs import FinishedRun
from hedgerow.coordinator.operator.report.trees import DrawnTrees, forest_of
from hedgerow.services.identity.certificates import IdentityPaths, Subject, load_identity
from hedgerow.services.process.trail import NOWHERE, Trail
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_reference import keys_of
from hedgerow.services.wire.job_view import CHECKS, UNDER_WAY, JobState, JobView, PlanView
from hedgerow.services.wire.signed_job import READERS

PAGE_JOBS = 25
MOST_COMPARED = 8
MOST_PLANS = 256
"""Plans of jobs that are kept; a plan of an unfinished job is what its silos are now."""
STATES: dict[str, tuple[JobState, ...]] = {
    "under way": UNDER_WAY,
    **{state.lower(): (state,) for state in JobState if state.ended},
}
"""What the list of jobs may be limited to."""
MOST_DRAWN = 16
"""Pages of ended jobs that are kept; about 5 MB each of 200 silos and 300 rounds."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")


def template(strategy: str) -> str:
    """Return a job to begin with: the keys of its strategy and booster, as they are if left out."""
    given = {"number": "1.0", "text": '"NAME"'}
    lines = ['name = "first"', f'strategy = "{strategy}"', 'label = "label"', "min_silos = 3"]
    keys = keys_of(strategy)
    for table in (strategy, "booster"):
        lines += ["", f"[{table}]"]
        for key in (one for one in keys if one.table == table):
            required = key.default == "required"
            value = given[key.kind] if required else key.default
            lines.append(f"{'' if required else '# '}{key.key} = {value}  # {key.kind}")
    return "\n".join([*lines, ""])


class Console:
    """The pages of one operator.

    Parameters
    ----------
    about : str
        Who asks whom, for the foot of each page.
    trail : Trail, optional
        Gets who changes or downloads something.
    operator : str
        By whose certificate it is done.
    """

    def __init__(
        self, client: JobClient, about: str, trail: Trail = NOWHERE, operator: str = ""
    ) -> None:
        import jinja2

        self._client, self._trail, self._operator = client, trail, operator
        self._watching = Watching(client)
        self._token = form_token(secrets.token_bytes(32))
        self._plans: dict[str, PlanView | None] = {}
        self._lock = threading.Lock()
        self._drawn: dict[tuple[str, ...], tuple[tuple[JobView, ...], Response]] = {}
        self._last: tuple[JobView | None, dict[str, Any]] = (None, {})
        self._templates = report.templates(
            jinja2.PackageLoader("hedgerow.coordinator.operator.console", "pages"),
            jinja2.PackageLoader("hedgerow.coordinator.operator.report", "page"),
        )
        self._templates.globals |= {"about": about, "token": self._token, "statistics": FILE}

    @property
    def routes(self) -> list[Route]:
        """All addresses."""
        return [
            Route("/", self.federation),
            Route("/jobs", self.jobs),
            Route("/jobs/{job_id}", self.job),
            Route("/jobs/{job_id}/live", self.live),
            Route("/jobs/{job_id}/events", self.events),
            Route("/jobs/{job_id}/report", self.report),
            Route("/jobs/{job_id}/trees", self.trees),
            Route("/jobs/{job_id}/explored", self.explored),
            Route("/jobs/{job_id}/ledger", self.ledger),
            Route("/jobs/{job_id}/files/{name}", self.file),
            Route("/jobs/{job_id}/approve", self.approve, methods=["POST"]),
            Route("/jobs/{job_id}/cancel", self.cancel, methods=["POST"]),
            Route("/jobs/{job_id}/delete", self.delete, methods=["POST"]),
            Route("/compare", self.compare),
            Route("/submit", self.draft),
            Route("/submit", self.submit, methods=["POST"]),
            Route("/static/{name}", self.static),
        ]

    def warm_up(self) -> None:
        """Draw what first pages would wait for; in a thread the report, with its script."""
        importlib.import_module("xgboost")
        for name in self._templates.list_templates(("html",)):
            self._templates.get_template(name)
        report.load_page()
        view = example_view()
        self._plans[view.job_id] = None
        self._page("job.html", to_approve=None, **self._shown(view))
        self._page(
            "trees.html", **_shown_of(view, run_of(view, None, time.time()), example_forest(), 1)
        )
        threading.Thread(target=self._reported, args=(view,), daemon=True).start()

    def _page(self, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(name).render(**values), status)

    def failed(self, request: Request, error: Exception) -> Response:
        """Say what went wrong, where a page cannot be made."""
        status = 404 if isinstance(error, NotFound) else 502
        # Not the answer to a form: to load its address again would be another request.
        again = status == 502 and request.method == "GET"
        return self._page("failed.html", status, why=str(error), again=again)

    def federation(self, request: Request) -> Response:
        """Show all silos."""
        silos = [{**shown(one), "policy": ", ".join(one.policy)} for one in self._client.silos()]
        return self._page("federation.html", silos=silos)

    def jobs(self, request: Request) -> Response:
        """Show a page of jobs, newest first."""
        asked = request.query_params.get("state", "")
        states = STATES.get(asked, ())
        views, after = self._client.page(PAGE_JOBS, request.query_params.get("after", ""), states)
        rows = [row_of(view, time.time()) for view in views]
        return self._page("jobs.html", jobs=rows, after=after, asked=asked, states=[*STATES])

    def job(self, request: Request) -> Response:
        """Show a job, which the page then keeps up to date."""

        def made(view: JobView) -> Response:
            asks = asks_of(view, self._operator)
            opened = self._client.signed(view.job_id) if asks else None
            signed = opened and (opened.signed.digest.hex(), job_file.dump(opened.statement.spec))
            return self._page("job.html", to_approve=signed, **self._shown(view))

        return self._of_job("job", request, made)

    async def approve(self, request: Request) -> Response:
        """Approve a job, as the page has shown it."""
        fields = await read_form(request, self._token)
        if fields is None:
            return PlainTextResponse("this form is not of this console: load the page again", 403)
        return await run_in_threadpool(self._approve, request, fields.get("digest", ""))

    def _approve(self, request: Request, digest: str) -> Response:
        job_id = request.path_params["job_id"]
        with self._acting("job-approve", request):
            opened = self._client.signed(job_id)
            if opened.signed.digest.hex() != digest:
                raise InvalidJob(
                    f"job {job_id} is not the one that the page has shown: load it again"
                )
            self._client.approve(opened)
        _note(request, "approved", job_id)
        return RedirectResponse(f"/jobs/{job_id}", 303)

    def _of_job(self, kind: str, request: Request, make: Callable[[JobView], Response]) -> Response:
        view = self._client.get(request.path_params["job_id"])
        return self._kept(kind, (view,), lambda: make(view))

    def live(self, request: Request) -> Response:
        """Return what of a job's page changes."""

        def made(view: JobView) -> Response:
            shown = self._shown(view)
            html = self._templates.get_template("now.html").render(**shown)
            return JSONResponse({"html": html, "specs": shown["specs"]})

        return self._of_job("live", request, made)

    def _kept(
        self, kind: str, views: tuple[JobView, ...], make: Callable[[], Response]
    ) -> Response:
        """Return a page of jobs; one of ended jobs is drawn again only when one has changed."""
        key = (kind, *(view.job_id for view in views))
        with self._lock:
            views_then, page = self._drawn.pop(key, ((), None))
        if page is None or views_then != views:
            page = make()
        if all(view.ended for view in views):
            with self._lock:
                while len(self._drawn) >= MOST_DRAWN:
                    del self._drawn[next(iter(self._drawn))]
                self._drawn[key] = (views, page)
        return Response(page.body, page.status_code, page.headers)

    def _shown(self, view: JobView) -> dict[str, Any]:
        """Return what a job's page is made of; the page asks again for what of it changes."""
        with self._lock:
            view_then, shown = self._last
        if view_then != view:
            shown = self._figures(view)
            with self._lock:
                self._last = view, shown
        elif not view.ended:  # while it waits nothing changes but the time that it takes
            shown = shown | {"overview": overview([run_of(view, None, time.time())])}
        return shown

    def _figures(self, view: JobView) -> dict[str, Any]:
        run = run_of(view, self._plan(view), time.time())
        sections = report.sections_of([run], [])
        return {
            "job": row_of(view),
            "view": view,
            "progress": None if view.ended else progress_of(view),
            "runs": [run],
            "overview": overview([run]),
            "sections": sections,
            "specs": report.specs_of(sections),
            "approvals": approvals_of(view),
            "events": events_of(view),
            "why": why_of(view),
        }

    def _plan(self, view: JobView) -> PlanView | None:
        """Return the plan of a job as it was when the console first looked; none if it has none."""
        if view.job_id not in self._plans:
            while len(self._plans) >= MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            try:
                self._plans[view.job_id] = self._client.plan(view.spec)
            except FederationError:
                self._plans[view.job_id] = None
        return self._plans[view.job_id]

    async def events(self, request: Request) -> Response:
        """Tell a page each time that its job changes, until the job has ended."""
        told = self._watching.events(request.path_params["job_id"])
        return StreamingResponse(told, media_type="text/event-stream")

    def report(self, request: Request) -> Response:
        """Show the report of a finished job, trees and all."""
        headers = {"content-security-policy": REPORT}
        with self._acting("model-download", request):
            return self._of_job(
                "report", request, lambda view: HTMLResponse(self._reported(view), headers=headers)
            )

    def _acting(self, action: str, request: Request) -> Any:
        job_id = request.path_params.get("job_id", "")
        actor = who(request.scope, self._operator)
        return self._trail.action(action, actor, job=job_id)

    def _reported(self, view: JobView) -> str:
        with tempfile.TemporaryDirectory(prefix="hedgerow-console-") as folder:
            return report.render([downloaded(self._client, view, Path(folder))])

    def trees(self, request: Request) -> Response:
        """Show what the features give to a finished job's trees, and one of these."""
        asked = request.query_params.get("tree", "")
        number = max(int(asked), 1) if re.fullmatch("[0-9]{1,7}", asked) else 1
        with self._acting("model-download", request):
            return self._of_job(f"tree {number}", request, lambda view: self._forest(view, number))

    def _forest(self, view: JobView, number: int) -> Response:
        with tempfile.TemporaryDirectory(prefix="hedgerow-console-") as name:
            run = downloaded(self._client, replace(view, rounds=()), Path(name))
            forest = forest_of(run, slice(number - 1, number))
        if forest and not forest.drawings:
            raise NotFound(f"the model has {len(forest.names)} trees, none of number {number}")
        return self._page("trees.html", **_shown_of(view, run, forest, number))

    def explored(self, request: Request) -> Response:
        """Show the statistics of a finished explore job."""
        with self._acting("model-download", request):
            return self._of_job("explored", request, self._explored)

    def _explored(self, view: JobView) -> Response:
        with tempfile.TemporaryDirectory(prefix="hedgerow-console-") as name:
            run = downloaded(self._client, replace(view, rounds=()), Path(name))
        sections = [("statistics", "Statistics", explored([run]))]
        return self._page(
            "explored.html",
            job=row_of(view),
            told=run.statistics,
            select=SELECT,
            proposal=proposal,
            sections=sections,
            specs=report.specs_of(sections),
        )

    def _job_after(self, request: Request) -> str:
        """Return a job file that trains on the columns that an explore job's statistics choose."""
        job_id = request.query_params["explored"]
        rule = request.query_params.get("select", SELECT)
        with self._acting("model-download", request) as about:
            about["hedgerow.job"], about["file.name"] = job_id, FILE
            _, data = self._client.download(job_id, FILE)
        told = json.loads(data)
        return training_job(
            told, self._client.get(job_id).spec, Selection.parse(rule).of(told), rule
        )

    def file(self, request: Request) -> Response:
        """Return a file of a job's result."""
        asked = request.path_params["name"]
        with self._acting("model-download", request) as about:
            about["file.name"] = asked
            _, data = self._client.download(request.path_params["job_id"], asked)
        # The coordinator has a file of this name, which is of letters, digits and _.@- only.
        headers = {"content-disposition": f'attachment; filename="{asked}"'}
        return Response(data, media_type="application/octet-stream", headers=headers)

    def ledger(self, request: Request) -> Response:
        """Show what each silo says that it sent for a job, beside what was counted."""

        def made(view: JobView) -> Response:
            rows = sent_of(view)
            return self._page("ledger.html", job=row_of(view), rows=rows, heads=SENT_HEADS)

        return self._of_job("ledger", request, made)

    def compare(self, request: Request) -> Response:
        """Show several jobs side by side."""
        chosen = list(dict.fromkeys(request.query_params.getlist("job")))
        views = [self._client.get(job_id) for job_id in chosen[:MOST_COMPARED]]
        more = f"compare without {len(chosen) - len(views)}"
        return self._kept(more, tuple(views), lambda: self._compared(views, len(chosen)))

    def _compared(self, views: list[JobView], n_chosen: int) -> Response:
        names = [row_of(view)["name"] for view in views]
        runs = [
            run_of(
                view,
                None,
                time.time(),
                name if names.count(name) == 1 else f"{name} {view.job_id[:6]}",
            )
            for view, name in zip(views, names, strict=True)
        ]
        sections = report.sections_of(runs, []) if runs else []
        return self._page(
            "compare.html",
            n_left_out=n_chosen - len(views),
            runs=runs,
            overview=overview(runs),
            sections=sections,
            specs=report.specs_of(sections),
        )

    def draft(self, request: Request) -> Response:
        """Show a job to fill in: of a ``strategy``, an earlier one, or after an explore job."""
        earlier = request.query_params.get("from", "")
        if "explored" in request.query_params:
            try:
                return self._draft(self._job_after(request))
            except InvalidJob as error:
                return self._draft(template("histogram"), 422, error=str(error))
        if earlier:
            return self._draft(job_file.dump(self._client.get(earlier).spec))
        return self._draft(template(request.query_params.get("strategy", "histogram")))

    def _draft(self, text: str, status: int = 200, **more: Any) -> Response:
        keys = {table: job_file.keys(table) for table in ("", "booster", *STRATEGIES.installed())}
        values: dict[str, Any] = {"error": "", "found": None, "text": text, "keys": keys} | more
        try:
            values["columns"] = columns_of(self._client.silos(columns=True), text)
        except FederationError:  # what is to be seen is the text, and what was said of it
            values["columns"] = None
        return self._page(
            "submit.html", status, **values, checks=CHECKS, marks=MARKS, remarks=remarks
        )

    async def submit(self, request: Request) -> Response:
        """Check a job with its silos, or sign and submit it."""
        fields = await read_form(request, self._token)
        if fields is None:
            return PlainTextResponse("this form is not of this console: load the page again", 403)
        return await run_in_threadpool(self._submit, request, fields)

    def _submit(self, request: Request, fields: dict[str, str]) -> Response:
        text = fields.get("job", "").replace("\r\n", "\n")
        try:
            if fields.get("do") == "columns":
                chosen = fields.get("feature", "").splitlines()
                return self._draft(with_columns(text, fields.get("label", ""), chosen))
            spec = job_file.parse(text)
            found = self._client.preflight(spec, patience_seconds=20.0)
            if fields.get("do") == "submit" and not found.refusal:
                with self._acting("job-submit", request) as about:
                    job_id = about["hedgerow.job"] = self._client.create(spec)
                _note(request, "submitted", job_id)
                return RedirectResponse(f"/jobs/{job_id}", 303)
        except FederationError as error:
            return self._draft(text, 422, error=str(error))
        return self._draft(text, found=found)

    async def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        to = f"/jobs/{request.path_params['job_id']}"
        return await self._changed(request, "job-cancel", "cancelled", self._client.cancel, to)

    async def delete(self, request: Request) -> Response:
        """Delete a job that has ended."""
        return await self._changed(request, "job-delete", "deleted", self._delete, "/jobs")

    def _delete(self, job_id: str) -> None:
        self._client.delete(job_id)
        with self._lock:
            self._last = (None, {})
            self._plans.pop(job_id, None)
            for key in [key for key in self._drawn if job_id in key]:
                del self._drawn[key]

    async def _changed(
        self, request: Request, action: str, done: str, change: Callable[[str], object], to: str
    ) -> Response:
        if await read_form(request, self._token) is None:
            return PlainTextResponse("this form is not of this console: load the page again", 403)
        job_id = request.path_params["job_id"]

        def act() -> None:
            with self._acting(action, request):
                change(job_id)

        await run_in_threadpool(act)
        _note(request, done, job_id)
        return RedirectResponse(to, 303)

    def static(self, request: Request) -> Response:
        """Return a script or a style sheet."""
        name = request.path_params["name"]
        if name not in STATIC:
            return PlainTextResponse("there is no such file", 404)
        kind, read = STATIC[name]
        return Response(read(), media_type=kind, headers={"cache-control": "max-age=3600"})


def _shown_of(
    view: JobView, run: FinishedRun, forest: DrawnTrees | None, number: int
) -> dict[str, Any]:
    """Return what a job's page of trees is made of."""
    found = None if forest is None else importance([(run, forest)])
    sections = [] if found is None else [("features", "Features", [found])]
    return {
        "job": row_of(view),
        "forest": forest,
        "number": number,
        "sections": sections,
        "specs": report.specs_of(sections),
    }


def _own(name: str) -> str:
    return (Path(__file__).parent / "pages" / name).read_text(encoding="utf-8")


STATIC: dict[str, tuple[str, Callable[[], str]]] = {
    "vega.js": ("text/javascript", report.vega),
    "report.css": ("text/css", lambda: report.asset("page.css")),
    "console.css": ("text/css", lambda: _own("console.css")),
    "console.js": ("text/javascript", lambda: _own("console.js")),
}


def make_app(
    client: JobClient, own: Subject, address: str, trail: Trail = NOWHERE, *, warm: bool = True
) -> ASGIApp:
    """Return the pages of one operator as an application, which a guard must be before."""
    schemapi.disable_debug_mode()  # that plots are sound Vega-Lite is for the tests to check
    console = Console(client, f"{own.role} {own.name} at {address}", trail, own.name)
    if warm:
        console.warm_up()
    return Starlette(routes=console.routes, exception_handlers={FederationError: console.failed})


class PagesOfUsers:
    """Pages of each user who signs in, by the operator's certificate that is theirs.

    Parameters
    ----------
    folder : Path
        Has a folder of each user's name with tls.key, tls.crt and ca.crt.
    make : callable
        Returns the pages of an identity.
    """

    def __init__(self, folder: Path, make: Callable[[Path, Subject], ASGIApp]) -> None:
        self._folder, self._make = folder, make
        self._made: dict[str, tuple[object, ASGIApp]] = {}

    def __call__(self, user: str) -> ASGIApp:
        """Return a user's pages; of a certificate that was replaced, new ones.

        Raises
        ------
        FederationError
            The user has no certificate here, or one by which nobody may see jobs.
        """
        paths = IdentityPaths.of(self._folder / user)
        if not _USER.fullmatch(user) or not paths.certificate.is_file():
            self._made.pop(user, None)
            raise Unauthorised(f"user {user[:200]!r} has no operator's certificate here (--users)")
        stamp = paths.stamp()
        if self._made.get(user, ((), None))[0] != stamp:
            own = load_identity(paths, time.time())
            if own.role not in READERS:
                raise Unauthorised(f"the certificate of user {user} is of {own.role} {own.name}")
            self._made[user] = stamp, self._make(self._folder / user, own)
        return self._made[user][1]


def _note(request: Request, what: str, job_id: str) -> None:
    """Log who changed something: behind a sign-on the operator's name says too little."""
    if USER in request.scope:
        structlog.get_logger().info(what, job=job_id, user=request.scope[USER][:200])
