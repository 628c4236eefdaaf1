"""The reference of job keys and settings is the code's: limits are those that jobs answer with."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.ports import strategy_of
from hedgerow.boosting.strategies import NAMES
from hedgerow.boosting.tables import for_job
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.processes import SETTINGS, settings_of
from hedgerow.services.process.settings import described, load
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_reference import keys_of

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("columns", "booster", "warm_start", "audit", *NAMES)


def test_every_key_of_every_table_is_there_and_explained() -> None:
    found = {(key.table, key.key) for key in keys_of()}
    top = job_file.keys("")
    expected = {("", name) for name in top} | {
        (table, name) for table in TABLES for name in job_file.keys(table)
    }
    tables = {("", name) for name in TABLES}
    assert found == expected - tables
    assert [key for key in keys_of() if not key.about] == []


def test_limits_and_followers_are_those_of_the_checks() -> None:
    keys = {(key.table, key.key): key for key in keys_of()}
    assert keys["bagging", "rounds"].limits == "1 … 100000"
    assert keys["bagging", "early_stopping_rounds"].limits == "0 … rounds"
    assert keys["bagging", "lr_mode"].limits.startswith("plain, uniform, rows")
    assert keys["bagging", "secure_mean"].limits == "only with a regression"
    assert keys["histogram", "fraction_bits"].limits == "0 … 52"
    assert keys["booster", "subsample"].strategies == (
        "bagging",
        "fedxgbllr",
        "secureboost",
        "simfl",
    )
    assert keys["booster", "eta"].strategies == (
        "bagging",
        "fedxgbllr",
        "histogram",
        "secureboost",
        "simfl",
    )
    assert keys["dp_tree", "epsilon"].default == "required"


@pytest.mark.parametrize("strategy", NAMES)
def test_defaults_are_the_parameters_own(strategy: str) -> None:
    fields = {f.name.rstrip("_"): f for f in dataclasses.fields(strategy_of(strategy).parameters)}
    for key in keys_of(strategy):
        if key.table != strategy:
            assert key.table in ("", "columns", "booster", "warm_start", "audit")
            continue
        default = fields[key.key].default
        if key.default and key.default != "required":
            text = f'strategy = "{strategy}"\n[{strategy}]\n{key.key} = {key.default}\n'
            spec = job_wire.parse(job_file.parse(text))
            assert getattr(getattr(spec, strategy), key.key) == pytest.approx(default)
        else:
            assert default in (None, (), "", dataclasses.MISSING)


def test_help_prints_the_keys_of_a_strategy_and_of_a_process() -> None:
    def hedgerow(*words: str) -> Any:
        done = CliRunner().invoke(main, ["help", *words, "--json"])
        return json.loads(done.stdout or done.stderr)

    keys = hedgerow("job.toml", "dp_tree")
    assert [key["key"] for key in keys if key["table"] == "booster"] == ["objective"]
    assert "epsilon" in {key["key"] for key in keys}
    assert "did you mean dp_tree?" in hedgerow("job.toml", "dptree")["error"]
    policy = {key["key"] for key in hedgerow("agent.toml") if key["table"] == "policy"}
    assert policy == set(Policy.model_fields)
    with pytest.raises(InvalidJob):
        keys_of("nothing")


def test_every_setting_is_described_and_its_default_is_one(tmp_path: Path) -> None:
    for process in SETTINGS:
        assert [key for key in described(settings_of(process)) if not key.about] == []
    lines = ['coordinator = "c:1"', 'identity = "i"', 'state = "s"', "[data]"]
    keys = [*described(AgentSettings)]
    lines += [f"{k.key} = {k.default}" for k in keys if k.table == "data" and k.default]
    lines += ["[policy]"]
    lines += [f"{k.key} = {k.default}" for k in keys if k.table == "policy" and k.default]
    (tmp_path / "agent.toml").write_text("\n".join(lines))
    assert load(AgentSettings, tmp_path / "agent.toml").policy == Policy(
        **{k.key: getattr(Policy(), k.key) for k in keys if k.table == "policy" and k.default}
    )


def test_the_pages_of_the_site_have_a_row_for_each(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "reference_pages", ROOT / "docs/_extensions/reference_pages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.generate(tmp_path)
    jobs, settings = ((tmp_path / "api" / name).read_text() for name in ("jobs.md", "settings.md"))
    assert len(re.findall(r"^\| `", jobs, re.MULTILINE)) == len(keys_of())
    n_settings = sum(len([*described(settings_of(process))]) for process in SETTINGS)
    assert len(re.findall(r"^\| `", settings, re.MULTILINE)) == n_settings


COLUMNS = {
    "int64": (pa.array([1, 2]), True),
    "float16": (pa.array([1.0, 2.0]).cast(pa.float16()), True),
    "decimal": (pa.array([Decimal("1.5"), Decimal("2")]), True),
    "bool": (pa.array([True, None]), True),
    "large_string": (pa.array(["a", "b"], pa.large_string()), True),
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), True),
    "null": (pa.array([None, None]), True),
    "date": (pa.array([dt.date(2020, 1, 1)] * 2), False),
    "timestamp": (pa.array([dt.datetime(2020, 1, 1)] * 2), False),
    "time": (pa.array([dt.time(1)] * 2), False),
    "duration": (pa.array([dt.timedelta(1)] * 2), False),
    "list": (pa.array([[1], [2]]), False),
    "binary": (pa.array([b"a", b"b"]), False),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_taken_as_the_page_says(name: str) -> None:
    page = (ROOT / "docs/file-formats.md").read_text().partition("Columns that a table may")[2]
    assert name in page.partition("### [columns]")[0]
    column, taken = COLUMNS[name]
    job = job_wire.decode(job_pb2.JobSpec(strategy="bagging").SerializeToString())
    table = pa.table({"x": column, "label": [0, 1]})
    if taken:
        assert for_job(table, job, "rows").schema.names == ("x",)
        return
    with pytest.raises(DataError, match="column 'x' has type"):
        for_job(table, job, "rows")
