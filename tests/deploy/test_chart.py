"""The chart as files: what it renders, what its schema refuses. tests/kubernetes/ installs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart_readme import readme, rows
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.coordinator.operator.commands.console import console
from hedgerow.crypto.ciphers.tokens import TokenUri
from hedgerow.crypto.config import CryptoSettings
from hedgerow.services.process import settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/chart"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
TOOLS = Path(os.environ.get("KUBE_UP_DIR", Path.home() / ".cache/kube-up")) / "bin"
LEAVES = ("resources", "policy", "settings", "podSecurityContext", "containerSecurityContext")
"""Without defaults for every key."""
URI = "pkcs11:token=north;object=sealing?module-path=/hsm/libvendor.so"
CRDS = ("cert-manager.io/v1", "monitoring.coreos.com/v1")


def found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(TOOLS))


HELMS = [name for name in ("helm", "helm3") if found(name)]
with_helm = pytest.mark.skipif(
    not HELMS, reason="no Helm here: deploy/ci/kube-up --tools-only gets it"
)


def helm(*arguments: str, name: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(found(name or HELMS[0])), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(values: Path, *more: str, name: str = "") -> list[dict[str, Any]]:
    crds = [part for api in CRDS for part in ("--api-versions", api)]
    made = helm(
        "template", "it", str(CHART), "--values", str(values), "-n", "here", *crds, *more, name=name
    )
    assert made.returncode == 0, made.stderr
    return [thing for thing in yaml.safe_load_all(made.stdout) if thing]


def of_kind(things: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [thing for thing in things if thing["kind"] == kind]


def pods(things: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for thing in things:
        if thing["kind"] == "Pod":
            yield thing["spec"]
        elif thing["kind"] in ("Deployment", "StatefulSet"):
            yield thing["spec"]["template"]["spec"]


def example(name: str) -> Path:
    return CHART / f"examples/{name}.yaml"


def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if schema.get("type") == "object":
        yield schema
    for value in schema.get("properties", {}).values():
        yield from objects(value)


def test_schema_closes_every_object_that_the_chart_itself_reads() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    shared = schema["definitions"].values()
    for found_object in (one for part in (schema, *shared) for one in objects(part)):
        if "properties" in found_object:
            assert found_object["additionalProperties"] is False, list(found_object["properties"])


def test_schema_has_exactly_the_default_values() -> None:
    def compare(schema: dict[str, Any], values: dict[str, Any], where: str) -> None:
        assert set(schema["properties"]) - {"global"} == set(values), where
        for key, value in values.items():
            inner = schema["properties"][key]
            if isinstance(value, dict) and "properties" in inner and key not in LEAVES:
                compare(inner, value, f"{where}.{key}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    compare(schema, yaml.safe_load((CHART / "values.yaml").read_text()), "values")


def test_every_value_is_explained() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()

    def leaves(values: dict[str, Any]) -> Iterator[str]:
        for key, value in values.items():
            if isinstance(value, dict) and value and key not in (*LEAVES, "dashboardLabels"):
                yield from leaves(value)
            else:
                yield key

    for key in leaves(yaml.safe_load((CHART / "values.yaml").read_text())):
        assert re.search(rf"`[^`\n]*\b{key}\b[^`\n]*`|^ *{key}:", page, re.MULTILINE), key


def test_every_rule_of_a_policy_is_explained() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert [rule for rule in Policy.model_fields if f"`{rule}`" not in page] == []


def test_policy_in_the_schema_has_the_rules_of_the_agent() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    policy = schema["properties"]["silo"]["properties"]["policy"]
    assert set(policy["properties"]) == set(Policy.model_fields)


def test_chart_is_of_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


@with_helm
@pytest.mark.parametrize("name", HELMS)
@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_every_helm_lints_every_example(values: Path, name: str) -> None:
    linted = helm("lint", "--strict", str(CHART), "--values", str(values), name=name)
    assert linted.returncode == 0, linted.stdout


@with_helm
@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_every_helm_renders_the_same(values: Path) -> None:
    rendered = [render(values, name=name) for name in HELMS]
    assert all(other == rendered[0] for other in rendered)


@with_helm
@pytest.mark.parametrize(
    ("values", "change", "named"),
    [
        ("north-clinic", "silo.polcy.min_silos=3", "polcy"),
        ("north-clinic", "silo.policy.min_silo=3", "min_silo"),
        ("north-clinic", "silo.data.sqlSecret=too", "data"),
        ("north-clinic", "silo.coordinator=example.org", "coordinator"),
        ("north-clinic", "silo.policy.min_key_bits=1024", "min_key_bits"),
        ("north-clinic", "certificates.cryptoSecret=", "cryptoSecret"),
        ("north-clinic", "image.tag=latest", "tag"),
        ("north-clinic", "silo.agent.image=torch", "image"),
        ("coordinator", "coordinator.replicas=2", "databaseSecret"),
        ("coordinator-postgresql", "coordinator.replicas=2,coordinator.artefacts=", "artefacts"),
        ("coordinator-postgresql", "coordinator.replicas=2,coordinator.audit=/a/file", "audit"),
        ("coordinator", "coordinator.pod.extraEnvs[0].name=a", "extraEnvs"),
        ("coordinator", "image.digests.agent=latest", "agent"),
        ("coordinator", "coordinator.settings.database=x", "database"),
        ("north-clinic", "silo.settings.state=/x", "state"),
        ("north-clinic", "silo.settings.test.sql_url=postgresql://x:y@z", "sql_url"),
        ("north-clinic", "silo.settings.proxy=http://user:password@proxy:3128", "proxy"),
        ("north-clinic", "silo.crypto.hsm.pinSecret=pin", "belong together"),
        ("north-clinic", f"silo.crypto.hsm.keyUri={URI},silo.crypto.hsm.pinSecret=pin", "both"),
        ("north-clinic", f"silo.crypto.hsm.keyUri={URI}&pin-value=1", "keyUri"),
        ("coordinator", "role=operator", "role"),
        ("coordinator", "certificates.secret=", "secret"),
        ("coordinator", "federation=a/b", "federation"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(values: str, change: str, named: str) -> None:
    made = helm("template", str(CHART), "--values", str(example(values)), "--set", change)
    assert made.returncode != 0
    assert named in made.stderr


@with_helm
@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_pods_are_hardened(values: Path) -> None:
    job = ["--set", "test.operatorSecret=operator", "--set-string", "test.job=x"]
    specs = list(pods(render(values, *job)))
    assert len(specs) == (2 if "coordinator" in values.stem else 3)
    for spec in specs:
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "limits" in container["resources"]


@with_helm
@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_settings_are_those_that_the_processes_read(values: Path, tmp_path: Path) -> None:
    kinds = {
        "coordinator.toml": CoordinatorSettings,
        "agent.toml": AgentSettings,
        "crypto.toml": CryptoSettings,
    }
    names = set()
    for thing in of_kind(render(values), "ConfigMap"):
        for name, text in thing["data"].items():
            if name in kinds:
                path = tmp_path / name
                path.write_text(text)
                settings.load(kinds[name], path)
                names.add(name)
    wanted = (
        {"coordinator.toml"} if "coordinator" in values.stem else set(kinds) - {"coordinator.toml"}
    )
    assert names == wanted


@with_helm
def test_keys_are_sealed_in_an_hsm_whose_pin_the_crypto_process_alone_reads(tmp_path: Path) -> None:
    mount = {"name": "hsm", "mountPath": "/hsm", "readOnly": True}
    pod = {
        "extraVolumes": [{"name": "hsm", "hostPath": {"path": "/opt/vendor"}}],
        "extraVolumeMounts": [mount],
    }
    hsm = {"keyUri": URI, "pinSecret": "token-pin"}
    given = tmp_path / "given.yaml"
    crypto = {"sealingSecret": "", "hsm": hsm, "pod": pod}
    given.write_text(yaml.safe_dump({"silo": {"crypto": crypto}}))
    things = render(example("north-clinic"), "--values", str(given))
    texts = [c["data"]["crypto.toml"] for c in of_kind(things, "ConfigMap")
             if "crypto.toml" in c["data"]]  # fmt: skip
    path = tmp_path / "crypto.toml"
    path.write_text(texts[0])
    loaded = settings.load(CryptoSettings, path)
    assert loaded.key_file is None
    uri = TokenUri.parse(str(loaded.key_uri))
    assert (uri.token, uri.key, uri.module) == ("north", "sealing", "/hsm/libvendor.so")
    readers = [spec for spec in pods(things) if "token-pin" in json.dumps(spec)]
    assert [spec["containers"][0]["name"] for spec in readers] == ["crypto"]
    assert mount in readers[0]["containers"][0]["volumeMounts"]
    (at,) = [m["mountPath"] for m in readers[0]["containers"][0]["volumeMounts"]
             if m["name"] == "pin"]  # fmt: skip
    assert uri.pin_file == Path(at) / "pin"


@with_helm
def test_silo_can_be_dialled_by_nobody_but_its_own_agent() -> None:
    things = render(example("north-clinic"))
    services = of_kind(things, "Service")
    assert [s["metadata"]["name"] for s in services] == ["it-hedgerow-crypto"]
    assert services[0]["spec"]["type"] == "ClusterIP"
    rules = {p["metadata"]["name"]: p["spec"] for p in of_kind(things, "NetworkPolicy")}
    agent, crypto = rules["it-hedgerow-agent"], rules["it-hedgerow-crypto"]
    assert agent["ingress"] == []
    assert crypto["egress"] == []
    (only,) = crypto["ingress"]
    assert only["from"] == [{"podSelector": agent["podSelector"]}]
    ports = sorted(port["port"] for rule in agent["egress"] for port in rule["ports"])
    assert ports == [53, 53, 7443, 7444]
    assert agent["egress"][-1]["to"] == [{"ipBlock": {"cidr": "203.0.113.7/32"}}]


CONSOLE = [
    word
    for name, value in {
        "enabled": "true", "url": "https://trees.example.org", "operatorSecret": "operator",
        "authProxy.image": "proxy:1", "authProxy.passwordSecret": "shared",
    }.items()
    for word in ("--set", f"console.{name}={value}")
]  # fmt: skip


@with_helm
@pytest.mark.parametrize(
    ("values", "dialled"),
    [("coordinator", "it-hedgerow:7443"), ("north-clinic", "hedgerow.cardio.example:7443")],
)
def test_console_is_behind_the_sign_on_of_its_pod(
    values: str, dialled: str, tmp_path: Path
) -> None:
    with_args = ["--set", "console.authProxy.args[0]=--basic-auth-password=$(CONSOLE_PASSWORD)"]
    things = render(example(values), *CONSOLE, *with_args)
    spec = next(spec for spec in pods(things) if spec["containers"][0]["name"] == "console")
    ours, proxy = spec["containers"]
    words = list(ours["args"])
    password = tmp_path / "password"
    password.write_text("p" * 48)
    assert words[-1] == "/etc/hedgerow/sign-on/password"
    with console.make_context("console", [*words[1:-1], str(password)]) as context:
        assert context.params["listen"].startswith("127.0.0.1:")  # of the pod alone
        assert context.params["url"] == "https://trees.example.org"
    assert {"name": "HEDGEROW_COORDINATOR", "value": dialled} in ours["env"]
    assert "ports" not in ours
    assert "envFrom" not in ours
    assert proxy["image"] == "proxy:1"
    assert proxy["args"] == ["--basic-auth-password=$(CONSOLE_PASSWORD)"]
    assert proxy["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "shared", "key": "password"}
    assert not proxy.get("volumeMounts")  # it never sees the operator's key
    for container in (ours, proxy):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "limits" in container["resources"]
    (service,) = [
        s for s in of_kind(things, "Service") if s["metadata"]["name"].endswith("-console")
    ]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]
    assert [port["containerPort"] for port in proxy["ports"]] == [4180]
    assert render(example(values)) == [
        thing for thing in things if not thing["metadata"]["name"].endswith("-console")
    ]


@with_helm
def test_users_of_the_console_have_their_own_secrets_and_nobody_elses(tmp_path: Path) -> None:
    users = {"ann@example.org": "of-ann", "bo": "of-bo"}
    values = tmp_path / "users.yaml"
    values.write_text(json.dumps({"console": {"users": users, "userHeader": "X-Remote-User"}}))
    changes = ["--values", str(values), "--set", "console.operatorSecret="]
    things = render(example("coordinator"), *CONSOLE, *changes)
    spec = next(spec for spec in pods(things) if spec["containers"][0]["name"] == "console")
    ours, proxy = spec["containers"]
    words = [word.replace("/etc/hedgerow", str(tmp_path)) for word in ours["args"]]
    (tmp_path / "sign-on").mkdir()
    (tmp_path / "sign-on/password").write_text("p" * 48)
    (tmp_path / "users").mkdir()
    with console.make_context("console", words[1:]) as context:
        assert context.params["users"] == tmp_path / "users"
        assert context.params["user_header"] == "X-Remote-User"
    secrets = {v["name"]: v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
    mounted = {m["mountPath"]: secrets.get(m["name"]) for m in ours["volumeMounts"]}
    folder = "/etc/hedgerow/users/"
    assert mounted == {
        **{folder + user: secret for user, secret in users.items()},
        "/etc/hedgerow/sign-on": "shared",
        "/tmp": None,
    }
    assert "HEDGEROW_IDENTITY" not in {one["name"] for one in ours["env"]}
    assert not proxy.get("volumeMounts")
    for wrong in ("users.a/b=x", "users.bo="):
        words = [*CONSOLE, "--set", f"console.{wrong}"]
        assert helm("template", str(CHART), "-f", str(example("coordinator")), *words).returncode


@with_helm
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("console.url=http://trees.example.org", "url"),
        ("console.operatorSecret=", "operatorSecret"),
        ("console.authProxy.image=", "image"),
        ("console.authProxy.passwordSecret=", "passwordSecret"),
        ("console.authProxy.port=8080", "port"),
    ],
)
def test_console_without_a_sign_on_is_refused(change: str, named: str) -> None:
    words = ("template", str(CHART), "--values", str(example("coordinator")), *CONSOLE)
    assert helm(*words).returncode == 0
    made = helm(*words, "--set", change)
    assert made.returncode != 0
    assert named in made.stderr


@with_helm
def test_coordinator_with_a_volume_is_one_process_that_is_replaced_not_doubled() -> None:
    things = render(example("coordinator"))
    (deployment,) = of_kind(things, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    (budget,) = of_kind(things, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    (service,) = of_kind(things, "Service")
    assert service["spec"]["publishNotReadyAddresses"] is True


@with_helm
def test_coordinators_that_share_their_state_elsewhere_have_no_volume_and_may_be_drained() -> None:
    things = render(example("coordinator-postgresql"), "--set", "coordinator.replicas=2")
    assert not of_kind(things, "PersistentVolumeClaim")
    (deployment,) = of_kind(things, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    spec = deployment["spec"]["template"]["spec"]
    assert [v for v in spec["volumes"] if v["name"] == "state"] == [
        {"name": "state", "emptyDir": {}}
    ]
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["labelSelector"] == deployment["spec"]["selector"]
    (budget,) = of_kind(things, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert "minAvailable" not in budget["spec"]
    (service,) = of_kind(things, "Service")
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["sessionAffinity"] == "None"
    assert "publishNotReadyAddresses" not in service["spec"]


GIVEN: dict[str, Any] = {
    "podAnnotations": {"a/b": "c"},
    "podLabels": {"team": "trees"},
    "podSecurityContext": {"runAsUser": 7, "fsGroup": None},
    "containerSecurityContext": {"readOnlyRootFilesystem": False},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "own", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["own.example"]}],
    "priorityClassName": "high",
    "serviceAccountName": "own",
    "extraEnv": [{"name": "OWN", "value": "1"}],
    "extraEnvFrom": [{"configMapRef": {"name": "own"}}],
    "extraVolumes": [{"name": "own", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
    "initContainers": [{"name": "before", "image": "before:1"}],
    "sidecars": [
        {"name": "beside", "image": "beside:1", "securityContext": {"readOnlyRootFilesystem": True}}
    ],
}


@with_helm
@pytest.mark.parametrize(
    ("values", "where"),
    [
        ("coordinator", "coordinator"),
        ("north-clinic", "silo.agent"),
        ("north-clinic", "silo.crypto"),
        ("north-clinic", "console"),
    ],
)
def test_every_pod_takes_what_it_is_given_and_the_others_do_not(
    values: str, where: str, tmp_path: Path
) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["definitions"]["pod"]["properties"].keys() == GIVEN.keys()
    assert set(GIVEN) - set(schema["properties"]) == {
        key for key in GIVEN if key.startswith("extra")
    } | {"serviceAccountName", "initContainers", "sidecars"}
    own: dict[str, Any] = {"pod": GIVEN}
    for part in reversed(where.split(".")):
        own = {part: own}
    file = tmp_path / "own.yaml"
    everyones = {"tolerations": [{"key": "all"}], "nodeSelector": {"disk": "slow", "arch": "arm64"}}
    file.write_text(yaml.safe_dump(own | everyones))
    things = render(example(values), *CONSOLE, "--values", str(file))
    templates = {
        thing["spec"]["template"]["spec"]["containers"][0]["name"]: thing["spec"]["template"]
        for thing in (*of_kind(things, "Deployment"), *of_kind(things, "StatefulSet"))
    }
    given = templates.pop(where.rpartition(".")[2])
    spec, (process, *_) = given["spec"], given["spec"]["containers"]
    assert given["metadata"]["annotations"]["a/b"] == "c"
    assert given["metadata"]["labels"]["team"] == "trees"
    assert spec["securityContext"]["runAsUser"] == 7
    assert spec["securityContext"].get("fsGroup") is None
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["nodeSelector"] == {"disk": "fast", "arch": "arm64"}
    assert spec["tolerations"] == [{"key": "all"}, *GIVEN["tolerations"]]
    for key in ("affinity", "topologySpreadConstraints", "hostAliases", "priorityClassName"):
        assert spec[key] == GIVEN[key]
    assert spec["serviceAccountName"] == "own"
    assert spec["automountServiceAccountToken"] is False
    assert process["env"][-1:] == GIVEN["extraEnv"]
    assert process["envFrom"][-1:] == GIVEN["extraEnvFrom"]
    assert process["volumeMounts"][-1:] == GIVEN["extraVolumeMounts"]
    assert len(process["volumeMounts"]) > 1
    assert spec["volumes"][-1:] == GIVEN["extraVolumes"]
    assert process["securityContext"]["readOnlyRootFilesystem"] is False
    (before,), beside = spec["initContainers"], spec["containers"][-1]
    assert (before["image"], beside["image"]) == ("before:1", "beside:1")
    assert beside["securityContext"]["readOnlyRootFilesystem"] is True
    for container in (before, beside):
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "env" not in container
    for other in templates.values():
        assert "own" not in json.dumps(other)
        assert other["spec"]["tolerations"] == [{"key": "all"}]


@with_helm
def test_users_are_free_and_left_to_openshift() -> None:
    def contexts(*more: str) -> list[dict[str, Any]]:
        things = render(example("north-clinic"), *CONSOLE, *more)
        return [spec["securityContext"] for spec in pods(things)]

    for context in contexts():
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 10001
    null = [f"podSecurityContext.{key}=null" for key in ("runAsUser", "runAsGroup", "fsGroup")]
    for free in (
        contexts("--api-versions", "security.openshift.io/v1"),
        contexts("--set", ",".join(null)),
    ):
        assert len(free) == 3
        for context in free:
            assert not context.keys() & {"runAsUser", "runAsGroup", "fsGroup"}
            assert context["runAsNonRoot"] is True


@with_helm
@pytest.mark.parametrize("values", ["coordinator", "north-clinic"])
def test_account_is_of_the_process_that_goes_to_object_stores_alone(values: str) -> None:
    made = render(
        example(values), *CONSOLE, "--set", "serviceAccount.create=true",
        "--set-string", "serviceAccount.annotations.role=models",
    )  # fmt: skip
    (account,) = of_kind(made, "ServiceAccount")
    assert account["metadata"]["annotations"] == {"role": "models"}
    assert account["automountServiceAccountToken"] is False
    users = [spec for spec in pods(made) if "serviceAccountName" in spec]
    assert [spec["containers"][0]["name"] for spec in users] == [
        "coordinator" if values == "coordinator" else "agent"
    ]
    assert users[0]["serviceAccountName"] == account["metadata"]["name"]
    there = render(example(values), "--set", "serviceAccount.name=there")
    assert not of_kind(there, "ServiceAccount")
    assert [s["serviceAccountName"] for s in pods(there) if "serviceAccountName" in s] == ["there"]
    assert not any("serviceAccountName" in spec for spec in pods(render(example(values))))


@with_helm
def test_images_are_taken_by_their_digests() -> None:
    digest = f"sha256:{'0' * 64}"
    things = render(example("north-clinic"), "--set", f"image.digests.agent={digest}")
    images = {spec["containers"][0]["image"] for spec in pods(things)}
    ours = "ghcr.io/hedgerow-fl/hedgerow"
    assert images == {f"{ours}/agent@{digest}", f"{ours}/crypto:0.4.0"}


@with_helm
def test_silos_may_name_several_coordinators_and_reach_their_ports() -> None:
    several = r"silo.coordinator=a.example:7443\,b.example:7500"
    things = render(example("north-clinic"), *CONSOLE, "--set", several)
    rules = {p["metadata"]["name"]: p["spec"] for p in of_kind(things, "NetworkPolicy")}
    for name in ("it-hedgerow-agent", "it-hedgerow-console"):
        ports = {port["port"] for rule in rules[name]["egress"] for port in rule["ports"]}
        assert ports >= {7443, 7500}
    (agent,) = (c for c in of_kind(things, "ConfigMap") if "agent.toml" in c["data"])
    told = tomllib.loads(agent["data"]["agent.toml"])["coordinator"]
    assert told == "a.example:7443,b.example:7500"


SETTINGS = {
    "coordinator": {"max_waiting_bytes": 8 << 30, "models": {"a.model": "/models/a.ubj"}},
    "north-clinic": {
        "hold_back": 0.25,
        "calibrate": False,
        "data": {"delimiter": ";"},
        "test": {"path": "/var/lib/tables/test.parquet"},
        "validation": {"path": "/var/lib/tables/validation.parquet"},
        "answers": {"askers": {"valley": {"models": ["m" * 64], "max_rows": 9}}},
        "proxy": "http://proxy:3128",
    },
}


@with_helm
@pytest.mark.parametrize("values", SETTINGS)
def test_further_settings_reach_the_process_by_their_own_names(values: str, tmp_path: Path) -> None:
    role = "coordinator" if values == "coordinator" else "silo"
    schema = json.loads((CHART / "values.schema.json").read_text())
    named = schema["properties"][role]["properties"]["settings"]["properties"]
    given = tmp_path / "given.yaml"
    given.write_text(yaml.safe_dump({role: {"settings": SETTINGS[values]}}))
    kind, file = {
        "coordinator": (CoordinatorSettings, "coordinator.toml"),
        "silo": (AgentSettings, "agent.toml"),
    }[role]
    things = render(example(values), "--values", str(given))
    (text,) = (c["data"][file] for c in of_kind(things, "ConfigMap") if file in c["data"])
    path = tmp_path / file
    path.write_text(text)
    loaded = settings.load(kind, path).model_dump(mode="json")

    def compare(wanted: dict[str, Any], found: dict[str, Any]) -> None:
        for key, value in wanted.items():
            if isinstance(value, dict):
                compare(value, found[key])
            else:
                assert found[key] == value, key

    compare(SETTINGS[values], loaded)
    # What the chart neither writes itself nor takes is for other places than a cluster.
    plain = tomllib.loads(text).keys() - SETTINGS[values].keys()
    left = kind.model_fields.keys() - plain - named.keys()
    assert left <= {
        "database", "dask", "device", "memory_limit", "once", "ready_file", "revoked", "server_name"
    }  # fmt: skip


def test_readme_is_that_of_the_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, default, _ in rows((CHART / "values.yaml").read_text()):
        found = values
        for key in path.split("."):
            found = found[key]
        assert yaml.safe_load(default) == found, path
    assert (CHART / "README.md").read_text() == readme(), "python -m deploy.chart_readme"


@with_helm
@pytest.mark.parametrize(
    ("version", "api"), [("1.20.2", "policy/v1beta1"), ("1.37.0", "policy/v1")]
)
def test_disruption_budget_has_the_api_of_its_cluster(version: str, api: str) -> None:
    made = helm(
        "template", str(CHART), "--values", str(example("coordinator")), "--kube-version", version
    )
    budgets = of_kind(list(yaml.safe_load_all(made.stdout)), "PodDisruptionBudget")
    assert [b["apiVersion"] for b in budgets] == [api]


@with_helm
def test_cluster_without_operators_gets_nothing_of_theirs() -> None:
    for values in EXAMPLES:
        if "postgresql" in values.stem:
            continue
        made = helm("template", str(CHART), "--values", str(values))
        groups = {thing["apiVersion"] for thing in yaml.safe_load_all(made.stdout) if thing}
        assert groups <= {"v1", "apps/v1", "networking.k8s.io/v1", "policy/v1", "policy/v1beta1"}


@with_helm
def test_missing_cert_manager_is_said_in_words() -> None:
    made = helm("template", str(CHART), "--values", str(example("coordinator-postgresql")))
    assert made.returncode != 0
    assert "this cluster has no cert-manager" in made.stderr


@with_helm
def test_cert_manager_is_asked_for_certificates_of_the_federation() -> None:
    things = render(
        example("north-clinic"), "--set",
        "certificates.certManager.enabled=true,certificates.certManager.issuer.name=ca",
    )  # fmt: skip
    specs = {c["spec"]["uris"][0]: c["spec"] for c in of_kind(things, "Certificate")}
    assert set(specs) == {
        "hedgerow://cardio/silo/north-clinic",
        "hedgerow://cardio/crypto/north-clinic",
    }
    crypto = specs["hedgerow://cardio/crypto/north-clinic"]
    assert crypto["dnsNames"] == ["it-hedgerow-crypto", "localhost"]
    assert set(crypto["usages"]) == {"digital signature", "client auth", "server auth"}
    assert crypto["privateKey"]["algorithm"] == "ECDSA"
    mounted = {
        v["secret"]["secretName"] for spec in pods(things) for v in spec["volumes"] if "secret" in v
    }
    assert mounted == {spec["secretName"] for spec in specs.values()} | {"hedgerow-sealing"}


@with_helm
def test_operator_of_prometheus_gets_monitors_and_the_rules_of_the_repository() -> None:
    things = render(example("coordinator"))
    assert {m["spec"]["podMetricsEndpoints"][0]["port"] for m in of_kind(things, "PodMonitor")} == {
        "metrics"
    }
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    rules = of_kind(things, "PrometheusRule")
    assert [rule["spec"]["groups"] for rule in rules] == ([groups] if groups else [])
    boards = {path.name for path in (ROOT / "deploy/grafana").glob("*.json")}
    made = [
        c["data"]
        for c in of_kind(things, "ConfigMap")
        if c["metadata"]["name"].endswith("-dashboards")
    ]
    assert [set(data) for data in made] == ([boards] if boards else [])


@with_helm
def test_new_chart_with_the_same_settings_restarts_no_pod(tmp_path: Path) -> None:
    newer = tmp_path / "chart"
    shutil.copytree(CHART, newer)
    chart = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(chart.replace("\nversion: ", "\nversion: 9"))
    made = [
        helm("template", "it", str(folder), "--values", str(example("north-clinic"))).stdout
        for folder in (CHART, newer)
    ]
    assert made[0] != made[1]
    before, after = (list(pods(list(yaml.safe_load_all(text)))) for text in made)
    assert before == after
