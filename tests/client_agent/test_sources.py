import sqlite3

import numpy as np
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
from hedgerow.client_agent.sources import SourceRows, load
from tests.coordinator.server.postgresql import programs, running_postgresql


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


@pytest.mark.parametrize("hold_back", [0.0, 0.25])
def test_a_policy_reads_the_tables_own_names_of_columns(tmp_path, hold_back):
    """Also where rows are held back: a job that renames a column does not get past the rules."""
    path = tmp_path / "rows.parquet"
    numbers = list(range(20))
    pq.write_table(pa.table({"income": numbers, "age": numbers, "label": [0, 1] * 10}), path)
    rules = ColumnRules(rename=(("income", "steps"),), categorical=("steps",))
    rows = SourceRows(Source(path=str(path)), None, hold_back, "a", bytes(32))
    found = rows.train(job(columns=rules))
    assert found.schema.names == ("steps", "age")
    assert (found.sources, found.named) == (("income", "age"), ("income",))


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


def test_a_querys_bytes_that_are_no_text_do_no_harm_unused(database):
    query = "SELECT age, label, x'ff00' AS photo FROM people"
    source = Source(sql_url=database, query=query)
    assert not load(source, job(features=("age",)), "a").is_empty
    with pytest.raises(DataError, match="column 'photo' has type binary"):
        load(source, job(), "a")


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


ROWS = 120_000
NUMBERS = (
    "(WITH RECURSIVE s(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM s WHERE k < 119999) "
    "SELECT k FROM s) AS t"
)
TYPES = (
    "SELECT k AS n, CASE WHEN k < 70000 THEN NULL WHEN k < 110000 THEN k ELSE k + 0.5 END AS x, "
    "CASE WHEN k % 3 = 0 THEN NULL ELSE 'c' || (k % 4) END AS c, k % 2 AS label FROM "
)


@pytest.mark.slow
def test_a_result_in_parts_has_the_types_that_all_rows_need(tmp_path):
    source = Source(sql_url=f"sqlite:///{tmp_path / 'none.db'}", query=TYPES + NUMBERS)
    scratch = tmp_path / "scratch"
    data = load(source, job(), "a", scratch=scratch)
    assert data.n_samples == ROWS
    assert data.schema.names == ("n", "x", "c")
    assert data.schema.features[2].categories == ("c0", "c1", "c2", "c3")
    X = data.X
    assert np.array_equal(X[:, 0], np.arange(ROWS, dtype=np.float32))
    assert np.isnan(X[:70_000, 1]).all()
    assert X[70_000, 1] == 70_000
    assert X[-1, 1] == ROWS - 0.5
    assert [*scratch.iterdir()] == [], "nobody else can open the rows"
    again = load(source, job(), "a", scratch=scratch)
    assert again.digest == data.digest
    turned = Source(sql_url=source.sql_url, query=f"{source.query} ORDER BY k DESC")
    assert load(turned, job(), "a", scratch=scratch).digest == data.digest, "the same rows"
    fewer = Source(sql_url=source.sql_url, query=f"{source.query} LIMIT {ROWS - 1}")
    assert load(fewer, job(), "a", scratch=scratch).digest != data.digest


def test_types_that_no_column_can_have_are_told(tmp_path):
    query = f"SELECT CASE WHEN k < 60000 THEN k ELSE 'secret' END AS x, 0 AS label FROM {NUMBERS}"
    with pytest.raises(DataError, match="mixed or unusable types") as caught:
        load(Source(sql_url=f"sqlite:///{tmp_path / 'none.db'}", query=query), job(), "a")
    assert "secret" not in str(caught.value)


@pytest.mark.process
@pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")
def test_postgresql_streams_a_query_by_a_cursor_of_its_server(tmp_path):
    with running_postgresql() as url:
        url = url.replace("postgresql://", "postgresql+psycopg://")
        query = (
            "SELECT k AS n, (k * 1.5)::float8 AS x, 'c' || k % 4 AS c, k % 2 AS label, "
            "(SELECT count(*) FROM pg_cursors) AS cursors FROM generate_series(0, 119999) AS t(k)"
        )
        data = load(Source(sql_url=url, query=query), job(), "a", scratch=tmp_path / "scratch")
        assert data.n_samples == ROWS
        assert data.schema.features[2].categories == ("c0", "c1", "c2", "c3")
        X = data.X
        assert np.array_equal(X[:, 1], np.arange(ROWS, dtype=np.float32) * np.float32(1.5))
        assert (X[:, 3] == 1).all(), "the query runs under a cursor of the server"
