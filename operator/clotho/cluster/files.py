"""Files that come in a ConfigMap: their names, and whether they have changed, matter to the operator."""

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
    found = await _read(client, namespace, name)
    if found is None:
        return None
    contents = msgspec.json.encode([found.data, found.binary_data], order="sorted")
    return hashlib.blake2b(contents, digest_size=16).hexdigest()


async def file_names(client: ApiClient, namespace: str, name: str) -> tuple[str, ...] | None:
    """None when the ConfigMap is not there."""
    found = await _read(client, namespace, name)
    return None if found is None else (*found.data, *found.binary_data)


async def _read(client: ApiClient, namespace: str, name: str) -> _ConfigMap | None:
    try:
        return await client.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}", _ConfigMap)
    except NotFound:
        return None
