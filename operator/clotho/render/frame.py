"""What every pod of ours has in common: restricted security, no service account, the template on top."""

from typing import Any, Final

from clotho.api.templates import forbidden_problems
from clotho.render.containers import EVERY_CONTAINER, MAIN, NO_GPUS, POD_SECURITY, Manifest, asks_for_gpus
from clotho.render.disk import bound_disk
from clotho.render.merge import TemplateError, merge
from clotho.render.restricted import restricted_problems
from clotho.render.settings import RenderSettings

_FIXED: Final = (  # not for templates
    "restartPolicy",
    "automountServiceAccountToken",
    "hostname",
    "subdomain",
    "activeDeadlineSeconds",
)


def pod(metadata: Manifest, spec: Manifest, settings: RenderSettings) -> Manifest:
    annotations = {"argocd.argoproj.io/ignore-restart-policy": "true"} | metadata.get("annotations", {})
    pull_secrets = [{"name": secret} for secret in settings.image_pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"annotations": annotations},
        "spec": {
            "restartPolicy": "Never",  # the operator counts, waits and replaces; see plan/run/restarts.py
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": POD_SECURITY,
            **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
            **spec,
        },
    }


def finish(pod: Manifest, template: dict[str, Any], path: str, settings: RenderSettings) -> Manifest:
    """Merge the template over the pod, then secure and bound every container, the template's own ones too."""
    if problem := next(forbidden_problems(path, template), ""):
        raise TemplateError(problem)
    if template:
        pod = _override(pod, template, path)
    security = _object(pod["spec"].get("securityContext"), f"{path}.spec.securityContext")
    pod["spec"]["securityContext"] = POD_SECURITY | security
    default_image = next((c.get("image", "") for c in pod["spec"].get("containers", ()) if c["name"] == MAIN), "")
    for kind in ("initContainers", "containers"):
        if kind in pod["spec"]:
            pod["spec"][kind] = [_secured(each, default_image, settings, path) for each in pod["spec"][kind]]
    pod["spec"] = bound_disk(pod["spec"])
    if problem := next(restricted_problems(pod), ""):
        raise TemplateError(f"{path}: {problem}: pods of runs keep to the restricted Pod Security profile")
    return pod


def template_problem(template: dict[str, Any], path: str, settings: RenderSettings) -> str:
    """Why no pod can have this template, whatever the pod; empty when one can."""
    metadata = {"name": "any", "namespace": "any", "ownerReferences": [], "labels": {}}
    try:
        finish(pod(metadata, {"containers": [{"name": MAIN, "image": "any"}]}, settings), template, path, settings)
    except TemplateError as error:
        return str(error)
    return ""


def _object(value: Any, path: str) -> Manifest:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TemplateError(f"{path}: expected an object")
    return value


def _override(pod: Manifest, template: dict[str, Any], path: str) -> Manifest:
    """Names, labels and fixed fields stay, whatever got past the allow-list of api/templates.py."""
    if unknown := sorted(set(template) - {"metadata", "spec"}):
        raise TemplateError(f"{path}: unknown field {unknown[0]}; a template has metadata and spec")
    theirs = merge({"metadata": pod["metadata"], "spec": pod["spec"]}, template, path)
    metadata = theirs.get("metadata", {}) | {
        key: pod["metadata"][key] for key in ("name", "namespace", "ownerReferences")
    }
    metadata["labels"] = metadata.get("labels", {}) | pod["metadata"]["labels"]
    fixed = {key: pod["spec"][key] for key in _FIXED if key in pod["spec"]}
    return pod | {"metadata": metadata, "spec": theirs.get("spec", {}) | fixed}


def _secured(container: Manifest, default_image: str, settings: RenderSettings, path: str) -> Manifest:
    """Restricted Pod Security and a /tmp, unless the container sets them; the main image if it has none."""
    defaults = {"image": default_image, "imagePullPolicy": settings.image_pull_policy, **EVERY_CONTAINER}
    secured = merge(defaults, container, f"{path}.{container['name']}")
    return secured if asks_for_gpus(secured) else merge(secured, {"env": [NO_GPUS]}, path)
