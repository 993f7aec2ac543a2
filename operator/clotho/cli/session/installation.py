"""The operator that a cluster has, as its Deployment shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from clotho.cluster.client import Object
from clotho.cluster.outcomes import ApiError
from clotho.workspace.objects import Workspace

ENVIRONMENT_IMAGE: Final = "CLOTHO_IMAGES_ENVIRONMENT"
RUN_IMAGES: Final = ("CLOTHO_IMAGES_API_SERVER", "CLOTHO_IMAGES_TRAINER", ENVIRONMENT_IMAGE)
VARIANT_ANNOTATION: Final = "clotho.dev/environment-"
_TAGGED: Final = re.compile(r"(?P<repository>[^@]+):(?P<tag>[^:/@]+)")


async def operator_deployment(workspace: Workspace, namespace: str) -> Object:
    """Empty where there is none, or none that may be read."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    selection = {"labelSelector": "app.kubernetes.io/part-of=clotho,app.kubernetes.io/component=operator"}
    try:
        items = (await workspace.client.list(path, Object, selection)).get("items") or []
    except ApiError:
        return {}
    return items[0] if items else {}


def operator_variables(deployment: Object) -> dict[str, str]:
    return dict(_variables(deployment))


def _variables(deployment: Object) -> Iterator[tuple[str, str]]:
    for container in deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
        for variable in container.get("env", ()):
            yield variable["name"], variable.get("value", "")


def environment_variant(deployment: Object, variant: str) -> str:
    """The one that the release names by digest, else the one beside the operator's own, with the tag that they share.
    Empty where no name can be known."""
    by_digest: str = (deployment.get("metadata", {}).get("annotations") or {}).get(f"{VARIANT_ANNOTATION}{variant}", "")
    return by_digest or _beside_the_others(operator_variables(deployment), variant)


def _beside_the_others(variables: Mapping[str, str], variant: str) -> str:
    images = [_TAGGED.fullmatch(variables.get(name, "")) for name in RUN_IMAGES]
    if len({image["tag"] if image else "" for image in images}) != 1 or (own := images[-1]) is None:
        return ""
    return f"{own['repository']}-{variant}:{own['tag']}"
