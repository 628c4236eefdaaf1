"""docker-compose.yml and the images' lists say what they should, without an engine."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from deploy.images.pin import PYTHON
from hedgerow.coordinator.operator.commands.console import console
from tests.federation.processes import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DISPLAYS = {"prometheus", "alertmanager", "grafana"}
OURS = sorted(SERVICES.keys() - DISPLAYS - {"database"})
CRYPTO = sorted(name for name in SERVICES if name.startswith("crypto-"))
AGENTS = sorted(name for name in SERVICES if name.startswith("agent-"))

NAMED = "${HEDGEROW_REGISTRY:-}hedgerow/"


def networks(service: str) -> set[str]:
    return set(SERVICES[service].get("networks", ()))


def volumes(service: str) -> dict[str, str]:
    """Return the named volumes of a service and whether they may be written to."""
    found = {}
    for mount in SERVICES[service].get("volumes", ()):
        source, _, rest = mount.partition(":")
        if not source.startswith("."):
            found[source] = "ro" if rest.endswith(":ro") else "rw"
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_is_hardened(service: str) -> None:
    settings = SERVICES[service]
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in settings
    assert "cap_add" not in settings


def test_no_crypto_process_shares_a_network_with_the_coordinator() -> None:
    assert len(CRYPTO) == len(AGENTS) == 6
    for service in CRYPTO:
        assert not networks(service) & networks("coordinator")
        assert len(networks(service)) == 1
        assert COMPOSE["networks"][networks(service).pop()] == {"internal": True}


def test_each_crypto_process_shares_its_network_with_its_own_agent_alone() -> None:
    for service in CRYPTO:
        sharing = {s for s in (*AGENTS, *CRYPTO, *OURS) if networks(s) & networks(service)}
        assert sharing == {service, service.replace("crypto-", "agent-")}


def test_the_cluster_of_a_silo_reaches_its_agent_alone_and_no_key() -> None:
    cluster = {"dask-scheduler", "dask-worker"}
    for service in cluster:
        assert networks(service) == {"silo-0-cluster"}
        assert not volumes(service)
        assert SERVICES[service]["profiles"] == ["dask"]
    sharing = {name for name in SERVICES if "silo-0-cluster" in networks(name)}
    assert sharing == cluster | {"agent-0"}
    assert COMPOSE["networks"]["silo-0-cluster"] == {"internal": True}


def test_no_process_of_ours_is_asked_for_its_health_by_a_python_of_its_own() -> None:
    asked = {
        name: SERVICES[name]["healthcheck"]["test"]
        for name in OURS
        if "healthcheck" in SERVICES[name]
    }
    assert asked.keys() >= {*AGENTS, *CRYPTO, "coordinator", "console", "dask-scheduler"}
    for name, (_, program, *of) in asked.items():
        assert (program, *of[1:]) in {
            ("healthy", "hedgerow_lease_held"), ("healthy", "hedgerow_serving"), ("healthy",)
        }, name  # fmt: skip
    assert asked["dask-scheduler"] == ["CMD", "healthy", "localhost:8787/health"]
    assert "localhost:8787" in SERVICES["dask-scheduler"]["command"]


def test_the_settings_of_the_dask_profile_name_its_scheduler_and_its_image() -> None:
    lines = (ROOT / "deploy/compose/dask.env").read_text().split()
    settings = dict(line.split("=") for line in lines)
    agent = SERVICES["agent-0"]
    assert agent["environment"]["HEDGEROW_AGENT_DASK"] == "${HEDGEROW_DASK:-}"
    assert settings["HEDGEROW_DASK"] in SERVICES["dask-worker"]["command"]
    assert settings["HEDGEROW_DASK"] == "tcp://dask-scheduler:8786"
    image = SERVICES["dask-scheduler"]["image"]
    assert image == f"{NAMED}{settings['HEDGEROW_AGENT_IMAGE']}:${{HEDGEROW_TAG:-dev}}"


def test_a_coordinator_that_stands_by_is_the_other_one_under_another_name() -> None:
    own = {"profiles", "ports"}
    second = SERVICES["coordinator-standby"]
    assert second["profiles"] == ["standby"]
    assert {k: v for k, v in second.items() if k not in own} == {
        k: v for k, v in SERVICES["coordinator"].items() if k not in own
    }
    name, _, both = (ROOT / "deploy/compose/standby.env").read_text().strip().partition("=")
    assert both == "coordinator:7443,coordinator-standby:7443"
    given = f"${{{name}:-coordinator:7443}}"
    for service in AGENTS:
        assert SERVICES[service]["environment"]["HEDGEROW_AGENT_COORDINATOR"] == given
    for service in ("cli", "console", "demo", "demo-vertical"):
        assert SERVICES[service]["environment"]["HEDGEROW_COORDINATOR"] == given


def test_only_the_coordinator_and_the_displays_publish_a_port_on_loopback() -> None:
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    ours = {"coordinator", "coordinator-standby", "console"}
    assert published.keys() == ours | DISPLAYS
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_every_key_is_in_a_volume_of_one_process_that_cannot_write_it() -> None:
    users = Counter(
        name
        for service in (*AGENTS, *CRYPTO, "coordinator")
        for name in volumes(service)
        if name.endswith("-identity")
    )
    assert len(users) == 13
    assert set(users.values()) == {1}
    for service in (*AGENTS, *CRYPTO, "coordinator"):
        assert all(
            mode == "ro" for name, mode in volumes(service).items() if name.endswith("-identity")
        )
    assert [s for s in SERVICES if "ca" in volumes(s)] == ["pki"]


def test_the_console_takes_its_words_and_is_an_operator_alone() -> None:
    service = SERVICES["console"]
    words = [re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in service["command"]]
    assert words[0] == "console"
    with console.make_context("console", words[1:], resilient_parsing=False) as context:
        assert context.params["url"] == "http://127.0.0.1:8080"
        assert context.params["listen"] == "0.0.0.0:8080"
    assert volumes("console") == {"operator-identity": "ro"}
    assert networks("console") == {"federation"}


def test_every_file_that_is_mounted_is_there() -> None:
    for settings in SERVICES.values():
        for mount in settings.get("volumes", ()):
            if mount.startswith("."):
                assert (ROOT / mount.split(":")[0]).exists(), mount


def test_the_coordinator_admits_the_silos_that_have_an_agent() -> None:
    config = tomllib.loads((ROOT / "deploy/compose/coordinator.toml").read_text())
    identities = [v for s in AGENTS for v in volumes(s) if v.endswith("-identity")]
    assert sorted(config["silos"]) == sorted(v.removesuffix("-identity") for v in identities)


def test_prometheus_scrapes_every_process() -> None:
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    for service in (*AGENTS, *CRYPTO, "coordinator", "coordinator-standby"):
        assert re.search(rf"\b{re.escape(service)}\b", text), service


def test_agents_run_the_image_that_is_chosen_and_built() -> None:
    chosen = "${HEDGEROW_AGENT_IMAGE:-agent}"
    for agent in AGENTS:
        assert SERVICES[agent]["image"].startswith(f"{NAMED}{chosen}:")
        assert SERVICES[agent]["build"]["target"] == chosen
    targets = re.findall(
        r"^FROM \S+ AS (agent\S*)$", (ROOT / "deploy/Dockerfile").read_text(), re.M
    )
    schema = json.loads((ROOT / "deploy/chart/values.schema.json").read_text())
    agent = schema["properties"]["silo"]["properties"]["agent"]["properties"]
    assert agent["image"]["enum"] == targets == ["agent", "agent-torch", "agent-dask"]


@pytest.mark.parametrize("image", ["crypto", "coordinator", "console", "agent-torch", "agent-dask"])
def test_every_package_of_an_image_is_pinned(image: str) -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pins = map(Requirement, (ROOT / "constraints.txt").read_text().splitlines())
    images = {"python_version": PYTHON}
    of_images = [pin for pin in pins if not pin.marker or pin.marker.evaluate(images)]
    pinned = {plain(pin.name): str(pin.specifier).removeprefix("==") for pin in of_images}
    lines = (ROOT / f"deploy/images/{image}.txt").read_text().splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    assert wanted
    for line in wanted:
        found = re.fullmatch(r"(\S+)==(\S+)( --hash=sha256:[0-9a-f]{64}){1,2}", line)
        assert found, line
        assert pinned[plain(found[1])] == found[2], f"{line}: run make image-pins"


def test_the_dockerfile_pulls_no_syntax_image_and_runs_as_no_root() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    assert "# syntax=" not in text
    assert text.strip().splitlines()[-1] == "USER 10001:10001"


def test_images_have_one_name_in_the_workflow_the_chart_and_compose() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/packages.yml").read_text())["jobs"]
    chart = yaml.safe_load((ROOT / "deploy/chart/Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text())["image"]
    repository = chart["home"].removeprefix("https://github.com/")
    publish = workflow["publish"]
    pushed = publish["env"]["IMAGE"].replace("${{ github.repository }}", repository)
    assert pushed == f"{values['registry']}/{values['repository']}/${{{{ matrix.target }}}}"
    (push,) = (s["with"] for s in publish["steps"] if "build-push" in s.get("uses", ""))
    assert push["platforms"] == "linux/amd64,linux/arm64"
    # The tag is the version, as the chart's appVersion is, which it takes where no tag is given.
    assert push["tags"] == "${{ env.IMAGE }}:${{ env.VERSION }}"
    assert any("VERSION=${GITHUB_REF_NAME#v}" in s.get("run", "") for s in publish["steps"])
    assert values["tag"] == ""
    assert chart["version"] == chart["appVersion"]
    (chart_push,) = (
        s["run"] for s in workflow["chart"]["steps"] if "helm push" in s.get("run", "")
    )
    assert '"oci://ghcr.io/$GITHUB_REPOSITORY/charts"' in chart_push
    targets = publish["strategy"]["matrix"]["target"]
    chosen = ("${HEDGEROW_AGENT_IMAGE:-agent}", "agent")
    ours = {s["image"].replace(*chosen) for s in SERVICES.values() if "build" in s}
    assert ours <= {f"{NAMED}{target}:${{HEDGEROW_TAG:-dev}}" for target in targets}
    schema = json.loads((ROOT / "deploy/chart/values.schema.json").read_text())
    named = schema["properties"]["image"]["properties"]["digests"]["propertyNames"]["enum"]
    assert sorted([*named, "demo"]) == sorted(targets)
    release = f"HEDGEROW_REGISTRY={values['registry']}/ HEDGEROW_TAG={chart['appVersion']} "
    assert release in (ROOT / "docker-compose.yml").read_text()
    built = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "deploy/Dockerfile").read_text(), re.M)
    assert set(targets) <= set(built)
    for page in ("SECURITY.md", "docs/kubernetes.md"):
        names = re.findall(
            rf"{re.escape(repository)}/(\w[\w-]*):([\w.]+)", (ROOT / page).read_text()
        )
        assert names, page
        assert {tag for _, tag in names} == {chart["appVersion"]}
        assert {name for name, _ in names} <= set(targets)
