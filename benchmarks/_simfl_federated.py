"""SimFL jobs in this process: the strategy's own halves and codecs, which count the bytes."""

from __future__ import annotations

from collections.abc import Iterator

import xgboost as xgb

from benchmarks._fedxgbllr_played import TREES, Study, margins_of
from hedgerow.boosting.strategies.simfl.forecast import paper_bytes
from hedgerow.coordinator.operator.library.jobs import Job
from hedgerow.coordinator.operator.library.memory import Conditions, federate


def simfl_job(study: Study) -> Job:
    """Return the job of a study: ``TREES`` trees in all, hash functions by SimFL's own rule."""
    return Job(
        "simfl",
        label=study.silos[0].schema.label,
        task=study.task.value,
        seed=study.job.seed,
        min_silos=len(study.silos),
        simfl={"rounds": TREES},
        booster=study.job.booster.native(),
    )


def simfl_bytes(study: Study) -> int:
    """Return ``8KN·L + 8T(N + (2^D − 1)(K − 1))``, the source's bytes of the study's job."""
    job, schema = simfl_job(study).parameters, study.silos[0].schema
    n_rows = sum(part.n_samples for part in study.silos)
    return paper_bytes(job.parameters, job, schema, len(study.silos), n_rows)


def simfl(study: Study) -> Iterator[tuple[str, float]]:
    """Yield the score on a study's test rows, and the bytes of all silos, up and down."""
    tables = {f"silo-{k:02d}": part for k, part in enumerate(study.silos)}
    result = federate(simfl_job(study), tables, Conditions(workers=1))
    booster = xgb.Booster(model_file=bytearray(result.files["model.ubj"]))
    yield "simfl", study.score(margins_of(booster, study.test) - study.center)
    yield "simfl-bytes", sum(sum(result.view.bytes_of(silo)) for silo in tables)
    yield "simfl-formula-bytes", simfl_bytes(study)
