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


def environment_variant(variables: Mapping[str, str], variant: str) -> str:
    """The image beside the operator's own. Empty where no name can be known: a digest is of one image only, and so is a
    tag that the images do not share."""
    images = [_TAGGED.fullmatch(variables.get(name, "")) for name in RUN_IMAGES]
    if len({image["tag"] if image else "" for image in images}) != 1 or (own := images[-1]) is None:
        return ""
    return f"{own['repository']}-{variant}:{own['tag']}"
