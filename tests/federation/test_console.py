"""The console in a real browser, before a federation of real processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from hedgerow.boosting.exchange import Discloses
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.coordinator.operator.console.app import template
from hedgerow.services.process.ledgers import verify
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_reference import keys_of
from tests.federation.consoles import JOB, console
from tests.federation.processes import PATIENCE_SECONDS, Federation, federation, wait_until
from tests.late import Late

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright: Any = Late("playwright.sync_api")

PATIENCE = PATIENCE_SECONDS * 1000
AXE = Path(__file__).parent / "axe"


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("console")
    with federation(folder, 3, 200, start=False, lease_seconds=4.0) as made:
        made.start_coordinator()
        for silo in made.silos:
            may_send = [one.value for one in Discloses]
            policy = {"announce_columns": silo != "s2", "may_send": may_send}
            made.start_agent(silo, policy=policy)
        yield made


@pytest.fixture(scope="module")
def address(fed: Federation) -> Iterator[str]:
    """What ``hedgerow console`` prints."""
    with console(fed, "--listen", "127.0.0.1:0") as (printed, process):
        yield printed
    assert process.stderr
    assert process.stderr.read() == ""


@dataclass
class Seen:
    """A page, and what it complained about or asked for."""

    page: Page
    home: str
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.home + path)
        return self.page

    def job(self) -> str:
        return self.page.url.rpartition("/")[2]

    def submit(self, text: str) -> str:
        self.open("/submit").fill("#job", text)
        self.page.click("text=Sign and submit")
        self.page.wait_for_url(re.compile("/jobs/"))
        return self.job()


@pytest.fixture
def seen(browser: Browser, address: str) -> Iterator[Seen]:
    playwright.expect.set_options(timeout=PATIENCE)
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    home = "{0.scheme}://{0.netloc}".format(urlsplit(address))
    made = Seen(context.new_page(), home)
    made.page.on("console", lambda message: made.complaints.append(message.text))
    made.page.on("pageerror", lambda error: made.complaints.append(str(error)))

    def asked(request: Any) -> None:
        if not request.url.startswith((home, "data:")):
            made.strangers.append(request.url)

    made.page.on("request", asked)
    made.page.goto(address)
    assert made.page.url == home + "/"  # the secret has left the address
    yield made
    context.close()
    assert made.complaints == []
    assert made.strangers == []


@pytest.fixture(scope="module")
def done(fed: Federation) -> list[str]:
    """Two finished jobs."""
    found = []
    for k in (1, 2):
        found.append(fed.submit(JOB.format(name=f"done {k}", rounds=2 + k)))
        assert fed.end(found[-1]).state == "SUCCEEDED"
    return found


@pytest.fixture(scope="module")
def look(fed: Federation) -> str:
    """A finished explore job."""
    text = 'name = "look"\nstrategy = "explore"\nmin_silos = 3\nsilos = ["s0", "s1", "s2"]\n'
    job_id = fed.submit(text)
    assert fed.end(job_id).state == "SUCCEEDED"
    return job_id


def test_an_exploration_is_looked_at_and_leads_to_a_job_of_its_columns(
    seen: Seen, look: str
) -> None:
    page = seen.open(f"/jobs/{look}")
    page.click("text=Statistics")
    page.wait_for_url(re.compile("/explored"))
    page.wait_for_selector("#explore-0-columns svg.marks")
    assert "600 rows of all silos; their counts are multiples of 10" in page.inner_text("main")
    page.click("#groups summary >> nth=0")
    assert page.locator("#groups details[open] tbody tr").count() > 1
    page.fill("#select", "iv > 0.05")
    page.click("text=Write the job")
    page.wait_for_url(re.compile("/submit"))
    text = page.input_value("#job")
    job_file.parse(text)
    assert 'strategy = "histogram"' in text
    assert "\nfeatures = [" in text
    seen.open(f"/submit?explored={look}&select=auc")
    playwright.expect(page.get_by_role("alert")).to_contain_text("received 'auc'")
    assert "422" in seen.complaints.pop()
    seen.open(f"/jobs/{look}/report")
    assert "Information value of each column" in page.content()


def test_a_template_of_each_strategy_is_a_job_with_all_of_its_keys() -> None:
    for strategy in STRATEGIES.installed():
        text = template(strategy)
        job_file.parse(text)
        keys = {one.key for one in keys_of(strategy) if one.table == strategy}
        assert keys <= {*re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE)}


def test_a_job_is_drafted_checked_submitted_and_watched_to_its_end(
    fed: Federation, seen: Seen
) -> None:
    page = seen.open("/submit")
    page.click("nav >> text=dp_tree")
    page.wait_for_url(re.compile("strategy=dp_tree"))
    assert "\nepsilon = " in page.input_value("#job")
    page.fill("#job", JOB.format(name="by browser", rounds=12).replace("max_depth", "max_dept"))
    page.click("text=Ask the silos")
    playwright.expect(page.get_by_role("alert")).to_contain_text("max_depth")
    assert "422" in seen.complaints.pop()  # the browser notes the form's status
    page.fill("#job", JOB.format(name="by browser", rounds=12))
    page.click("text=Ask the silos")
    rows = page.locator("#preflight tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == ["s0", "s1", "s2"]
    assert all("NO" not in row and row.count("ok") == 8 for row in rows)
    assert page.locator("#plan tbody tr").count() >= 3
    page.click("text=Sign and submit")
    page.wait_for_url(re.compile("/jobs/"))
    job_id = seen.job()
    playwright.expect(page.locator("#now .state").first).to_have_text("succeeded")
    # The page of a running job loads that of the finished one.
    playwright.expect(page.locator("#now")).to_have_attribute("data-live", "")
    view = fed.client.get(job_id)
    assert len(view.rounds) == 12
    shown = page.eval_on_selector_all(
        "#quality-auc tbody tr", "rows => rows.map(r => r.cells[2].dataset.value)"
    )
    assert shown == [repr(finished.metrics["train"]["auc"]) for finished in view.rounds]
    # What the coordinator counted; the size of trees is not what a plan without tables says.
    steps = page.eval_on_selector_all(
        "#bytes-by-step tbody tr",
        "rows => rows.map(r => [...r.cells].map(c => c.dataset.value ?? c.textContent))",
    )
    of_trees = {row[2]: (row[3], row[5]) for row in steps if row[1] == "ExchangeTrees"}
    counted = [step for step in view.steps if step.method == "ExchangeTrees"]
    assert of_trees == {
        "up": (str(sum(step.bytes_up for step in counted)), "–"),
        "down": (str(sum(step.bytes_down for step in counted)), "–"),
    }
    assert "submitted by" in page.inner_text("#events")
    assert page.locator("progress").count() == 0
    with page.expect_download() as loading:
        page.click(f"main >> text={view.model}")
    assert loading.value.suggested_filename == view.model
    assert loading.value.path().read_bytes() == fed.client.download(job_id)[1]
    page.click("text=Ledger")
    page.wait_for_url(re.compile("/ledger"))

    def ledger() -> list[list[str]]:
        page.reload()
        return page.eval_on_selector_all(
            "main tbody tr",
            "rows => rows.map(r => [...r.cells].map(c => c.dataset.value ?? c.textContent.trim()))",
        )

    # What silos sent by the files that they keep, what they reported, what was counted.
    wait_until(lambda: all(row[6] == "equal" for row in ledger()), 60, "all silos have reported")
    by_step = {(row[0], row[1]): (int(row[3]), int(row[5])) for row in ledger()}
    for k in range(3):
        kept = verify(fed.folder / f"state-agent-s{k}/ledger.jsonl").sent(job_id)
        assert by_step[f"s{k}", "all steps"] == (kept, kept)
        assert kept > 0
    whole = sum(step.bytes_up for step in fed.client.get(job_id).steps)
    assert by_step["all silos", "all steps"] == (whole, whole)
    page.go_back()
    page.click("text=Report")
    page.wait_for_function("document.documentElement.dataset.drawn")
    assert "by browser" in page.inner_text("h1")
    assert page.locator(".tree svg").count() >= 1
    page.go_back()
    page.click("main >> text=Trees")
    page.wait_for_selector("#importance svg.marks")
    shares = page.eval_on_selector_all(
        "#importance tbody tr", "rows => rows.map(r => Number(r.cells[2].dataset.value))"
    )
    assert abs(sum(shares) - 1.0) < 1e-9
    names = page.locator("#tree option").all_inner_texts()
    assert len(names) == 36  # each silo's tree of each round
    page.select_option("#tree", label=names[20])
    page.click("text=Show")
    page.wait_for_url(re.compile("tree=21"))
    assert page.inner_text("#trees h2") == f"36 trees: {names[20]}"
    values = page.locator(".tree .leaf text").first.text_content()
    page.click("details >> text=as text")
    assert values
    assert values in page.inner_text(".tree pre")
    page.click("text=Next")
    page.wait_for_url(re.compile("tree=22"))
    assert seen.open(f"/jobs/{job_id}/trees?tree=37").locator("h1").count() == 1
    assert "404" in seen.complaints.pop()


def test_label_and_features_are_chosen_of_the_columns_that_silos_tell(
    fed: Federation, seen: Seen
) -> None:
    page = seen.open("/submit")
    wait_until(lambda: len(fed.client.silos(columns=True)[0].columns) == 5, 60, "they tell")
    assert [one.columns for one in fed.client.silos()] == [()] * 3  # unless they are asked for
    page = seen.open("/submit?strategy=bagging")
    told = page.locator("#columns")
    assert "Told by s0, s1; names only. Not told by s2." in told.inner_text()
    offered = page.locator("#columns option").all_inner_texts()
    assert offered == ["as in the text", "x0", "x1", "x2", "x3", "label"]
    page.select_option("#label", "x3")
    for name in ("x0", "x2"):
        page.get_by_role("checkbox", name=name).check()
    page.fill("#job", page.input_value("#job") + "# mine\n")
    page.click("text=Write them into the job")
    text = page.input_value("#job")
    assert '\nlabel = "x3"\n' in text
    assert '\nfeatures = ["x0", "x2"]\n' in text
    assert text.rstrip().endswith("# mine")
    assert page.input_value("#label") == "x3"
    assert page.get_by_role("checkbox", name="x2").is_checked()
    assert not page.get_by_role("checkbox", name="x1").is_checked()
    assert page.locator("[style]").count() == 0
    page.fill("#job", "label = ")
    page.click("text=Write them into the job")
    playwright.expect(page.get_by_role("alert")).to_contain_text("not TOML")
    assert "422" in seen.complaints.pop()


def test_a_silo_that_goes_is_away_and_awaited_and_the_job_is_cancelled(
    fed: Federation, seen: Seen
) -> None:
    job_id = seen.submit(JOB.format(name="long", rounds=5000))
    page = seen.page
    page.wait_for_selector("#quality-auc tbody tr", state="attached")
    fed.kill("agent-s2")
    try:
        playwright.expect(page.locator("#now")).to_contain_text("s2")

        def row(silo: str) -> str:  # a job's identifier in another row may contain it
            named = page.locator("th", has_text=re.compile(f"^{silo}"))
            return seen.open("/").locator("tbody tr").filter(has=named).inner_text()

        named = page.locator("th", has_text=re.compile("^s2"))
        now_away = seen.open("/").locator("tbody tr").filter(has=named).get_by_text("away")
        playwright.expect(now_away).to_be_visible()  # the page says so by itself
        wait_until(lambda: job_id[:8] in row("s2") or "long" in row("s2"), 60, "s2 is awaited")
        assert "connected" in row("s0")
        seen.open(f"/jobs/{job_id}")
        took = page.locator("tr", has=page.locator("th", has_text=re.compile("^seconds$")))
        assert float(took.first.locator("td").first.inner_text()) > 0
        assert re.search(r"\d+/5000 rounds\s+left [0-9.]+ (s|min|h)", page.inner_text(".progress"))
        assert "operator local at" in page.inner_text(".who")
        page.click("text=Cancel the job")
        playwright.expect(page.locator("#now .state").first).to_have_text("cancelled")
        assert fed.client.get(job_id).state == "CANCELLED"
        assert page.get_by_text("Cancel the job").count() == 0
        page.click("text=Delete the job")
        page.click("text=Delete it for good")
        page.wait_for_url(re.compile("/jobs$"))
        assert job_id not in page.inner_text("main")
        with pytest.raises(NotFound):
            fed.client.get(job_id)
    finally:
        fed.start_agent("s2")


def test_jobs_are_listed_in_pages_and_compared(
    fed: Federation, seen: Seen, done: list[str]
) -> None:
    page = seen.open("/jobs")
    for job_id in done:
        page.check(f"input[value='{job_id}']")
    page.click("text=Compare the ticked jobs")
    heads = page.eval_on_selector_all("#overview thead th", "all => all.map(c => c.textContent)")
    assert set(heads[1:]) == {"done 1", "done 2"}
    page.wait_for_selector("#quality-auc svg.marks")
    names = page.eval_on_selector_all(
        "#quality-auc tbody tr", "rows => rows.map(r => r.cells[0].textContent)"
    )
    assert {name.split(",")[0] for name in names} == {"done 1", "done 2"}
    for k in range(26):  # more than a page has; they end at once
        fed.client.cancel(fed.submit(JOB.format(name=f"many {k}", rounds=2)))
    page = seen.open("/jobs")
    page.click("nav >> text=cancelled")
    page.wait_for_url(re.compile("state=cancelled"))
    states = page.locator("tbody .state").all_inner_texts()
    assert states == ["cancelled"] * 25
    page.click("text=Older jobs")
    page.wait_for_url(re.compile("state=cancelled"))
    assert {*page.locator("tbody .state").all_inner_texts()} == {"cancelled"}
    page.click("nav >> text=succeeded")
    page.wait_for_url(re.compile("state=succeeded"))
    assert all(job_id in page.inner_text("tbody") for job_id in done)
    assert re.search(r"[0-9.]+ s", page.locator(".took").first.inner_text())
    page = seen.open("/jobs")
    assert page.locator("tbody tr").count() == 25
    page.click("text=Older jobs")
    page.wait_for_url(re.compile("after="))
    assert done[0] in page.inner_text("tbody")
    assert page.get_by_text("Older jobs").count() == 0


def test_a_page_that_cannot_be_renewed_says_so_and_goes_on_by_itself(
    fed: Federation, seen: Seen
) -> None:
    page = seen.open("/")
    fed.kill("coordinator")
    playwright.expect(page.locator("#stale")).to_contain_text("may have changed")
    assert "s0" in page.inner_text("tbody"), "what was known stays"
    failed = seen.open("/jobs")
    playwright.expect(failed.get_by_role("alert")).to_be_visible()
    fed.start_coordinator()
    playwright.expect(failed.locator("h1")).to_have_text("Jobs")
    assert all("502" in one for one in seen.complaints)
    seen.complaints.clear()


@pytest.fixture(scope="module")
def axe() -> str:
    """The audit's script, of the lock file's version."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed; `make services` installs it")
    done = subprocess.run(
        [npm, "ci", "--prefer-offline"], cwd=AXE, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return (AXE / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


def serious(page: Page, axe: str) -> list[str]:
    """What the audit finds serious or worse: the rule, and where."""
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    assert len(found["passes"]) > 10  # it has looked
    return [
        f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_each_page_fits_a_telephone_and_a_desk_in_both_schemes_and_passes_the_audit(
    seen: Seen, done: list[str], look: str, scheme: Any, width: int, axe: str
) -> None:
    page = seen.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    compared = "&".join(f"job={job_id}" for job_id in done)
    paths = ["/", "/jobs", f"/jobs/{done[0]}", "/submit", f"/submit?from={done[0]}",
             f"/compare?{compared}", f"/jobs/{done[0]}/trees", f"/jobs/{done[0]}/ledger",
             f"/jobs/{look}/explored", "/jobs/none"]  # fmt: skip
    for path in paths:
        seen.open(path)
        if path == "/jobs/none":
            assert "404" in seen.complaints.pop()
        elif path.endswith("/explored"):
            page.wait_for_selector("#explore-0-columns svg.marks")
        elif path.endswith("/trees"):
            page.wait_for_selector("#importance svg.marks")
        elif path.startswith(("/jobs/", "/compare")) and not path.endswith("/ledger"):
            page.wait_for_selector("#quality-auc svg.marks")
        if path == "/submit?from=" + done[0]:
            page.click("text=Ask the silos")
            page.wait_for_selector("#preflight")
        if folder := os.environ.get("HEDGEROW_SCREENSHOTS"):
            name = re.sub(r"\W+", "-", path.split("?")[0] + path[:8]) + f"{scheme}-{width}.png"
            page.screenshot(path=str(Path(folder) / name), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(20, 24, 29)") == (scheme == "dark")
        assert page.locator("main h1").count() == 1
        if path == "/":  # the audit can find something
            page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', "
                          "'<img id=bad src=\"data:,\">')")  # fmt: skip
            assert any("image-alt" in found for found in serious(page, axe))
            page.evaluate("document.getElementById('bad').remove()")
        page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true })")
        assert serious(page, axe) == [], path
