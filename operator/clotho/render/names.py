"""How the objects of a run are called. The run's id keeps them apart from those of an earlier run of the same name."""

from clotho.api.metadata import Metadata
from clotho.api.names import API_SERVER, ENVIRONMENT, INFERENCE, TRAINER, Component

_LABEL_LIMIT = 63  # of a DNS label, which the Service's name is


def run_id(run: Metadata) -> str:
    return run.uid.replace("-", "")[:8]


def base_name(run: Metadata) -> str:
    """The name of the Service, the Secret, the NetworkPolicy and the disruption budget, and the start of all others."""
    suffix = f"-{run_id(run)}"
    return run.name[: _LABEL_LIMIT - len(suffix)].rstrip("-") + suffix


def pod_name(run: Metadata, component: Component, environment: str = "", index: int = 0) -> str:
    """The same for every attempt: two trainers at once are impossible because two pods of one name are."""
    if component == ENVIRONMENT:
        return f"{base_name(run)}-env-{environment}-{index}"
    return f"{base_name(run)}-{_numbered(component, index)}"


def exporter_name(run: Metadata, settings: str) -> str:
    """One pod for one set of settings."""
    return f"{base_name(run)}-export-{settings[:8]}"


def claim_name(run: Metadata, component: Component) -> str:
    return f"{base_name(run)}-{component}"


def history_name(run: Metadata) -> str:
    """The ConfigMap with curves, samples and evaluations."""
    return f"{base_name(run)}-history"


def logs_name(run: Metadata) -> str:
    """The ConfigMap with the last lines of each container."""
    return f"{base_name(run)}-logs"


def short_host_name(component: Component, index: int = 0) -> str:
    if component not in (API_SERVER, TRAINER, INFERENCE):
        raise ValueError(f"{component} pods have no host name of their own")
    return _numbered(component, index)


def host_name(run: Metadata, component: Component, cluster_domain: str, index: int = 0) -> str:
    return f"{short_host_name(component, index)}.{base_name(run)}.{run.namespace}.svc.{cluster_domain}"


def _numbered(component: Component, index: int) -> str:
    """The first trainer has no number: a trainer of one pod has the same name."""
    return f"{component}-{index}" if index or component == INFERENCE else component
