"""The chart on a real cluster: four organisations join, train, lose pods, upgrade and leave.

Run by ``make test-kubernetes``; the tests build on each other, in this order.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
import yaml

from hedgerow.coordinator.operator.library.clients import fetch
from hedgerow.services.identity import certificates
from hedgerow.services.identity.certificates import Role
from tests.kubernetes.cluster import (
    ANY_USER,
    CHART,
    OFFICE,
    RELEASE,
    ROOT,
    SILOS,
    Rollout,
    apply,
    command,
    kubectl,
    log_of,
    namespace,
    pod_of,
    pod_uid,
    wait_until,
)

# On a machine that does nothing else; see `patience`.
READY_SECONDS = 30.0
REJOIN_SECONDS = 15.0
FAIL_OVER_SECONDS = 15.0
OTHERS = ("cert-manager.io/v1", "monitoring.coreos.com/v1")
"""APIs of cert-manager and of the Prometheus operator."""

BAGGING = """
name = "rollout-bagging"
strategy = "bagging"
label = "label"
task = "binary"
seed = 7
min_silos = 3
silos = ["harbour", "north", "valley"]
test_data = "test"
metrics = ["auc", "logloss"]
[bagging]
rounds = 10
lr_mode = "uniform"
[booster]
max_depth = 5
"""

SECURE = """
name = "rollout-secure"
strategy = "histogram"
label = "label"
task = "binary"
seed = 7
min_silos = 3
silos = ["harbour", "north", "valley"]
test_data = "test"
metrics = ["auc"]
max_attempts = 10
[histogram]
rounds = 40
secure = true
[booster]
max_depth = 4
"""

# It has to outlast the upgrade of four releases, and is cancelled then.
LONG = (
    BAGGING.replace("rounds = 10", "rounds = 20000")
    .replace("min_silos = 3", "min_silos = 2\nmax_attempts = 20")
    .replace("max_depth = 5", "max_depth = 2")
)


def patience() -> float:
    """Return by how much the queue for this machine's processors lengthens what is measured."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(scope="module")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollout]:
    folder = tmp_path_factory.mktemp("rollout")
    made = Rollout(folder, os.environ.get("HEDGEROW_TAG", "dev"))
    split = [sys.executable, "-m", "hedgerow", "split", "examples/data/adult.parquet"]
    options = ["--silos", "3", "--test", "0.25", "--seed", "7", "--out", str(folder / "tables")]
    subprocess.run([*split, *options], check=True, cwd=ROOT)
    tables = folder / "tables"
    for k, silo in enumerate(SILOS):
        (tables / f"silo-{k}.parquet").rename(tables / f"{silo}.parquet")
    defined = define_kinds()
    made.identity("operator", Role.OPERATOR, "office")
    hosts = (f"{RELEASE}.{OFFICE}.svc", RELEASE, "localhost")
    made.identity("coordinator", Role.COORDINATOR, "coordinator", hosts)
    try:
        for space in made.namespaces:
            kubectl("create", "namespace", space)
        made.secret(OFFICE, "identity", folder / "identities/coordinator")
        made.secret(OFFICE, "operator", folder / "identities/operator")
        made.claim(OFFICE, "tables", tables / "test.parquet")
        for silo in SILOS:
            agent = made.identity(silo, Role.SILO, silo)
            crypto = made.identity(
                f"crypto-{silo}", Role.CRYPTO, silo, (f"{RELEASE}-crypto", "localhost")
            )
            made.secret(namespace(silo), "identity", agent)
            made.secret(namespace(silo), "crypto", crypto)
            made.sealing(namespace(silo))
            made.claim(namespace(silo), "tables", tables / f"{silo}.parquet")
        yield made
    finally:
        folder = ROOT / "build"
        folder.mkdir(exist_ok=True)
        figures = {name: round(value, 1) for name, value in made.figures.items()}
        figures["load average"] = round(os.getloadavg()[0], 1)
        (folder / "rollout.json").write_text(json.dumps(figures) + "\n")
        kubectl("delete", "namespace", *made.namespaces, "--wait=true", check=False)
        kubectl("delete", "customresourcedefinition", *defined, check=False)


