"""Agents of other versions than the coordinator's, as real processes with other metadata."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.roster import check_version
from hedgerow.services.rpc.errors import VersionRefused
from tests.federation.processes import Federation, wait_until, write_table

JOB = (
    'name = "v"\nstrategy = "bagging"\nlabel = "label"\ntask = "binary"\nseed = 1\n'
    'min_silos = 2\nsilos = ["s0", "s1"]\n[bagging]\nrounds = 2\n'
    'evaluate = "none"\n[booster]\nmax_depth = 2\n'
)


def installed_as(folder: Path, release: str) -> str:
    """Return an import path on which the package has this version."""
    about = folder / f"as-{release}" / f"hedgerow-{release}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hedgerow\nVersion: {release}\n")
    return os.pathsep.join(filter(None, [str(about.parent), os.environ.get("PYTHONPATH")]))


def test_agent_one_minor_version_behind_takes_part_and_an_older_one_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    major, minor = (int(part) for part in version("hedgerow").split(".")[:2])
    tables = {f"s{k}": write_table(tmp_path / f"s{k}.parquet", 200, k) for k in range(3)}
    federation = Federation(tmp_path, tables, fresh=True)
    newer = f"{major}.{minor + 2}.0"
    try:
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", installed_as(tmp_path, newer))
            federation.start_coordinator()
            federation.start_agent("s0")
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", installed_as(tmp_path, f"{major}.{minor + 1}.7"))
            federation.start_agent("s1")
        federation.start_agent("s2")
        wait_until(lambda: not federation.alive("agent-s2"), 30, "the old agent has ended")
        told = federation.log("agent-s2").splitlines()[-1]
        assert told == (
            f"agent: the agent of s2 has version {version('hedgerow')}, the coordinator {newer}: "
            "they work together at most one minor version apart; upgrade the agent"
        )
        assert federation.processes["agent-s2"].returncode == 2
        view = federation.end(federation.submit(JOB))
        assert view.state == "SUCCEEDED", view.detail
        assert "registered" in federation.log("agent-s1")
    finally:
        federation.stop()


@pytest.mark.parametrize("agent", ["1.4.0", "1.3.9", "1.5.0rc1", "1.4.0.dev3+local"])
def test_neighbouring_minor_versions_work_together(agent: str) -> None:
    check_version(Silo("s"), agent, "1.4.2")


@pytest.mark.parametrize(
    ("agent", "upgrade"),
    [("1.2.9", "agent"), ("0.4.0", "agent"), ("1.6.0", "coordinator"), ("2.4.0", "coordinator")],
)
def test_distant_versions_are_refused_with_the_one_to_upgrade(agent: str, upgrade: str) -> None:
    with pytest.raises(VersionRefused, match=f"{re.escape(agent)}.* upgrade the {upgrade}$"):
        check_version(Silo("s"), agent, "1.4.2")


@pytest.mark.parametrize("agent", ["", "new", "1", "v1.4", "1." + "9" * 300])
def test_version_that_is_none_is_refused(agent: str) -> None:
    with pytest.raises(VersionRefused, match="expected MAJOR") as refused:
        check_version(Silo("s"), agent, "1.4.2")
    assert len(str(refused.value)) < 200
