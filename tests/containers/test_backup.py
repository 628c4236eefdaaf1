"""A coordinator that is lost is restored from what docs/operations.md says to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containers.compose import TAG, Project, docker, eventually, project, run

pytestmark = pytest.mark.timeout(900)


def test_jobs_and_models_come_back_from_a_dump_and_the_artefacts(tmp_path: Path) -> None:
    artefacts = "/var/lib/hedgerow/artefacts"
    with project(tmp_path) as made:
        made.up()
        assert docker("wait", made.container("demo")) == "0", made.log("demo")
        job_id = next(iter(made.client.list())).job_id
        model = made.client.download(job_id)[1]
        database, coordinator = made.container("database"), made.container("coordinator")
        dump = run("docker", "exec", database, "pg_dump", "-U", "hedgerow", "hedgerow")
        kept = run("docker", "exec", coordinator, "tar", "-c", "-C", artefacts, ".")
        lose(made)

        made.compose("stop", "coordinator")
        run("docker", "exec", database, "dropdb", "-U", "hedgerow", "hedgerow")
        run("docker", "exec", database, "createdb", "-U", "hedgerow", "hedgerow")
        run("docker", "exec", "-i", database, "psql", "-q", "-U", "hedgerow", "hedgerow",
            stdin=dump)  # fmt: skip
        run("docker", "run", "--rm", "-i", "--network", "none", "--volumes-from", coordinator,
            "--entrypoint", "tar", f"hedgerow/coordinator:{TAG}", "-x", "-C", artefacts,
            stdin=kept)  # fmt: skip
        made.compose("start", "coordinator")
        eventually(made.healthy, 120, "healthy")
        view = made.client.get(job_id)
        assert view.state == "SUCCEEDED"
        assert len(view.rounds) == 20
        assert made.client.download(job_id)[1] == model

        # By our own commands, as docs/operations.md has them.
        config = ("--config", "/etc/hedgerow/coordinator.toml", "-")
        backed_up = made.compose("exec", "-T", "coordinator", "entrypoint", "backup", *config)
        lose(made)
        made.compose("stop", "coordinator")
        command = ("run", "--rm", "-T", "--no-deps", "coordinator", "restore", *config)
        made.compose(*command, "--replace", stdin=backed_up)
        made.compose("start", "coordinator")
        eventually(made.healthy, 120, "healthy")
        assert made.client.get(job_id).state == "SUCCEEDED"
        assert made.client.download(job_id)[1] == model


def lose(made: Project) -> None:
    """Lose all that the coordinator keeps."""
    made.compose("stop", "coordinator")
    made.compose("start", "coordinator")
    script = "rm -rf /var/lib/hedgerow/artefacts/*"
    docker("exec", made.container("coordinator"), "sh", "-c", script)
    sql = "truncate " + ", ".join(
        docker(
            "exec", made.container("database"), "psql", "-U", "hedgerow", "-At", "-c",
            "select tablename from pg_tables where schemaname = 'public'",
        ).split()
    )  # fmt: skip
    docker("exec", made.container("database"), "psql", "-q", "-U", "hedgerow", "-c", sql)
    eventually(made.healthy, 120, "healthy")
    assert not list(made.client.list())
