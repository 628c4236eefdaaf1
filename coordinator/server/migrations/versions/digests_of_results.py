"""Files of a result have digests: a job's list of their names becomes names with empty digests."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "3"
down_revision = None

_JOBS = sql.table("jobs", sql.column("job_id"), sql.column("artefacts", sql.JSON))


def upgrade() -> None:
    """Change what databases from before the digests have of ended jobs."""
    connection = op.get_bind()
    for job_id, files in connection.execute(sql.select(_JOBS)).all():
        if isinstance(files, list):
            named = _JOBS.update().where(_JOBS.c.job_id == job_id)
            connection.execute(named.values(artefacts=dict.fromkeys(files, "")))
