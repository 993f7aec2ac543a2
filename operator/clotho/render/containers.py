"""The parts that the containers of all three components share."""

from typing import Any, Final

from clotho_contract.names import CONFIG_PATH, CONFIG_VARIABLE, TOKEN_VARIABLE

Manifest = dict[str, Any]

MAIN: Final = "main"
USER_ID: Final = 65532
HUNG_GRACE: Final = 10  # seconds
ENVIRONMENT_CODE_PATH: Final = "/environment"
EVERY_CONTAINER: Final[Manifest] = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
    "env": [
        {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the one writable place that all of them have
        {"name": "USER", "value": "clotho"},  # the user id has no name in the image, and some libraries insist on one
    ],
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
}
POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


NO_GPUS: Final[Manifest] = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}  # images often set it to `all`


def asks_for_gpus(container: Manifest) -> bool:
    """From the scheduler. Then the device plugin sets the variable to the GPUs that the container got."""
    asked = container.get("resources")
    asked = asked if isinstance(asked, dict) else {}
    amounts = [each for each in (asked.get("requests"), asked.get("limits")) if isinstance(each, dict)]
    gpus = [amount for each in amounts for name, amount in each.items() if "gpu" in name or "nvidia.com/" in name]
    return bool(asked.get("claims")) or any(_is_some(amount) for amount in gpus)


def _is_some(amount: object) -> bool:
    return any(digit in "123456789" for digit in str(amount))


def literal(text: str) -> str:
    """As it is, whatever it looks like: the kubelet puts variables, secret ones too, in the place of `$(NAME)`."""
    return text.replace("$", "$$")


def value(name: str, content: str) -> Manifest:
    return {"name": name, "value": content}


def from_secret(name: str, secret_name: str, key: str = "", *, is_optional: bool = False) -> Manifest:
    """The variable has the key's name unless another key is given: WANDB_API_KEY is the key WANDB_API_KEY."""
    optional = {"optional": True} if is_optional else {}
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name, "key": key or name, **optional}}}


def config_variable() -> Manifest:
    return value(CONFIG_VARIABLE, str(CONFIG_PATH))


def own_token(run_secret: str, role_key: str) -> Manifest:
    """The token that the pod's own requests carry."""
    return from_secret(TOKEN_VARIABLE, run_secret, role_key)


def variables_of(secret_name: str) -> Manifest:
    """Every key of a Secret as a variable; those that a container names itself override them."""
    return {"envFrom": [{"secretRef": {"name": secret_name}}]} if secret_name else {}


def code_volumes(config_map_name: str) -> list[Manifest]:
    """An environment's own files, where they come without an image."""
    return [{"name": "code", "configMap": {"name": config_map_name}}] if config_map_name else []


def mount(name: str, path: str, *, read_only: bool = False) -> Manifest:
    return {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})


def port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def probes(number: int) -> Manifest:
    """Frequent readiness, so that nothing waits for it; slow liveness, so that a busy moment does not kill.

    A process that fails its liveness probe hangs: it does not get the pod's grace period to save its work.
    """

    def ask(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": number}, "timeoutSeconds": 5}

    killed = {"terminationGracePeriodSeconds": HUNG_GRACE}
    return {
        "startupProbe": ask("/healthz") | {"periodSeconds": 1, "failureThreshold": 300} | killed,
        "readinessProbe": ask("/readyz") | {"periodSeconds": 1, "failureThreshold": 3},
        "livenessProbe": ask("/healthz") | {"periodSeconds": 10, "failureThreshold": 6} | killed,
    }


def resources(cpu: str, memory: str, limits: dict[str, str | int]) -> Manifest:
    return {"requests": {"cpu": cpu, "memory": memory}} | ({"limits": limits} if limits else {})
