"""Images made of a single static program, written without any image tool (the pause container, CoreDNS)."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path


def write_archive(archive: Path, program: Path, tag: str) -> None:
    """An OCI image archive with one uncompressed layer, ready for `ctr images import`."""
    layer = _layer(program)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_blob = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor(config_blob, "application/vnd.oci.image.config.v1+json"),
        "layers": [_descriptor(layer, "application/vnd.oci.image.layer.v1.tar")],
    }
    with tarfile.open(archive, "w") as output:
        add_index(output, json.dumps(manifest).encode(), tag)
        for blob in (layer, config_blob):
            add_blob(output, blob)


def add_index(archive: tarfile.TarFile, manifest: bytes, tag: str) -> None:
    """The files that make an archive of blobs an OCI image of that name."""
    names = {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag}
    entry = _descriptor(manifest, "application/vnd.oci.image.manifest.v1+json") | {"annotations": names}
    _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
    add_blob(archive, manifest)


def add_blob(archive: tarfile.TarFile, blob: bytes) -> None:
    _add(archive, blob_name(_digest(blob)), blob)


def blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _layer(program: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as output:
        _add(output, program.name, program.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(blob: bytes, media_type: object) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}
