"""Pod Security's `restricted` profile for our own pods, whatever the namespace enforces.

Checked on the pod as it will be created, so that no way of writing a template gets around it.
"""

from collections.abc import Iterator
from typing import Any, Final

Manifest = dict[str, Any]
_HANDLERS: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_PROFILES: Final = ("RuntimeDefault", "Localhost")
_GRANTED: Final = frozenset({"NET_BIND_SERVICE"})


def restricted_problems(pod: Manifest) -> Iterator[str]:
    """What goes against the profile, each with its place below the pod."""
    spec = _dict(pod.get("spec"))
    yield from _context_problems("spec.securityContext", _dict(spec.get("securityContext")))
    if _dict(spec.get("securityContext")).get("sysctls"):
        yield "spec.securityContext.sysctls must not be set"
    for kind in ("initContainers", "containers"):
        for container in map(_dict, spec.get(kind) or ()):
            yield from _container_problems(f"spec.{kind}[{container.get('name')}]", container)


def _context_problems(where: str, context: Manifest) -> Iterator[str]:
    """What pods and containers can both set."""
    if context.get("runAsNonRoot", True) is not True:
        yield f"{where}.runAsNonRoot must be true"
    if context.get("runAsUser") == 0:
        yield f"{where}.runAsUser must not be 0"
    for name in ("seccompProfile", "appArmorProfile"):
        profile = context.get(name)
        if profile is not None and _dict(profile).get("type") not in _PROFILES:
            yield f"{where}.{name}.type must be RuntimeDefault or Localhost"
    if "seLinuxOptions" in context:
        yield f"{where}.seLinuxOptions must not be set"
    if "windowsOptions" in context:
        yield f"{where}.windowsOptions must not be set"


def _container_problems(where: str, container: Manifest) -> Iterator[str]:
    context = _dict(container.get("securityContext"))
    yield from _context_problems(f"{where}.securityContext", context)
    if context.get("privileged"):
        yield f"{where}.securityContext.privileged must not be set"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}.securityContext.allowPrivilegeEscalation must be false"
    if context.get("procMount") not in (None, "Default"):
        yield f"{where}.securityContext.procMount must not be set"
    capabilities = _dict(context.get("capabilities"))
    if "ALL" not in _list(capabilities.get("drop")):
        yield f"{where}.securityContext.capabilities must drop ALL"
    if extra := sorted({str(name) for name in _list(capabilities.get("add"))} - _GRANTED):
        yield f"{where}.securityContext.capabilities must not add {', '.join(extra)}"
    if any(_dict(port).get("hostPort") for port in _list(container.get("ports"))):
        yield f"{where}.ports: hostPort must not be set"
    handlers = [container.get(name) for name in _HANDLERS] + list(_dict(container.get("lifecycle")).values())
    for handler in map(_dict, handlers):
        if any(_dict(handler.get(kind)).get("host") for kind in ("httpGet", "tcpSocket")):
            yield f"{where}: probes and lifecycle hooks must not name a host"


def _dict(value: object) -> Manifest:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
