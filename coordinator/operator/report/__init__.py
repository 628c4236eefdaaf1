"""The report of finished runs: one HTML file that needs nothing else.

:mod:`runs` reads and checks run folders, :mod:`figures` makes plots and the tables behind them,
:mod:`trees` draws trees, :mod:`page` puts them on the page.
"""

from __future__ import annotations

from pathlib import Path

from hedgerow.boosting.errors import FederationError


def page_of(runs: tuple[Path, ...], title: str = "") -> str:
    """Return the report's page.

    Raises
    ------
    FederationError
        A run folder cannot be used, or the extra ``report`` is not installed.
    """
    from hedgerow.coordinator.operator.report.runs import read_runs
    from hedgerow.services.process.imports import with_again

    read = read_runs(runs)
    if any(run.evaluation for run in read):
        with_again("sklearn")
    try:
        from hedgerow.coordinator.operator.report.page import render

        return render(read, title)
    except ModuleNotFoundError as error:
        raise FederationError(
            f"reports need the extra 'report': pip install 'hedgerow[report]' ({error.name})"
        ) from error
