"""What the chart renders, by the schemas of the oldest and newest Kubernetes; needs no cluster.

Run by ``.ci/run chart`` and ``make test-kubernetes``, which get Helm and the schemas.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.cluster import CHART, RELEASE, ROOT, command

API_VERSIONS = ("1.20", "1.37")


@pytest.mark.parametrize("version", API_VERSIONS)
def test_every_example_is_valid_for_the_oldest_and_the_newest_api(
    version: str, tmp_path: Path
) -> None:
    validate = [sys.executable, "-W", "ignore", "-m", "kubernetes_validate", "--strict"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / f"build/kubernetes/{version}")}
    for values in sorted((CHART / "examples").glob("*.yaml")):
        rendered = command(
            "helm", "template", RELEASE, str(CHART), "--values", str(values),
            "--kube-version", f"{version}.0", "--api-versions", "cert-manager.io/v1",
            "--set", "test.operatorSecret=operator", "--set-string", "test.job=x",
        )  # fmt: skip
        # The schemas know Kubernetes' own kinds; cert-manager's are its own.
        kinds = [t for t in yaml.safe_load_all(rendered) if t and "cert-" not in t["apiVersion"]]
        path = tmp_path / "rendered.yaml"
        path.write_text(yaml.safe_dump_all(kinds))
        done = subprocess.run(
            [*validate, "-k", version, str(path)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr.count("passed") + done.stdout.count("passed") == len(kinds)
