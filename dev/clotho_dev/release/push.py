"""`make push`: every image into a registry, with labels that name its source, its digest, and a bill of materials."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from clotho_dev import REPOSITORY
from clotho_dev.cluster import images
from clotho_dev.cluster.chart import IMAGE_KEYS, VARIANT_KEYS
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import destination, sbom
from clotho_dev.release.builders import Builder
from clotho_dev.release.destination import Destination

SOURCE = "https://github.com/clotho-dev/clotho"
DIST = REPOSITORY / "dist"
HEADER = "# Written by `make push`: values of the chart that name the pushed images by digest.\n"


@dataclass(frozen=True)
class Revision:
    """The commit that images are built from; `-dirty` marks changes that no commit has."""

    commit: str
    created: str

    def labels(self, tag: str) -> dict[str, str]:
        return {
            "org.opencontainers.image.source": SOURCE,
            "org.opencontainers.image.revision": self.commit,
            "org.opencontainers.image.version": tag,
            "org.opencontainers.image.created": self.created,
        }


def revision() -> Revision:
    """The time is the commit's: the same sources give the same labels."""
    dirty = "-dirty" if _git("status", "--porcelain") else ""
    return Revision(_git("rev-parse", "HEAD") + dirty, _git("show", "--no-patch", "--format=%cI", "HEAD"))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"the images name the commit they are built from: {done.stderr.strip()}")
    return done.stdout.strip()


def push(
    to: Destination, tag: str, builder: Builder, names: Iterable[str] = images.NAMES, dist: Path = DIST
) -> dict[str, str]:
    """The digest of each image; the bills of materials lie in dist/ afterwards."""
    destination.require_tag(tag)
    destination.check(to)
    source = revision()
    digests: dict[str, str] = {}
    with builder.at_work():
        for name in names:
            reference = to.reference(name, tag)
            builder.build(name, reference, source.labels(tag))
            digests[name] = builder.push(reference, plain_http=to.plain_http)
            about = sbom.Image(name, f"{to.address}/{name}", digests[name], tag, source.created)
            write_bill(dist, about, builder.run_python(reference, sbom.LISTING))
            builder.forget(reference)
    return digests


def write_bill(dist: Path, image: sbom.Image, listing: str) -> None:
    dist.mkdir(parents=True, exist_ok=True)
    text = json.dumps(sbom.bill_of_materials(image, listing), indent=1)
    (dist / f"{image.name}.cdx.json").write_text(text + "\n")


def by_digest(to: Destination, digests: Mapping[str, str]) -> dict[str, str]:
    return {name: f"{to.address}/{name}@{digest}" for name, digest in digests.items()}


def chart_values(to: Destination, digests: Mapping[str, str]) -> str:
    """For `helm install --values`: the registry, and each image of the chart by its digest."""
    keys = IMAGE_KEYS | VARIANT_KEYS
    named = {keys[name]: digest for name, digest in digests.items() if name in keys}
    return HEADER + yaml.safe_dump({"images": {"registry": to.address, "digests": named}}, sort_keys=False)


def listing(to: Destination, digests: Mapping[str, str]) -> str:
    """For scripts: a name and a reference by digest on each line."""
    return "".join(f"{name} {reference}\n" for name, reference in by_digest(to, digests).items())


def table(to: Destination, digests: Mapping[str, str]) -> str:
    width = max(len(name) for name in digests) + 2
    rows = [f"{name:<{width}}{reference}" for name, reference in by_digest(to, digests).items()]
    return "\n".join([f"{'IMAGE':<{width}}REFERENCE", *rows])
