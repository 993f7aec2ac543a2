"""Archives of images, written without any image tool."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path


def archive_of_program(program: Path, tag: str) -> bytes:
    """Of an image that is a single static program (the pause container, CoreDNS)."""
    layer = _layer(program)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
    }
    return _archive(json.dumps(config).encode(), [layer], tag)


def archive_of_unpacked(config: bytes, tag: str) -> bytes:
    """For a containerd that has the layers unpacked: those of the archive are empty."""
    count = len(json.loads(config)["rootfs"]["diff_ids"])
    return _archive(config, [bytes(tarfile.RECORDSIZE)] * count, tag)


def digest_of(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _archive(config: bytes, layers: Sequence[bytes], tag: str) -> bytes:
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [_descriptor(layer, "application/vnd.oci.image.layer.v1.tar") for layer in layers],
    }
    manifest_blob = json.dumps(manifest).encode()
    names = {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag}
    entry = _descriptor(manifest_blob, "application/vnd.oci.image.manifest.v1+json") | {"annotations": names}
    blobs = {digest_of(blob): blob for blob in (manifest_blob, config, *layers)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as output:
        _add(output, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(output, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        for digest, blob in blobs.items():
            _add(output, f"blobs/{digest.replace(':', '/')}", blob)
    return buffer.getvalue()


def _layer(program: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as output:
        _add(output, program.name, program.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _descriptor(blob: bytes, media_type: object) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest_of(blob), "size": len(blob)}