def define_kinds() -> list[str]:
    """Let the API server know the kinds of others that the chart uses; returns what was new."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "build/kubernetes/definitions")}
    printed = subprocess.run(
        [sys.executable, "-m", "tests.kubernetes.definitions"],
        env=environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    there = kubectl("get", "customresourcedefinition", "-o", "name")
    items = [
        item
        for item in json.loads(printed)["items"]
        if f"/{item['metadata']['name']}\n" not in there
    ]
    names = [item["metadata"]["name"] for item in items]
    if items:
        apply(*items)
        kubectl("wait", "--for=condition=Established", "--timeout=60s",
                *(f"customresourcedefinition/{name}" for name in names))  # fmt: skip
    return names


def rendered_for(rollout: Rollout, helm: str, who: str, *more: str) -> str:
    """Return a release's manifests, for this cluster with the kinds of others."""
    return command(
        helm, "template", RELEASE, str(CHART), "--values", str(rollout.values(who)),
        "-n", rollout.space(who), "--kube-version", "1.20.2", *more,
        *(part for api in OTHERS for part in ("--api-versions", api)),
    )  # fmt: skip


def dry_run(space: str, manifests: str) -> str:
    return kubectl("-n", space, "apply", "--dry-run=server", "-f", "-", stdin=manifests.encode())


@pytest.mark.parametrize("helm", ["helm", "helm3"])
@pytest.mark.parametrize("certificates", ["secrets", "cert-manager"])
def test_helm_lints_and_the_server_accepts_what_it_renders(
    rollout: Rollout, helm: str, certificates: str
) -> None:
    manager = "certificates.certManager.enabled=true,certificates.certManager.issuer.name=ca"
    more = ("--set", manager) if certificates == "cert-manager" else ()
    for who in ("office", *SILOS):
        command(helm, "lint", "--strict", str(CHART), "--values", str(rollout.values(who)))
        rendered = rendered_for(rollout, helm, who, *more)
        for kind in ("PodMonitor", "PrometheusRule", *(["Certificate"] if more else [])):
            assert f"\nkind: {kind}\n" in rendered
        accepted = dry_run(rollout.space(who), rendered)
        assert accepted.count("created (server dry run)") == rendered.count("\nkind: ")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("podMetricsEndpoints:", "podMetricEndpoints:"), ("  groups:", "  groupings: 3\n  groups:")],
)
def test_server_knows_the_fields_of_the_kinds_of_others(
    rollout: Rollout, right: str, wrong: str
) -> None:
    rendered = rendered_for(rollout, "helm", "office")
    assert rendered.count(right) == 1
    with pytest.raises(AssertionError, match=r"unknown field|required"):
        dry_run(OFFICE, rendered.replace(right, wrong))


def test_each_organisation_installs_one_release_and_is_ready(rollout: Rollout) -> None:
    for who in ("office", *SILOS):
        rollout.figures[f"install to ready, {who}"] = rollout.release("install", who)
    for silo in SILOS:
        assert "registered" in log_of(namespace(silo), f"{RELEASE}-agent-0")
        assert rollout.figures[f"install to ready, {silo}"] <= READY_SECONDS * patience()
        monitors = kubectl(
            "-n", namespace(silo), "get", "podmonitors,prometheusrules", "-o", "name"
        )
        assert len(monitors.split()) == 3
    assert rollout.figures["install to ready, office"] <= READY_SECONDS * patience()


def test_a_pod_runs_as_any_user_that_the_cluster_gives_it(rollout: Rollout) -> None:
    for of in (f"{RELEASE}-agent-0", pod_of(namespace("harbour"), "crypto")):
        said = kubectl("-n", namespace("harbour"), "exec", of, "--", "cat", "/proc/1/status")
        ids = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
        assert set(ids["Uid:"]) == {str(ANY_USER["runAsUser"])}
        assert set(ids["Gid:"]) == {"0"}
        assert set(ids["CapEff:"]) == {"0" * 16}


