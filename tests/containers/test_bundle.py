"""The bundle for machines without a network installs on one, and brings the images along."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.containers.compose import ROOT, TAG, docker, run

pytestmark = [pytest.mark.timeout(1800), pytest.mark.quick]
KEPT, CARRIED = f"hedgerow/crypto:{TAG}", "hedgerow/crypto:carried"
ROUTES = "ip link set lo up && test $(wc -l </proc/net/route) = 1"


def test_a_bundle_installs_where_there_is_no_network(tmp_path: Path) -> None:
    docker("tag", KEPT, CARRIED)
    identity = docker("image", "inspect", "--format", "{{.Id}}", CARRIED)
    file, folder = tmp_path / "bundle.tar", tmp_path / "hedgerow-bundle"
    run("make", "-C", str(ROOT), "build/tools/bin/cyclonedx-py")
    tools = f"{ROOT / 'build/tools/bin'}:{os.environ['PATH']}"
    settings = (f"PATH={tools}", f"PYTHON={sys.executable}", "EXTRAS=postgres")
    if built := sorted((ROOT / "build/dist").glob("*.whl")):  # by `.ci/run wheel`
        settings += (f"WHEEL={built[-1]}",)
    said = run("env", *settings, str(ROOT / "deploy/bundle"), str(file), CARRIED)
    run("sha256sum", "--check", "--strict", stdin=said)
    run("tar", "-x", "-C", str(tmp_path), "-f", str(file))
    docker("rmi", CARRIED)

    def offline(command: str) -> str:
        """Run in a network namespace of its own; Docker's socket is a file."""
        script = f"set -e; cd {tmp_path}; {ROUTES}; PYTHON={sys.executable}; {command}"
        return run("unshare", "--net", "bash", "-c", script).decode()

    installed = offline("export PYTHON; hedgerow-bundle/install here")
    assert f"Loaded image: {CARRIED}" in installed
    assert docker("image", "inspect", "--format", "{{.Id}}", CARRIED) == identity
    assert "accuracy" in offline("here/bin/hedgerow demo")
    offline("docker compose -f hedgerow-bundle/compose/docker-compose.yml config --quiet")
    (chart,) = folder.glob("hedgerow-chart-*.tgz")
    names = run("tar", "-tzf", str(chart)).decode().split()
    assert {"hedgerow/Chart.yaml", "hedgerow/files/rules.yml"} <= set(names)
    assert {"hedgerow.cdx.json", "image-crypto.cdx.json"} <= {
        path.name for path in (folder / "sbom").iterdir()
    }
    wheel = next((folder / "wheels").glob("numpy-*"))
    wheel.write_bytes(b"\0" + wheel.read_bytes()[1:])
    with pytest.raises(AssertionError, match="did NOT match"):
        offline("export PYTHON; hedgerow-bundle/install again")
    assert not (tmp_path / "again").exists()
    docker("rmi", CARRIED)
