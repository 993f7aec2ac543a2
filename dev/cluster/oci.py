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
    manifest_blob = json.dumps(manifest).encode()
    entry = _descriptor(manifest_blob, manifest["mediaType"]) | {
        "annotations": {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag}
    }
    index = {"schemaVersion": 2, "manifests": [entry]}
    with tarfile.open(archive, "w") as output:
        _add(output, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(output, "index.json", json.dumps(index).encode())
        for blob in (layer, config_blob, manifest_blob):
            _add(output, f"blobs/sha256/{_digest(blob).partition(':')[2]}", blob)


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