def test_bagging_over_the_cluster_gives_the_model_of_one_machine_byte_for_byte(
    rollout: Rollout,
) -> None:
    job_id = rollout.submit(BAGGING)
    view = rollout.end(job_id)
    assert len(view.rounds) == 10
    fetch(rollout.client, job_id, rollout.folder / "run")
    job = rollout.folder / "bagging.toml"
    job.write_text(BAGGING)
    tables = rollout.folder / "tables"
    silos = [part for s in SILOS for part in ("--silo", f"{s}={tables / f'{s}.parquet'}")]
    command(
        sys.executable, "-m", "hedgerow", "local", str(job), *silos,
        "--test", str(tables / "test.parquet"), "--out", str(rollout.folder / "local"),
    )  # fmt: skip
    models = [(rollout.folder / run / "model.ubj").read_bytes() for run in ("run", "local")]
    assert models[0] == models[1]
    scores = [
        [
            r["metrics"]["test"]
            for r in json.loads((rollout.folder / run / "report.json").read_text())["rounds"]
        ]
        for run in ("run", "local")
    ]
    # The same trees; logarithms may differ in their last bit between two C libraries.
    for ours, theirs in zip(*scores, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_secure_job_survives_the_deletion_of_a_silos_pod(rollout: Rollout) -> None:
    space, pod = namespace("north"), f"{RELEASE}-agent-0"
    job_id = rollout.submit(SECURE)
    rollout.wait(job_id, lambda view: len(view.rounds) >= 3, 300, "three rounds")
    before = pod_uid(space, pod)
    began = time.monotonic()
    kubectl("-n", space, "delete", "pod", pod, "--wait=false")
    wait_until(lambda: pod_uid(space, pod) not in (before, ""), 60, "the new pod")
    wait_until(lambda: "registered" in log_of(space, pod), 60, "the silo is back")
    rejoin = time.monotonic() - began
    rollout.figures["pod deletion to rejoin, silo"] = rejoin
    view = rollout.end(job_id)
    assert len(view.rounds) == 40
    assert view.attempt > 1
    assert rejoin <= REJOIN_SECONDS * patience()


def test_job_goes_on_after_the_coordinators_pod_is_deleted(rollout: Rollout) -> None:
    job_id = rollout.submit(LONG)
    seen = len(rollout.wait(job_id, lambda view: len(view.rounds) >= 5, 120, "rounds").rounds)
    old = pod_of(OFFICE, "coordinator")
    began = time.monotonic()
    kubectl("-n", OFFICE, "delete", "pod", old, "--wait=false")
    wait_until(lambda: pod_of(OFFICE, "coordinator") not in ("", old), 60, "the new pod")
    rollout.wait(job_id, lambda view: view.attempt > 1, 120, "the next attempt")
    rollout.wait(job_id, lambda view: len(view.rounds) > seen, 120, "the next round")
    rollout.figures["coordinator's pod deletion to the next round"] = time.monotonic() - began
    rollout.cancel(job_id)


def test_job_survives_the_upgrade_of_every_release(rollout: Rollout) -> None:
    newer = rollout.folder / "newer"
    shutil.copytree(CHART, newer)
    about = yaml.safe_load((newer / "Chart.yaml").read_text())
    (newer / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "0.1.1"}))
    job_id = rollout.submit(LONG)
    rollout.wait(job_id, lambda view: len(view.rounds) >= 3, 120, "rounds")
    before = {who: pod_uid(namespace(who), f"{RELEASE}-agent-0") for who in SILOS}
    for who in ("office", *SILOS):
        seconds = rollout.release(
            "upgrade", who, "--set", "podAnnotations.rollout=next", chart=newer
        )
        view = rollout.client.get(job_id)
        assert not view.ended, f"after round {len(view.rounds)}: {view.state} {view.detail}"
        rollout.figures[f"upgrade to ready, {who}"] = seconds
    after = {who: pod_uid(namespace(who), f"{RELEASE}-agent-0") for who in SILOS}
    assert not set(before.values()) & set(after.values())
    seen = len(rollout.client.get(job_id).rounds)
    rollout.wait(job_id, lambda view: len(view.rounds) > seen + 3, 200, "further rounds")
    rollout.cancel(job_id)
    listed = json.loads(command("helm", "list", "--namespace", OFFICE, "--output", "json"))
    assert listed[0]["chart"] == "hedgerow-0.1.1"


