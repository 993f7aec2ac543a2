"""The software bill of materials of an image (CycloneDX JSON), from what is installed in the image itself."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

SPECIFICATION = "1.6"

# Runs inside the image: prints its Python, its Python packages and its Debian packages as JSON.
LISTING = """
import importlib.metadata, json, pathlib, platform
def fields(paragraph):
    return dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
status = pathlib.Path("/var/lib/dpkg/status")
paragraphs = [fields(text) for text in (status.read_text() if status.exists() else "").split("\\n\\n")]
print(json.dumps({
    "python": platform.python_version(),
    "distribution": [release.get("ID", "linux").strip('"'), release.get("VERSION_CODENAME", "").strip('"')],
    "packages": sorted([d.name, d.version, d.metadata.get("License-Expression") or ""]
                       for d in importlib.metadata.distributions()),
    "system": sorted([p["Package"], p["Version"], p["Architecture"]] for p in paragraphs if "Version" in p),
}))
"""


@dataclass(frozen=True)
class Image:
    """What the bill of materials is about."""

    name: str
    repository: str
    digest: str
    version: str
    created: str


def bill_of_materials(image: Image, listing: str) -> dict[str, Any]:
    """`listing` is what LISTING printed. The same image always gives the same bill."""
    seen = json.loads(listing)
    vendor, codename = seen["distribution"]
    components = [
        {
            "type": "platform",
            "name": "cpython",
            "version": seen["python"],
            "purl": f"pkg:generic/python@{seen['python']}",
        },
        *(_python_package(*entry) for entry in seen["packages"]),
        *(_system_package(vendor, codename, *entry) for entry in seen["system"]),
    ]
    about = {
        "type": "container",
        "name": f"clotho-{image.name}",
        "version": image.version,
        "purl": f"pkg:oci/{image.name}@{image.digest.replace(':', '%3A')}?repository_url={image.repository}",
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{image.repository}@{image.digest}')}",
        "version": 1,
        "metadata": {"timestamp": image.created, "component": about},
        "components": components,
    }


def _python_package(name: str, version: str, licence: str) -> dict[str, Any]:
    known = {"licenses": [{"expression": licence}]} if licence else {}
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl, **known}


def _system_package(vendor: str, codename: str, name: str, version: str, architecture: str) -> dict[str, Any]:
    purl = f"pkg:deb/{vendor}/{name}@{version.replace('+', '%2B')}?arch={architecture}&distro={codename}"
    return {"type": "library", "name": name, "version": version, "purl": purl}
