"""The report in a real browser: it draws without complaint and says what report.json says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from tests.coordinator.operator.report.folders import report as report_of
from tests.coordinator.operator.report.folders import run_folder
from tests.coordinator.operator.report.test_parties import parts, vertical_folder
from tests.coordinator.operator.report.test_rates import stacked
from tests.federation.forked import hedgerow
from tests.federation.processes import PATIENCE_SECONDS
from tests.federation.test_local import command

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@dataclass
class Opened:
    """A page that has been drawn, and what it complained about or asked for meanwhile."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def table(self, figure: str) -> list[list[str]]:
        """Exact values of a figure's table, text where a cell has none."""
        found: list[list[str]] = self.page.eval_on_selector_all(
            f"#{figure} tbody tr",
            "rows => rows.map(r => [...r.cells].map(c => c.dataset.value ?? c.textContent))",
        )
        return found


@pytest.fixture
def opened(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Any]:
    contexts = []

    def open_page(path: Path, scheme: str = "light", width: int = 1280) -> Opened:
        context = browser.new_context(
            color_scheme=scheme,  # type: ignore[arg-type]
            viewport={"width": width, "height": 900},
            offline=True,
        )
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        contexts.append(context)
        made = Opened(context.new_page())
        made.page.on("console", lambda message: made.complaints.append(message.text))
        made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
        made.page.on("request", lambda asked: made.asked.append(asked.url))
        made.page.goto(path.as_uri())
        made.page.wait_for_function("document.documentElement.dataset.drawn")
        return made

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a real job."""
    folder = tmp_path_factory.mktemp("run")
    done = hedgerow(*command(folder, 4)[3:])
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def report(*arguments: object) -> None:
    done = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_draws_every_plot_offline_and_without_complaint(
    run: Path, opened: Any, scheme: str
) -> None:
    report(run)
    told = opened(run / "report.html", scheme)
    assert told.complaints == []
    assert told.asked == [(run / "report.html").as_uri()]
    plots = told.page.query_selector_all("[data-plot]")
    assert len(plots) == int(told.page.evaluate("document.documentElement.dataset.drawn")) == 12
    for plot in plots:
        shape = plot.query_selector("svg").bounding_box()
        assert shape["width"] > 200
        assert shape["height"] > 60
    dark = told.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(20, 24, 29)") == (scheme == "dark")
    labels = "getComputedStyle(document.querySelector('.plot .role-axis-label text')).fill"
    assert told.page.evaluate(labels) == (
        "rgb(154, 165, 177)" if scheme == "dark" else "rgb(87, 96, 106)"
    )


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_telephone_and_a_desk_without_complaint(
    run: Path, opened: Any, scheme: str, width: int
) -> None:
    report(run)
    told = opened(run / "report.html", scheme, width)
    assert told.complaints == []
    assert told.asked == [(run / "report.html").as_uri()]
    assert told.page.evaluate("document.documentElement.scrollWidth") == width
    for plot in told.page.query_selector_all("[data-plot] svg, .matrix, .thresholds input"):
        shape = plot.bounding_box()
        assert shape["x"] >= 0
        assert shape["x"] + shape["width"] <= width


def test_the_threshold_moves_the_confusion_matrix(run: Path, opened: Any) -> None:
    report(run)
    told = opened(run / "report.html")
    table = told.table("confusion details")  # of rows for all first, then of single silos
    rows = [[float(cell) for cell in row[1:]] for row in table if row[0] == table[0][0]]
    shown = ".matrix td.number"

    def cells() -> list[float]:
        return [
            float(text.replace(",", ""))
            for text in told.page.eval_on_selector_all(shown, "all => all.map(c => c.textContent)")
        ]

    start = next(k for k, row in enumerate(rows) if row[0] == 0.5)
    assert cells() == rows[start][1:]
    told.page.focus(".thresholds input")
    told.page.keyboard.press("Home")
    assert cells() == rows[0][1:]
    assert cells()[0] == cells()[2] == 0.0
    told.page.keyboard.press("End")
    assert cells() == rows[-1][1:]
    assert "recall" in told.page.inner_text(".rates")


def test_figures_in_the_page_are_those_of_report_json(run: Path, opened: Any) -> None:
    report(run)
    told = opened(run / "report.html")
    facts = json.loads((run / "report.json").read_text())
    for name in ("auc", "logloss"):
        shown = told.table(f"quality-{name}")
        expected = [
            [part, str(r["round"]), repr(scores[name])]
            for part in ("test", "test@s1")
            for r in facts["rounds"]
            if (scores := r["metrics"].get(part))
        ]
        assert shown == expected
    of_trees = [row for row in told.table("bytes-by-step") if row[1] == "ExchangeTrees"]
    for way, row in zip(("up", "down"), of_trees, strict=True):
        step = facts["bytes"]["by_step"]["ExchangeTrees"]
        assert "ExchangeTrees" not in facts["plan"]["steps"]  # only tables tell the trees' size
        by_silo = facts["bytes"]["by_silo"]
        assert row[1:4] == ["ExchangeTrees", way, str(step[way])]
        assert float(row[4]) == step[way] / 3
        assert row[5] == "–"
        assert row[7:] == [
            str(by_silo[s]["by_step"]["ExchangeTrees"][way]) for s in ("s0", "s1", "s2")
        ]
    assert {(r[1], r[2]): int(r[3]) for r in told.table("bytes-by-silo")} == {
        (s["name"], way): s[f"bytes_{way}"] for s in facts["silos"] for way in ("up", "down")
    }
    assert [[int(v) for v in r[1:4]] for r in told.table("bytes-by-round")] == [
        [r["round"], r["bytes_up"], r["bytes_down"]] for r in facts["rounds"]
    ]
    for silo, *spent, total in (row[1:] for row in told.table("times")):
        kept = json.loads((run / f"silos/{silo}/times.json").read_text())
        assert [float(p) for p in spent] == [
            kept[k] for k in ("train", "wait", "encrypt", "send", "ledger")
        ]
        assert float(total) == kept["seconds"]
    silos = told.table("silos")
    assert [row[1] for row in silos] == ["400"] * 3
    assert all("lines hold, bytes equal" in row[6] for row in silos)
    body = told.page.inner_text("body")
    assert facts["job"] in body
    shown = told.page.eval_on_selector_all(".reveals p", "all => all.map(p => p.textContent)")
    assert " ".join(shown).split() == facts["reveals"].split()


def test_the_ledgers_of_the_run_hold_and_agree_with_its_report(run: Path) -> None:
    done = CliRunner().invoke(main, ["ledger", "verify", str(run), "--json"])
    assert done.exit_code == 0, done.output
    facts = {s["name"]: s for s in json.loads((run / "report.json").read_text())["silos"]}
    told = json.loads(done.stdout)
    assert [row["silo"] for row in told] == sorted(facts)
    for row in told:
        assert row["agrees"] is True
        assert row["bytes"] == facts[row["silo"]]["bytes_up"]


def test_marks_are_at_the_values_of_the_table(run: Path, opened: Any) -> None:
    report(run)
    told = opened(run / "report.html")
    marks = told.page.eval_on_selector_all(
        "#quality-auc .mark-symbol path[aria-label]",
        "marks => marks.map(m => m.getAttribute('aria-label'))",
    )
    drawn = [dict(part.split(": ") for part in mark.split("; ")) for mark in marks]
    rows = told.table("quality-auc")
    assert len(drawn) == len(rows) == 5  # four rounds, and a silo's own test rows at the end
    for mark, (series, round, value) in zip(drawn, rows, strict=True):
        assert (mark["series"], mark["round"]) == (series, round)
        assert float(mark["auc"]) == pytest.approx(float(value), abs=1e-9)


def test_runs_stand_side_by_side_and_what_they_are_called_is_only_text(
    tmp_path: Path, opened: Any
) -> None:
    folders = [
        run_folder(tmp_path / "first"),
        run_folder(tmp_path / "<img src=x onerror=alert(1)>", name="<script>alert(2)</script>"),
    ]
    report(*folders, "--out", tmp_path / "both.html")
    told = opened(tmp_path / "both.html")
    assert told.complaints == []
    overview = told.page.eval_on_selector_all(
        "#overview thead th", "cells => cells.map(c => c.textContent)"
    )
    assert overview == ["", "first", "<img src=x onerror=alert(1)>"]
    series = {row[0] for row in told.table("quality-auc")}
    assert series == {f"{run}, {data}" for run in overview[1:] for data in ("test", "train")}
    assert [row[2] for row in told.table("quality-auc") if row[0] == "first, train"] == [
        "not defined"
    ] * 3
    assert told.page.query_selector_all("img, [onerror]") == []
    assert {r[0]: r[2] for r in told.table("importance") if r[1] == "age"}.keys() == set(
        overview[1:]
    )
    assert "cost-of-quality" in told.page.content()


def test_each_tree_can_be_chosen_and_read_as_text(tmp_path: Path, opened: Any) -> None:
    report(run_folder(tmp_path / "run"))
    told = opened(tmp_path / "run/report.html")
    trees = told.page.query_selector_all(".tree")
    assert [tree.is_visible() for tree in trees] == [True, False]
    told.page.select_option("select[data-forest]", "1")
    assert [tree.is_visible() for tree in trees] == [False, True]
    assert "job is </script><b>smith, clerk: no" in trees[1].text_content()
    assert told.complaints == []


def test_every_plot_has_a_description_and_a_table_with_headings(
    tmp_path: Path, opened: Any
) -> None:
    report(run_folder(tmp_path / "run"))
    told = opened(tmp_path / "run/report.html")
    for figure in told.page.query_selector_all("figure"):
        drawing = figure.query_selector("svg.marks")
        if (figure.get_attribute("id") or "").startswith("curves-"):  # all of them, as a table
            assert drawing is None
            continue
        assert drawing.get_attribute("aria-label") or drawing.query_selector("[aria-label]")
        assert figure.query_selector("table caption").text_content()
        assert figure.query_selector_all("thead th[scope=col]")
        rows = figure.query_selector_all("tbody tr")
        assert rows


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_its_window_and_the_paper(tmp_path: Path, opened: Any, width: int) -> None:
    report(run_folder(tmp_path / "run"))
    told = opened(tmp_path / "run/report.html", "dark", width)
    assert told.page.evaluate("document.documentElement.scrollWidth") <= width
    told.page.emulate_media(media="print")
    assert told.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert not told.page.query_selector("nav").is_visible()
    assert told.page.pdf(format="A4").startswith(b"%PDF")


def test_baselines_in_the_run_folder_are_drawn_beside_the_federation(
    tmp_path: Path, opened: Any
) -> None:
    folder = run_folder(tmp_path / "run")
    curves = [
        {"who": "pooled", "kind": "pooled", "data": "test",
         "rounds": [{"auc": 0.6}, {"auc": 0.9}]},
        {"who": "north alone", "kind": "local", "data": "test",
         "rounds": [{"auc": 0.4}, {"auc": None}]},
    ]  # fmt: skip
    (folder / "baselines.json").write_text(json.dumps({"schema": 1, "curves": curves}))
    report(folder)
    told = opened(folder / "report.html")
    assert told.complaints == []
    shown = told.table("quality-auc")
    assert ["pooled", "2", "0.9"] in shown
    assert ["north alone", "2", "not defined"] in shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_learnt_rates_are_drawn_at_the_values_of_their_tables(
    tmp_path: Path, opened: Any, scheme: str
) -> None:
    folder = stacked(tmp_path / "run")
    report(folder)
    told = opened(folder / "report.html", scheme)
    assert told.complaints == []
    marks = told.page.eval_on_selector_all(
        "#rates-by-tree .mark-symbol path[aria-label]",
        "marks => marks.map(m => m.getAttribute('aria-label'))",
    )
    drawn = [dict(part.split(": ") for part in mark.split("; ")) for mark in marks]
    rows = told.table("rates-by-tree")
    assert [row[1:] for row in rows] == [
        ["north", "1", "0.5"], ["north", "2", "0.25"], ["south", "1", "1.0"],
        ["south", "2", "0.75"],
    ]  # fmt: skip
    assert [(m["boosting step"], float(m["learnt rate"])) for m in drawn] == [
        (row[2], float(row[3])) for row in rows
    ]
    assert [row[5:9] for row in told.table("rates-by-silo")] == [
        ["0.375", "0.25", "0.5", "0.5"], ["0.875", "0.75", "1.0", "0.5"],
    ]  # fmt: skip


def test_the_trees_of_a_vertical_run_are_drawn_with_the_names_at_hand(
    tmp_path: Path, opened: Any
) -> None:
    folder = vertical_folder(tmp_path / "run", *parts())
    report(folder)
    told = opened(folder / "report.html", width=360)
    assert told.complaints == []
    assert told.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert [row[1] for row in told.table("importance")] == ["job", "south #2 (visits)"]
    assert "visits" in told.page.text_content(".tree svg")
    assert "rounded up to a power of two" in told.page.inner_text("#silos")


def test_what_was_scored_once_is_a_table_and_no_plot_of_one_dot(
    tmp_path: Path, opened: Any
) -> None:
    rounds = [
        {"round": k, "seconds": 0.1, "bytes_up": 1, "bytes_down": 1,
         "metrics": {"train": {"f1": 0.5 + k / 8}}}
        for k in range(2)
    ]  # fmt: skip
    rounds[1]["metrics"]["test"] = {"share_gaining": 0.75}  # type: ignore[index]
    folder = run_folder(tmp_path / "run", rounds=rounds, best_round=1)
    report(folder)
    told = opened(folder / "report.html")
    assert told.complaints == []
    assert told.page.query_selector("#quality-share_gaining") is None
    (row,) = told.table("scores")
    assert row[:4] == ["share_gaining", "test", "2", "0.75"]
    labels = told.page.eval_on_selector_all(
        "#quality-f1 .role-axis-label text", "texts => texts.map(t => t.textContent)"
    )
    assert [label for label in labels if label in ("1", "2")] == ["1", "2"]


def test_a_job_that_failed_before_its_first_round_has_a_report_that_says_why(
    tmp_path: Path, opened: Any
) -> None:
    nothing = {"up": 0, "down": 0, "messages": 0, "calls": 0}
    folder = tmp_path / "run"
    folder.mkdir()
    told = report_of(
        state="FAILED", detail="silo b: it has no column 'age'", rounds=[], best_round=-1,
        model="", artefacts=[], plan=None, silos=(),
        bytes={"up": 0, "down": 0, "by_step": {}, "by_silo": {}, "control": nothing},
    )  # fmt: skip
    (folder / "report.json").write_text(json.dumps({**told, "silos": []}))
    for others in ([], [run_folder(tmp_path / "other")]):
        out = tmp_path / f"report-{len(others)}.html"
        report(folder, *others, "--out", out)
        page = opened(out)
        assert page.complaints == []
        overview = page.page.inner_text("#overview")
        assert "failed: silo b: it has no column 'age'" in overview


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    blocked = (
        "import sys; sys.modules['altair'] = None; import hedgerow.coordinator.cli as c; c.run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked, "report", str(folder)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install 'hedgerow[report]'" in done.stderr