def test_renewed_certificate_is_served_without_a_restart(rollout: Rollout) -> None:
    def served() -> str:
        return kubectl(
            "-n", OFFICE, "exec", f"deployment/{RELEASE}", "--", "cat",
            "/etc/hedgerow/identity/tls.crt",
        )  # fmt: skip

    restarts = pod_of(OFFICE, "coordinator")
    hosts = (f"{RELEASE}.{OFFICE}.svc", RELEASE, "localhost")
    renewed = rollout.identity("coordinator", Role.COORDINATOR, "coordinator", hosts)
    rollout.secret(OFFICE, "identity", renewed)
    wanted = certificates.read(renewed / "tls.crt").decode().strip()
    wait_until(lambda: served().strip() == wanted, 150, "the kubelet has the new secret")
    assert list(rollout.client.list())
    assert pod_of(OFFICE, "coordinator") == restarts


def test_the_second_of_two_coordinators_goes_on_to_the_same_model(rollout: Rollout) -> None:
    rollout.share()
    rollout.figures["two coordinators, upgrade to ready"] = rollout.release("upgrade", "office")

    def asked(what: str, *more: str) -> list[str]:
        return kubectl("-n", OFFICE, "get", what, *more).split()

    def two() -> bool:
        allowed = "jsonpath={.status.disruptionsAllowed}"
        return asked("poddisruptionbudget", RELEASE, "-o", allowed) == ["1"]

    def active() -> set[str]:
        of = ("-l", "app.kubernetes.io/component=coordinator", "-o", "name")
        says = ("--", "sh", "-c", "healthy localhost:9464 hedgerow_active && echo it is")
        return {
            pod
            for pod in asked("pods", *of)
            if "it is" in kubectl("-n", OFFICE, "exec", pod, *says, check=False)
        }

    def since(pod: str) -> float:
        """Return when a coordinator became the active one, by its log: asking takes seconds."""
        lines = map(json.loads, log_of(OFFICE, pod).splitlines())
        (said,) = [line["timestamp"] for line in lines if line["event"] == "active"]
        return datetime.fromisoformat(said).timestamp()

    def ended(how: str, *options: str) -> None:
        before = active()
        attempt, at, began = rollout.client.get(job_id).attempt, time.time(), time.monotonic()
        kubectl("-n", OFFICE, "delete", *before, "--wait=false", *options)
        rollout.wait(job_id, lambda view: view.rounds[-1].attempt > attempt, 120, "the next round")
        rollout.figures[f"active coordinator {how} to the next round"] = time.monotonic() - began
        wait_until(lambda: bool(active() - before), 60, "the other is active")
        (other,) = active() - before
        rollout.figures[f"active coordinator {how} to the other active"] = since(other) - at
        late = rollout.figures[f"active coordinator {how} to the next round"]
        assert late <= FAIL_OVER_SECONDS * patience()
        wait_until(two, 120, "there are two again")

    wait_until(two, 60, "one of two may be drained")
    lasts = SECURE.replace("rounds = 40", "rounds = 150")
    whole = rollout.submit(lasts)
    rollout.end(whole)
    job_id = rollout.submit(lasts)
    rollout.wait(job_id, lambda view: len(view.rounds) >= 3, 300, "three rounds")
    ended("deleted")
    ended("killed", "--grace-period=0", "--force")
    assert rollout.end(job_id).attempt > 1
    models = [rollout.client.download(job)[1] for job in (whole, job_id)]
    assert models[0] == models[1]


def test_helm_test_runs_a_job_and_checks_its_result(rollout: Rollout) -> None:
    told = command("helm", "test", RELEASE, "--namespace", OFFICE, "--timeout", "200s")
    assert "Succeeded" in told


def test_leaving_takes_everything_along_but_what_was_to_be_kept(rollout: Rollout) -> None:
    label = f"app.kubernetes.io/instance={RELEASE}"
    kinds = kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    for who in ("office", *SILOS):
        space = rollout.space(who)
        command("helm", "uninstall", RELEASE, "--namespace", space, "--wait")

        def left(space: str = space) -> list[str]:
            found = kubectl("-n", space, "get", ",".join(kinds), "-l", label, "-o", "name")
            return [name for name in found.split() if not name.startswith("endpointslice")]

        kept = [f"persistentvolumeclaim/{RELEASE}"] if who == "north" else []
        wait_until(lambda left=left, kept=kept: left() == kept, 90, f"{who} has left")
    assert "hedgerow" not in kubectl("get", "clusterroles,clusterrolebindings,crds", "-o", "name")
