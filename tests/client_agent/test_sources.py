import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.job import ColumnRules, DatePart
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.client_agent.config import Source
from hedgerow.client_agent.sources import load


def job(parameters=Bagging(), **changes):  # noqa: B008
    return JobParameters("j", parameters, task=Task.BINARY, **changes)


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    table = {"_id": ["r1", "r2"], "x": [1, 2], "c": ["a", None], "label": [0, 1]}
    pq.write_table(pa.table(table), path)
    return Source(path=str(path))


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE people (age REAL, job TEXT, label INTEGER)")
        rows = [(31.5, "clerk", 1), (None, "cook", 0), (44, None, 1)]
        connection.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)
    connection.close()
    return f"sqlite:///{path}"


def test_a_horizontal_silo_gets_features_and_labels_of_its_file(parquet):
    data = load(parquet, job(), "a")
    assert data.schema.names == ("x", "c")
    assert data.labels.tolist() == [0, 1]
    assert data.ids is None


def test_the_active_party_has_labels_and_ids_a_passive_one_ids_only(parquet):
    active = load(parquet, job(SecureBoost("guest")), "guest")
    assert active.labels.tolist() == [0, 1]
    assert active.ids.tolist() == ["r1", "r2"]
    passive = load(parquet, job(SecureBoost("guest")), "host")
    assert passive.y is None
    assert passive.schema.label == ""
    assert passive.schema.names == ("x", "c")
    assert passive.ids.tolist() == ["r1", "r2"]


def test_a_party_uses_those_of_the_jobs_features_that_it_has(parquet):
    assert load(
        parquet, job(SecureBoost("guest"), features=("c", "elsewhere")), "host"
    ).schema.names == ("c",)
    with pytest.raises(DataError, match="none of the job's features"):
        load(parquet, job(SecureBoost("guest"), features=("elsewhere",)), "host")
    with pytest.raises(DataError, match="no feature 'elsewhere'"):
        load(parquet, job(features=("c", "elsewhere")), "a")


def test_a_query_gives_the_table_its_result_is(database):
    query = "SELECT age, job, label FROM people ORDER BY label, age"
    data = load(Source(sql_url=database, query=query), job(), "a")
    assert data.schema.names == ("age", "job")
    assert data.schema.features[1].categories == ("clerk", "cook")
    assert data.labels.tolist() == [0, 1, 1]
    assert data.X[1].tolist() == [31.5, 0.0]


def test_a_query_is_read_by_the_jobs_rules_of_columns(database):
    query = "SELECT age, '2024-03-0' || (label + 1) AS since, 1.0 * label AS sick FROM people"
    rules = ColumnRules(
        dates=(("day", (DatePart.MONTH, DatePart.WEEKDAY)),),
        rename=(("since", "day"), ("sick", "label")),
        drop=("age",),
        positive="0",
    )
    data = load(Source(sql_url=database, query=query), job(columns=rules), "a")
    assert data.schema.names == ("day_month", "day_weekday")
    assert data.sources == ("since", "since")
    assert data.schema.classes == ("1", "0")
    assert data.X[data.labels == 0].tolist() == [[3, 5], [3, 5]]


def test_a_query_without_rows_is_an_empty_silo(database):
    query = "SELECT * FROM people WHERE age > 100"
    assert load(Source(sql_url=database, query=query), job(), "a").is_empty


@pytest.mark.parametrize(
    ("url", "query", "message"),
    [
        (None, "SELECT * FROM secret_table", "data.query failed: OperationalError"),
        (None, "DELETE FROM people", "returns no rows"),
        ("nonsense://u:secret@h/d", "SELECT 1", "data.sql_url cannot be used"),
        ("secret", "SELECT 1", "data.sql_url cannot be used"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/d", "SELECT 1", "OperationalError"),
    ],
)
def test_failing_queries_are_told_without_statement_or_password(database, url, query, message):
    with pytest.raises(DataError, match=message) as caught:
        load(Source(sql_url=url or database, query=query), job(), "a")
    assert "secret" not in str(caught.value)


def test_no_source_at_all_is_told():
    with pytest.raises(DataError, match=r"data\.path"):
        load(Source(), job(), "a")
