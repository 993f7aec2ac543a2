"""Templates: what they may set, what no way of writing them can change, and that ordinary ones are accepted."""

from typing import Any

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from clotho.api.templates import template_problems
from clotho.render import pods
from clotho.render.merge import TemplateError
from clotho.render.restricted import restricted_problems
from unit.render.cases import CASES, SETTINGS, run_of

Body = dict[str, Any]


def trainer_pod(template: Body) -> Body:
    run = run_of(CASES["smallest"] | {"trainer": {"template": template}})
    return pods.trainer_pod(run, SETTINGS, restarts=0, attempt=1)


def main(**fields: Any) -> Body:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


def volume(**source: Any) -> Body:
    return {"spec": {"volumes": [{"name": "extra", **source}]}}


NEVER: list[tuple[Body, str]] = [
    (
        {"spec": {"serviceAccountName": "admin"}},
        "spec.serviceAccountName is not allowed in a template: pods of runs have",
    ),
    ({"spec": {"serviceAccount": "admin"}}, "spec.serviceAccount is not allowed"),
    ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken is not allowed"),
    (
        volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}),
        "volumes.projected.serviceAccountToken is not allowed in a template: pods of runs have no",
    ),
    (
        volume(hostPath={"path": "/"}),
        "volumes.hostPath is not allowed in a template: pods of runs have no access",
    ),
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork is not allowed"),
    ({"spec": {"hostPID": True}}, "spec.hostPID is not allowed"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC is not allowed"),
    ({"spec": {"nodeName": "n1"}}, "spec.nodeName is not allowed in a template: the scheduler chooses the node"),
    ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy is not allowed in a template: the operator sets it"),
    ({"spec": {"hostname": "x"}}, "spec.hostname is not allowed"),
    ({"spec": {"activeDeadlineSeconds": 5}}, "spec.activeDeadlineSeconds is not allowed"),
    ({"metadata": {"name": "other"}}, "metadata.name is not allowed"),
    ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences is not allowed"),
    ({"metadata": {"finalizers": ["a/b"]}}, "metadata.finalizers is not allowed in a template: a finalizer would keep"),
    ({"metadata": {"labels": {"clotho.dev/run": "x"}}}, "the label clotho.dev/run is not allowed"),
    ({"metadata": {"labels": {"app.kubernetes.io/component": "x"}}}, "the label app.kubernetes.io/component is not"),
    (
        main(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        "the variable NVIDIA_VISIBLE_DEVICES is not allowed in a template: the container runtime may hand out GPUs",
    ),
    (main(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]), "the variable CUDA_VISIBLE_DEVICES is not allowed"),
    (main(env=[{"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}]), "the variable NVIDIA_MIG_CONFIG_DEVICES is"),
    (
        {"spec": {"initContainers": [{"name": "mine", "env": [{"name": "HABANA_VISIBLE_DEVICES", "value": "all"}]}]}},
        "the variable HABANA_VISIBLE_DEVICES is not allowed",
    ),
    (
        main(volumeMounts=[{"name": "tmp", "mountPath": "/var/run//nvidia-container-devices/all"}]),
        "a mount at /var/run/nvidia-container-devices is not allowed",
    ),
    (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}}},
        "is not allowed in a template",
    ),
]


@pytest.mark.parametrize(("template", "words"), NEVER)
@pytest.mark.parametrize("directive", [{}, {"$patch": "replace"}])
def test_fixed_fields_cannot_be_overridden(template: Body, words: str, directive: Body) -> None:
    directed = {key: value | directive for key, value in template.items()}
    with pytest.raises(TemplateError) as refusal:
        trainer_pod(directed)
    assert words in str(refusal.value)
    everything = frozenset(str(refusal.value).split())  # whatever a policy may permit
    assert any(words in problem for problem in template_problems("trainer.template", directed, everything))


def context(**fields: Any) -> Body:
    return main(securityContext=fields)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (context(privileged=True), "spec.containers[main].securityContext.privileged must not be set"),
        (context(allowPrivilegeEscalation=True), "allowPrivilegeEscalation must be false"),
        (context(allowPrivilegeEscalation=None), "allowPrivilegeEscalation must be false"),
        (main(**{"securityContext": {"$patch": "replace", "runAsUser": 5}}), "allowPrivilegeEscalation must be false"),
        (context(runAsNonRoot=False), "securityContext.runAsNonRoot must be true"),
        (context(runAsUser=0), "securityContext.runAsUser must not be 0"),
        (context(capabilities={"add": ["SYS_ADMIN"]}), "capabilities must not add SYS_ADMIN"),
        (context(capabilities={"drop": []}), "capabilities must drop ALL"),
        (context(seccompProfile={"type": "Unconfined"}), "seccompProfile.type must be RuntimeDefault or Localhost"),
        (context(appArmorProfile={"type": "Unconfined"}), "appArmorProfile.type must be RuntimeDefault or Localhost"),
        (context(procMount="Unmasked"), "procMount must not be set"),
        (context(seLinuxOptions={"type": "spc_t"}), "seLinuxOptions must not be set"),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext.runAsUser must not be 0"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "runAsNonRoot must be true"),
        ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "seccompProfile.type must be"),
        ({"spec": {"securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}}, "sysctls must not be set"),
        (main(ports=[{"containerPort": 8001, "hostPort": 80}]), "hostPort must not be set"),
        (main(livenessProbe={"httpGet": {"host": "169.254.169.254"}}), "must not name a host"),
        (main(lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 1}}}), "must not name a host"),
        (
            {"spec": {"initContainers": [{"name": "mine", "securityContext": {"privileged": True}}]}},
            "spec.initContainers[mine].securityContext.privileged must not be set",
        ),
    ],
)
def test_pods_are_restricted_whatever_the_namespace_allows(template: Body, words: str) -> None:
    with pytest.raises(TemplateError, match="restricted Pod Security profile") as refusal:
        trainer_pod(template)
    assert words in str(refusal.value)


