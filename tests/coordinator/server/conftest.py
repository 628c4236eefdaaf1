"""Databases of both kinds."""

import pytest
import sqlalchemy

from tests.coordinator.server.postgresql import programs, running_postgresql


@pytest.fixture(scope="module")
def postgresql_server():
    if programs() is None:
        pytest.fail("PostgreSQL is not installed: apt-get install postgresql")
    with running_postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.process)])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/coordinator.db"
    server = request.getfixturevalue("postgresql_server")
    name = f"test_{abs(hash(request.node.nodeid))}"
    admin = sqlalchemy.create_engine(
        server.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    return server.rpartition("/")[0] + "/" + name
