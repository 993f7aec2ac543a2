"""The files of an environment that come in a ConfigMap: only whether they have changed matters to the operator."""

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from clotho.cluster.client import ApiClient
from clotho.cluster.outcomes import NotFound


class _ConfigMap(Struct, frozen=True, rename="camel"):
    data: Mapping[str, str] = field(default_factory=dict)
    binary_data: Mapping[str, str] = field(default_factory=dict)


async def files_hash(client: ApiClient, namespace: str, name: str) -> str | None:
    """Of the contents, not of the object: a new label changes nothing. None when it is not there."""
    if not name:
        return ""
    try:
        found = await client.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}", _ConfigMap)
    except NotFound:
        return None
    contents = msgspec.json.encode([found.data, found.binary_data], order="sorted")
    return hashlib.blake2b(contents, digest_size=16).hexdigest()