GPU, NO_GPU = {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "0"}


@pytest.mark.parametrize(
    ("container", "sees_gpus"),
    [
        ({}, False),
        ({"resources": {"limits": {"cpu": "1"}}}, False),
        ({"resources": {"limits": NO_GPU}}, False),
        ({"resources": {"limits": GPU}}, True),
        ({"resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}, True),
        ({"resources": {"claims": [{"name": "gpu"}]}}, True),
        ({"envFrom": [{"secretRef": {"name": "with-the-variable"}}]}, False),
    ],
)
def test_containers_that_ask_for_no_gpu_see_none(container: Body, sees_gpus: bool) -> None:
    """Images often set the variable to `all`, and some container runtimes go by it."""
    pod = trainer_pod({"spec": {"initContainers": [{"name": "mine", **container}]}})
    (init,), (own,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert (void in init["env"]) is not sees_gpus
    assert void not in own["env"], "the trainer asks for one"


def test_a_template_may_ask_for_a_writable_root_filesystem() -> None:
    (container,) = trainer_pod(context(readOnlyRootFilesystem=False))["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is False


@pytest.mark.parametrize(
    "template",
    [
        {"spec": {"securityContext": None}},
        main(securityContext=None),
        {"spec": {"securityContext": {"runAsNonRoot": None, "seccompProfile": None}}},
        {"spec": {"$patch": "replace", "containers": [{"name": "main", "image": "i"}]}},
        {"spec": None},
    ],
)
def test_removed_security_settings_are_restored(template: Body) -> None:
    pod = trainer_pod(template)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert list(restricted_problems(pod)) == []


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace"),
        ({"spec": {"readinessGates": [{"conditionType": "x"}]}}, "spec.readinessGates"),
        (main(restartPolicyRules=[]), "containers.restartPolicyRules"),
        (volume(csi={"driver": "d"}), "volumes.csi"),
        (volume(nfs={"server": "s", "path": "/"}), "volumes.nfs"),
        (volume(projected={"sources": [{"clusterTrustBundle": {}}]}), "volumes.projected.clusterTrustBundle"),
        *(
            ({"metadata": {"annotations": {name: "x"}}}, name)
            for name in (
                *(
                    "k8s.v1.cni.cncf.io/networks",
                    "v1.multus-cni.io/default-network",
                    "cni.projectcalico.org/floatingIPs",
                ),
                *("cdi.k8s.io/gpus", "io.kubernetes.cri-o.Devices", "devices.nri.io/container.main", "irq.crio.io/x"),
            )
        ),
    ],
)
def test_other_fields_require_a_permission(template: Body, name: str) -> None:
    (problem,) = template_problems("trainer.template", template)
    assert problem == (
        f"trainer.template: {name} is not allowed in a template; a TrainingPolicy can permit it with "
        "permissions.templateFields"
    )
    assert list(template_problems("trainer.template", template, frozenset({name}))) == []


names = st.text("abcdefghij-", min_size=1, max_size=8)
environment_variables = st.lists(st.fixed_dictionaries({"name": names, "value": st.text(max_size=5)}), max_size=3)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["main", "side", "other"])},
        optional={
            "image": names,
            "command": st.lists(names, max_size=2),
            "env": environment_variables,
            "resources": st.fixed_dictionaries({}, optional={"limits": st.just({"cpu": "2", "memory": "4Gi"})}),
            "volumeMounts": st.just([{"name": "extra", "mountPath": "/extra"}]),
            "securityContext": st.fixed_dictionaries({}, optional={"runAsUser": st.integers(1, 1000)}),
        },
    ),
    max_size=3,
    unique_by=lambda container: container["name"],
)
good_templates = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional={kind: st.dictionaries(names, names, max_size=2) for kind in ("labels", "annotations")}
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "nodeSelector": st.dictionaries(names, names, max_size=2),
                "tolerations": st.lists(st.fixed_dictionaries({"key": names}), max_size=2),
                "priorityClassName": names,
                "containers": containers,
                "initContainers": containers,
                "volumes": st.just([{"name": "extra", "emptyDir": {}}]),
                "securityContext": st.fixed_dictionaries({}, optional={"fsGroup": st.integers(1, 1000)}),
            },
        ),
    },
)


