"""The tables of the papers' results are those that the stored runs give."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks._result_layouts import audit
from benchmarks.results import FOLDER, ROOT, TABLES, kept, pages, ran, rendered, shown


def test_the_pages_have_what_the_stored_runs_say() -> None:
    found = list(pages())
    assert found
    for page in found:
        assert page.read_text() == rendered(page.read_text()), (
            f"{page.name}: run python -m benchmarks.results --render"
        )


def test_every_stored_run_is_of_a_table_and_on_a_page() -> None:
    text = "".join(page.read_text() for page in pages())
    for path in FOLDER.glob("*.json"):
        name = json.loads(path.read_text())["table"]
        assert name == path.stem
        assert set(kept(name)) <= set(TABLES[name].parts)
        assert f"<!-- results {name} -->" in text, f"{name} has been run and is on no page"
        for part, found in kept(name).items():
            assert found.keys() == {"date", "commit", "machine", "command", "cpu_seconds", "rows"}
            assert found["command"] == "python " + shlex.join(TABLES[name].command(part, "DIR"))
            assert found["rows"]


def test_a_changed_figure_and_an_unknown_table_are_noticed() -> None:
    [page] = [p for p in pages() if p.name == "results-histogram.md"]
    text = page.read_text()
    first = json.loads((FOLDER / "samplers.json").read_text())["parts"]
    published = next(iter(first.values()))["rows"][0]["published"]
    assert rendered(text.replace(f"{published:g} |", "1 |")) == text
    with pytest.raises(KeyError):
        rendered("<!-- results nothing -->\n<!-- end -->")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_which_parts_have_not_run(name: str) -> None:
    missing = [part for part in TABLES[name].parts if part not in kept(name)]
    assert all(part in shown(name).rpartition("Not run:")[2] for part in missing)
    assert all(part in ran(name).rpartition("**not run**:")[2] for part in missing)
    assert missing or "not run" not in ran(name)


def test_the_commit_of_a_run_is_one_of_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    monkeypatch.setattr(results, "ROOT", tmp_path)
    git("init", "--quiet", "--initial-branch", "main")
    (tmp_path / "a.py").write_text("1\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    main = git("rev-parse", "--short", "HEAD")
    git("switch", "--quiet", "--create", "other")
    assert results.commit() == main
    (tmp_path / "a.py").write_text("2\n")
    assert results.commit() == f"{main}+"
    git("commit", "--quiet", "--all", "--message", "two")
    assert results.commit() == f"{main}+"
    git("branch", "--delete", "--force", "main")
    assert results.commit() == git("rev-parse", "--short", "HEAD")


def test_an_audit_of_other_mechanisms_is_not_laid_out_beside_the_first() -> None:
    rows = [{"mechanism": name, "claimed": 1.0, "at_least": 0.5} for name in "ab"]
    assert [line[0] for line in audit({"true": rows, "half": rows})] == ["mechanism", "a", "b"]
    for others in (rows[::-1], rows[:1]):
        with pytest.raises(ValueError, match=r"too many values|shorter"):
            audit({"true": rows, "half": others})


def test_make_results_runs_them() -> None:
    assert "python -m benchmarks.results" in (ROOT / "Makefile").read_text()


def test_cut_points_lose_less_than_five_ten_thousandths() -> None:
    """In the mean of all sets; of one set, as far as its five seeds can tell."""
    rows = [row for part in kept("cut-points").values() for row in part["rows"]]
    for bins in (32, 64, 256):
        own = [row for row in rows if row["bins"] == bins]
        for who in ("engine", "histogram", "summary", "vertical"):
            found = [row for row in own if row["who"] == who]
            assert statistics.fmean(row["off"] for row in found) >= -0.0005
            assert all(row["off"] >= -0.0005 - 3 * row["off_sd"] / row["n"] ** 0.5 for row in found)
        assert all(abs(row["off"]) <= 1e-6 for row in own if row["who"] == "engine")
    even = [row["off"] for row in rows if row["who"] == "even" and row["bins"] == 32]
    assert statistics.fmean(even) < -0.001


def test_fates_sets_with_its_silos_are_within_its_gate() -> None:
    rows = [row for part in kept("horizontal-gates").values() for row in part["rows"]]
    found = [row["value"] for row in rows if row["metric"].endswith("_to_xgboost_mean")]
    assert len(found) == 3
    assert max(map(abs, found)) <= 1.0
