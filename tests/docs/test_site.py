"""The documentation builds without a warning, its links lead somewhere, its API is the protos'."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import hedgerow
from hedgerow.coordinator.cli import main
from tests.late import Late

bs4: Any = Late("bs4")
playwright_api: Any = Late("playwright.sync_api")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    # A copy of the sources beside what they are made from: the API pages are written into them.
    root = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("api", "notebooks"))
    (root / "proto").symlink_to(ROOT / "proto")
    shutil.copy(ROOT / "CONTRIBUTING.md", root)
    for folder in ("examples/strategy-plugin", "examples/notebooks"):
        shutil.copytree(ROOT / folder, root / folder)
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet",
         "docs", "build/docs"],
        cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return root / "build/docs"


def test_every_link_within_the_site_leads_to_a_place_that_is_there(site: Path) -> None:
    pages = {
        path: bs4.BeautifulSoup(path.read_text(), "html.parser") for path in site.rglob("*.html")
    }
    places = {
        path: {tag["id"] for tag in page.find_all(id=True)} | {""} for path, page in pages.items()
    }
    n_links = 0
    for path, page in pages.items():
        for link in page.find_all("a", href=True):
            parts = urlsplit(link["href"])
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link['href']}"
            if target in places:
                assert unquote(parts.fragment) in places[target], f"{path.name}: {link['href']}"
                n_links += 1
    assert n_links > 200


def test_every_source_page_is_on_the_site_with_its_own_text(site: Path) -> None:
    sources = site.parents[1] / "docs"
    pages = [p for p in sources.rglob("*.md") if p.parts[-2] != "_extensions"]
    assert len(pages) > 40
    for source in pages:
        built = site / source.relative_to(sources).with_suffix(".html")
        article = bs4.BeautifulSoup(built.read_text(), "html.parser").find("article")
        text = source.read_text()
        if "{include}" in text:
            continue
        assert len(article.get_text()) > len(text) / 3, source.name
        heading = text.removeprefix("# ").partition("\n")[0].replace("`", "")
        assert heading[:20] in article.find("h1").get_text(), source.name


def test_every_notebook_is_a_page_with_its_code(site: Path) -> None:
    notebooks = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
    assert len(notebooks) == 3
    for path in notebooks:
        built = site / f"notebooks/{path.stem}.html"
        page = bs4.BeautifulSoup(built.read_text(), "html.parser")
        shown = "".join(page.find("article").get_text().split())
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                assert "".join("".join(cell["source"]).split()) in shown


def test_every_command_and_every_public_name_is_on_a_page(site: Path) -> None:
    commands, library = (
        bs4.BeautifulSoup((site / f"api/{name}.html").read_text(), "html.parser").find("article")
        for name in ("commands", "library")
    )
    headings = {tag.get_text().rstrip("#¶") for tag in commands.find_all(["h2", "h3"])}
    assert {f"hedgerow {name}" for name in main.commands} <= headings
    assert {"hedgerow pki sign", "hedgerow ledger verify"} <= headings
    assert "--min-silos" in commands.get_text()
    text = library.get_text()
    for name in hedgerow._PLACES:
        assert f"hedgerow.{name}" in text, name
    assert "Model.predict_proba(self, table: Tabular" in text
    assert "scheme: str = 'iid'" in text, "defaults are as one writes them"
    assert " at 0x" not in text, "an address makes another page each time"
    assert "hedgerow.sklearn.FederatedClassifier" in text
    assert "hedgerow.xgboost.train" in text


def test_a_search_finds_how_to_use_it_before_its_protobufs(site: Path) -> None:
    chromium = shutil.which("chromium")
    assert chromium, "no chromium: deploy/ci/install-services installs it"
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        playwright_api.sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        for word in ("predict", "job", "silo", "category", "label", "missing", "threshold"):
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/search.html?q={word}")
            page.wait_for_selector("#search-results ul.search li:nth-child(5) a")
            page.wait_for_function("document.querySelector('.search-summary')", timeout=30_000)
            links = page.eval_on_selector_all(
                "#search-results ul.search > li > a", "all => all.map(a => a.getAttribute('href'))"
            )
            inside = ("api/federation", "api/crypto", "api/serving", "adr/", "wire")
            assert [link for link in links[:3] if link.startswith(inside)] == [], word
        browser.close()
        server.shutdown()


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = bs4.BeautifulSoup(path.read_text(), "html.parser")
        for tag in page.find_all(["script", "img", "link", "iframe"]):
            source = tag.get("src") or (
                tag.get("href") if "stylesheet" in tag.get("rel", []) else ""
            )
            assert not urlsplit(source or "").netloc, f"{path.name}: {source}"


WIDTHS = """() => [...document.querySelectorAll("table.docutils")].map(table => {
  const last = [...table.querySelectorAll("td:last-child")].map(cell => cell.clientWidth);
  return [table.scrollWidth - (table.closest(".table-wrapper") || table.parentElement).clientWidth,
          Math.min(...last)];
})"""


def test_tables_of_the_api_keep_their_description_at_1280_pixels(site: Path) -> None:
    chromium = shutil.which("chromium")
    assert chromium, "no chromium: deploy/ci/install-services installs it"
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        for path in sorted((site / "api").glob("*.html")):
            page.goto(path.as_uri())
            for overflow, description in page.evaluate(WIDTHS):
                assert overflow <= 0, f"{path.name}: a table is cut off by {overflow} pixels"
                assert description >= 200, f"{path.name}: {description} pixels for a description"
        browser.close()


def extension() -> Any:
    spec = importlib.util.spec_from_file_location(
        "proto_pages", ROOT / "docs/_extensions/proto_pages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_pages_have_every_method_field_and_value_of_the_protos(site: Path) -> None:
    from hedgerow.api.crypto.v1 import crypto_service_pb2
    from hedgerow.api.federation.v1 import federation_service_pb2, job_pb2, job_service_pb2

    shown = {name: (site / f"api/{name}.html").read_text() for name in ("federation", "crypto")}
    for page, module in (
        ("federation", job_pb2),
        ("federation", job_service_pb2),
        ("federation", federation_service_pb2),
        ("crypto", crypto_service_pb2),
    ):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            anchor = message.full_name.lower().replace(".", "-")
            assert f'id="{anchor}"' in shown[page]
            for field in message.fields:
                assert f">{field.name}<" in shown[page]
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"<strong>{method.name}</strong>" in shown[page]
    assert "Depth limit; 0 is none" in shown["federation"]


def test_pages_are_written_anew_only_when_the_protos_changed(tmp_path: Path) -> None:
    made = extension()
    made.generate(tmp_path / "api")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "api").iterdir()}
    assert {path.name for path in before} == {"federation.md", "serving.md", "crypto.md"}
    made.generate(tmp_path / "api")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "api").iterdir()} == before