@given(good_templates)
@settings(max_examples=100, deadline=None)
def test_ordinary_templates_are_accepted(template: Body) -> None:
    assert list(template_problems("trainer.template", template)) == []
    pod = trainer_pod(template)
    asked = template.get("spec", {})
    assert pod["spec"].get("priorityClassName") == asked.get("priorityClassName")
    assert {each["name"] for each in asked.get("containers", [])} <= {
        each["name"] for each in pod["spec"]["containers"]
    }
    target(float(len(str(template))))


json = st.recursive(
    st.none() | st.integers(-1, 2) | st.sampled_from(["x", "main", "replace", "delete"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "env", "$patch", "securityContext", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)
wild_templates = st.fixed_dictionaries(
    {},
    optional={
        "metadata": json | st.fixed_dictionaries({}, optional={"labels": json, "annotations": json, "$patch": json}),
        "spec": json
        | st.fixed_dictionaries(
            {}, optional={"containers": json, "initContainers": json, "volumes": json, "securityContext": json}
        ),
    },
)


@given(wild_templates)
@settings(max_examples=300, deadline=None)
def test_a_template_of_any_shape_renders_a_restricted_pod_or_is_refused(template: Body) -> None:
    list(template_problems("trainer.template", template))  # never raises
    try:
        pod = trainer_pod(template)
    except TemplateError:
        return
    assert list(restricted_problems(pod)) == []


@pytest.mark.parametrize(
    ("environment", "is_checked"),
    [
        ({"name": "letters"}, True),
        ({"name": "mine", "entry": "mine:Env", "image": "registry/mine:1"}, True),
        ({"name": "mine", "entry": "mine:Env", "template": {"spec": {"nodeSelector": {"disk": "fast"}}}}, True),
        ({"name": "mine", "entry": "mine:Env", "template": main(image="registry/mine:1")}, False),
        ({"name": "gsm8k", "entry": "atropos:/app/gsm8k.py"}, False),
    ],
)
def test_an_environment_is_checked_before_it_waits_unless_only_running_it_can_show(environment, is_checked) -> None:
    run = run_of(CASES["smallest"] | {"environments": [environment]})
    spec = pods.environment_pod(run, run.spec.environments[0], 0, SETTINGS, restarts=0)["spec"]
    (wait,) = spec["initContainers"]
    check = {"name": "CLOTHO_CHECK", "value": "1"}
    assert (check in wait["env"]) == is_checked
    if is_checked:
        (main_container,) = spec["containers"]
        assert [each for each in wait["env"] if each != check] == main_container["env"]
        same = ("image", "volumeMounts")
        assert [wait[key] for key in same] == [main_container[key] for key in same]
