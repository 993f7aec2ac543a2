"""What the chart renders for which values, and what it refuses; the API server checks that it is valid."""

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho.cli.session.installation import environment_variant
from clotho_dev import REPOSITORY
from clotho_dev.chart import generate
from clotho_dev.chart.install import ChartError
from clotho_dev.cluster.kubectl import Kubectl

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
EVERYTHING = (
    "replicas=2",
    "monitoring.dashboards.enabled=true",
    "commonLabels.team=rl",
    "podLabels.sidecar=none",
    "images.pullSecrets={registry}",
    "priorityClassName=system-cluster-critical",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
    "nodeSelector.kind=cpu",
    "notifications.secretName=slack",
)
PLURALS = ("trainingruns", "environments", "inferencetests", "trainingpolicies")
MONITORS = ("serviceMonitor", "podMonitor", "alerts")


def kinds(objects: list[Manifest]) -> Counter[str]:
    return Counter(item["kind"] for item in objects)


def one(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    found = [item for item in objects if item["kind"] == kind and name in item["metadata"]["name"]]
    assert len(found) == 1, [item["metadata"]["name"] for item in found]
    return found[0]


def pod_of(objects: list[Manifest]) -> Manifest:
    pod: Manifest = one(objects, "Deployment")["spec"]["template"]
    return pod


def test_helm_lint_passes(helm: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", generate.CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_install_manifest_is_up_to_date(helm: Path) -> None:
    assert generate.stale(generate.install_files(helm)) == [], "run: make chart"


def test_kustomize_base_is_the_manifest(kubectl: Kubectl) -> None:
    built = list(yaml.safe_load_all(kubectl.run("kustomize", str(REPOSITORY / "install"))))
    plain = list(yaml.safe_load_all((REPOSITORY / "install" / "clotho.yaml").read_text()))

    def names(objects: list[Manifest]) -> list[tuple[str, str]]:
        return sorted((item["kind"], item["metadata"]["name"]) for item in objects)

    assert names(built) == names(plain)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("replica=2", "additional properties 'replica' not allowed"),
        ("settings.reconcile.worker=3", "additional properties 'worker' not allowed"),
        ("monitoring.podMonitor.enable=true", "additional properties 'enable' not allowed"),
        ("images.digests.operator=latest", "'latest' does not match pattern"),
        ("images.pullPolicy=Sometimes", "must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("replicas=two", "got string, want integer"),
        ("runs.namespaces={Team_A}", "does not match pattern"),
        ("networkPolicy.apiServerPorts={70000}", "maximum"),
        ("settings.lease.durationSeconds=0", "minimum"),
        ("resources.request.cpu=1", "additional properties 'request' not allowed"),
    ],
)
def test_a_wrong_value_is_refused_by_name(render: Render, value: str, complaint: str) -> None:
    with pytest.raises(ChartError, match=re.escape(complaint)):
        render(value)


def test_crds_are_the_projects_and_stay_behind(render: Render) -> None:
    ours = [yaml.safe_load(path.read_text()) for path in sorted((REPOSITORY / "crds").glob("*.yaml"))]
    rendered = [item for item in render() if item["kind"] == "CustomResourceDefinition"]
    assert [item["spec"] for item in rendered] == [item["spec"] for item in ours]
    assert all(item["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for item in rendered)
    loose = [item for item in render("crds.keep=false") if item["kind"] == "CustomResourceDefinition"]
    assert not any("annotations" in item["metadata"] for item in loose)
    assert kinds(render("crds.enabled=false"))["CustomResourceDefinition"] == 0


@pytest.mark.parametrize("values", [(), ("runs.namespaces={a,b}",)])
def test_no_role_has_a_wildcard(render: Render, values: tuple[str, ...]) -> None:
    roles = [item for item in render(*values) if item["kind"] in ("Role", "ClusterRole")]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], role["metadata"]["name"]


def operator_rules(render: Render) -> list[Manifest]:
    """Of the operator alone: other roles are for people."""
    bindings = [item for item in render() if item["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    names = {(item["roleRef"]["kind"], item["roleRef"]["name"]) for item in bindings}
    roles = [item for item in render() if (item["kind"], item["metadata"]["name"]) in names]
    return [rule for role in roles for rule in role["rules"]]


def test_the_operator_cannot_list_secrets_or_change_rights(render: Render) -> None:
    verbs: dict[str, set[str]] = {}
    for rule in operator_rules(render):
        for resource in rule["resources"]:
            verbs.setdefault(resource, set()).update(rule["verbs"])
    assert verbs["secrets"] == verbs["configmaps"] == {"get", "create", "patch"}
    assert verbs["pods/log"] == verbs["storageclasses"] == {"get"}
    kinds_of_ours = {f"{plural}{part}" for plural in PLURALS for part in ("", "/status")}
    assert set(verbs) - kinds_of_ours == {
        *("pods", "pods/log", "services", "secrets", "configmaps", "persistentvolumeclaims", "events"),
        *("networkpolicies", "poddisruptionbudgets", "leases", "storageclasses"),
        *("workloads", "workloads/status", "resourceflavors", "workloadpriorityclasses"),
    }


def test_the_operators_network_policy_opens_only_what_it_uses(render: Render) -> None:
    objects = render("networkPolicy.apiServerPorts={6443}")
    spec = one(objects, "NetworkPolicy")["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= pod_of(objects)["metadata"]["labels"].items()
    assert sorted(spec["policyTypes"]) == ["Egress", "Ingress"]
    assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == [8080]
    assert [port["containerPort"] for each in pod_of(objects)["spec"]["containers"] for port in each["ports"]] == [8080]
    anywhere = [port["port"] for rule in spec["egress"] if "to" not in rule for port in rule["ports"]]
    assert sorted(set(anywhere)) == [53, 6443]
    to_pods = {
        rule["to"][0]["podSelector"]["matchExpressions"][0]["key"]: [port["port"] for port in rule["ports"]]
        for rule in spec["egress"]
        if "to" in rule
    }
    assert to_pods == {"clotho.dev/run": [8000, 8001, 8002], "clotho.dev/described-environment": [8003]}


def test_namespaced_mode_has_no_cluster_wide_right(render: Render) -> None:
    without = (f"rbac.{right}=false" for right in ("aggregateRoles", "kueue", "storageClasses"))
    objects = render("runs.namespaces={team-a,team-b}", *without)
    assert "kueue" not in str(objects)
    assert kinds(objects)["ClusterRole"] == kinds(objects)["ClusterRoleBinding"] == 0
    granted = [item["metadata"]["namespace"] for item in objects if item["kind"] == "Role"]
    assert sorted(granted) == ["clotho-system", "team-a", "team-b"]
    variables = {v["name"]: v["value"] for v in pod_of(objects)["spec"]["containers"][0]["env"]}
    assert variables["CLOTHO_WATCH_NAMESPACES"] == "team-a,team-b"


def test_namespaced_mode_reads_three_kinds_of_the_whole_cluster(render: Render) -> None:
    objects = render("runs.namespaces={team-a}", "rbac.aggregateRoles=false")
    rules = [rule for item in objects if item["kind"] == "ClusterRole" for rule in item["rules"]]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["storageclasses"], ["get"]),
        (["resourceflavors", "workloadpriorityclasses"], ["get"]),
    ]


def test_a_mirror_needs_one_value_and_a_pinned_image_another(render: Render) -> None:
    digest = "registry.example/trainer@sha256:" + "0" * 64
    objects = render("images.registry=mirror.example/clotho", "images.tag=1.2.3", f"images.trainer={digest}")
    container = pod_of(objects)["spec"]["containers"][0]
    variables = {v["name"]: v["value"] for v in container["env"]}
    assert container["image"] == "mirror.example/clotho/operator:1.2.3"
    assert variables["CLOTHO_IMAGES_API_SERVER"] == "mirror.example/clotho/api-server:1.2.3"
    assert variables["CLOTHO_IMAGES_TRAINER"] == digest


def test_digests_name_the_images_unless_a_tag_does(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    values = ("images.registry=mirror.example/clotho", f"images.digests.operator={digest}")
    by_digest, by_tag = (
        pod_of(render(*values, *more))["spec"]["containers"][0]["image"] for more in ((), ("images.tag=1.2.3",))
    )
    assert by_digest == f"mirror.example/clotho/operator@{digest}"
    assert by_tag == "mirror.example/clotho/operator:1.2.3"


def test_variant_pushed_by_digest_is_the_one_that_discovered_environments_run_on(render: Render) -> None:
    by_digest = [f"images.digests.{name}=sha256:{'0' * 64}" for name in ("apiServer", "trainer", "environment")]
    values = ("images.registry=mirror.example/clotho", *by_digest)
    pushed = f"images.digests.environmentAtropos=sha256:{'1' * 64}"
    installed = [(), (pushed,), (pushed, "images.tag=1.2.3")]
    named = [environment_variant(one(render(*values, *more), "Deployment"), "atropos") for more in installed]
    assert named == [
        "",
        f"mirror.example/clotho/environment-atropos@sha256:{'1' * 64}",
        "mirror.example/clotho/environment-atropos:1.2.3",
    ]


def test_url_of_the_webhook_is_mounted_and_in_no_variable(render: Render) -> None:
    spec = pod_of(render("notifications.secretName=slack", "notifications.secretKey=hook"))["spec"]
    (volume,), (container,) = spec["volumes"], spec["containers"]
    assert volume["secret"] == {"secretName": "slack", "items": [{"key": "hook", "path": "url"}]}
    (mount,) = container["volumeMounts"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["CLOTHO_NOTIFICATIONS_URL_FILE"] == f"{mount['mountPath']}/url"
    assert "volumes" not in pod_of(render())["spec"]


def test_large_numbers_reach_the_operator_as_they_are(render: Render) -> None:
    objects = render("settings.reconcile.resyncSeconds=10000000", "settings.reconcile.workers=2000000")
    variables = {v["name"]: v["value"] for v in pod_of(objects)["spec"]["containers"][0]["env"]}
    assert variables["CLOTHO_RECONCILE_WORKERS"] == "2000000"
    assert variables["CLOTHO_RECONCILE_RESYNC_SECONDS"] == "10000000"


def test_a_disruption_budget_is_rendered_for_two_replicas(render: Render) -> None:
    assert kinds(render())["PodDisruptionBudget"] == 0
    assert one(render("replicas=2"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_monitoring_is_off_by_default(render: Render) -> None:
    extra = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}
    assert not extra & kinds(render()).keys()
    on = render(*(f"monitoring.{part}.enabled=true" for part in (*MONITORS, "dashboards")))
    assert extra <= kinds(on).keys()


def test_samples_of_a_pod_are_limited(render: Render) -> None:
    """Environments run untrusted code: one pod must not fill Prometheus."""
    on = "monitoring.podMonitor.enabled=true"
    assert one(render(on), "PodMonitor")["spec"]["sampleLimit"] == 5000
    assert one(render(on, "monitoring.podMonitor.sampleLimit=2000000"), "PodMonitor")["spec"]["sampleLimit"] == 2000000


def test_alerts_link_to_their_runbook(render: Render) -> None:
    rules = one(render("monitoring.alerts.enabled=true"), "PrometheusRule")["spec"]["groups"]
    links = [rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"]]
    assert all(re.search(r"docs/runbooks\.md#clotho[a-z]+$", link) for link in links)


@pytest.mark.parametrize(
    "values", [(), EVERYTHING, ("runs.namespaces={default}",)], ids=["default", "all", "namespaced"]
)
def test_the_api_server_takes_every_object(
    kubectl: Kubectl, namespace: str, render: Render, values: tuple[str, ...]
) -> None:
    objects = render(*values, namespace=namespace)
    kubectl.run(
        "apply", "--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict", "--filename=-",
        stdin=yaml.safe_dump_all(objects),
    )  # fmt: skip


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["default", "all"])
def test_the_operators_pod_is_restricted(
    kubectl: Kubectl, namespace: str, render: Render, values: tuple[str, ...]
) -> None:
    """The namespace enforces restricted Pod Security; a pod that breaks it would be refused."""
    template = pod_of(render(*values, namespace=namespace))
    spec = {k: v for k, v in template["spec"].items() if k not in ("serviceAccountName", "priorityClassName")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", "labels": {}}, "spec": spec}
    kubectl.in_namespace(namespace).run("create", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump(pod))


def test_the_page_has_no_rights_of_its_own(render: Render, kubectl: Kubectl, namespace: str) -> None:
    """Off by default; its pod is restricted, without a token, and reaches the Kubernetes API only."""
    assert kinds(render())["Deployment"] == 1
    objects = render("web.enabled=true", "web.from[0].podSelector.matchLabels.app=ingress", namespace=namespace)
    pod = one(objects, "Deployment", "-web")["spec"]["template"]
    bound = [item for item in objects if item["kind"].endswith("RoleBinding")]
    assert pod["spec"]["serviceAccountName"] not in {each["name"] for item in bound for each in item["subjects"]}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert one(objects, "ServiceAccount", "-web")["automountServiceAccountToken"] is False
    rules = one(objects, "NetworkPolicy", "-web")["spec"]
    assert rules["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": "ingress"}}}]
    assert [sorted(port["port"] for port in rule["ports"]) for rule in rules["egress"]] == [[443, 6443, 8443, 16443]]
    labels = one(objects, "Service", "-web")["spec"]["selector"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert labels != one(objects, "Service", "-metrics")["spec"]["selector"]
    here = kubectl.in_namespace(namespace)
    mine = [item for item in objects if item["metadata"]["name"].endswith("-web")]
    here.run("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=yaml.safe_dump_all(mine))
    spec = {**pod["spec"], "serviceAccountName": "default"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    here.run("create", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump(body))


def test_viewers_see_every_kind_and_editors_change_all_but_policies(render: Render) -> None:
    plurals = {yaml.safe_load(p.read_text())["spec"]["names"]["plural"] for p in (REPOSITORY / "crds").glob("*.yaml")}
    for role, granted in (
        ("clotho-viewer", plurals),
        ("clotho-editor", plurals - {"trainingpolicies"}),
        ("clotho-policy-editor", {"trainingpolicies"}),
    ):
        rules = one(render(), "ClusterRole", role)["rules"]
        assert {resource for rule in rules for resource in rule["resources"]} == granted
    labels = one(render(), "ClusterRole", "clotho-policy-editor")["metadata"]["labels"]
    assert not [label for label in labels if "aggregate" in label], "whoever starts runs must not lift their limits"


@pytest.mark.parametrize(("name", "file"), [("clotho", "policy.yaml"), ("clotho-nesting", "nesting-policy.yaml")])
def test_admission_follows_the_release(render: Render, name: str, file: str) -> None:
    def named(kind: str, *values: str) -> Manifest:
        (found,) = (each for each in render(*values) if (each["kind"], each["metadata"]["name"]) == (kind, name))
        return found

    ours = yaml.safe_load((generate.CHART / "files" / "admission" / file).read_text())
    assert named("ValidatingAdmissionPolicy")["spec"] == ours["spec"]
    binding = named("ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == name
    assert "matchResources" not in binding["spec"]
    confined = named("ValidatingAdmissionPolicyBinding", "runs.namespaces={a,b}")["spec"]["matchResources"]
    assert confined["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", "b"]
    off = kinds(render("admissionPolicy.enabled=false"))
    assert off["ValidatingAdmissionPolicy"] == off["ValidatingAdmissionPolicyBinding"] == 0


def test_notes_name_a_namespace_whose_runs_are_reconciled(helm: Path) -> None:
    argv = [helm, "install", "clotho", str(generate.CHART), "--dry-run=client", "--set=runs.namespaces={team-a,team-b}"]
    notes = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.partition("NOTES:")[2]
    commands = [line.strip() for line in notes.splitlines() if line.strip().startswith("kubectl")]
    assert len(commands) == 2
    assert all("--namespace team-a" in command for command in commands)
