"""Images from the Containerfiles, built with buildah and imported into containerd; unchanged ones are not touched."""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from clotho_dev import REPOSITORY
from clotho_dev.cluster import oci, packages
from clotho_dev.cluster.binaries import cache_folder
from clotho_dev.cluster.buildah import argv_of, buildah, discard_leftovers, storage, stream
from clotho_dev.cluster.console import step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.layers import link_layers, release
from clotho_dev.cluster.locks import only_one
from clotho_dev.cluster.node import ctr, import_archive, remove_images
from clotho_dev.cluster.state import Folder
from clotho_dev.cluster.store import images_lock

NAMES = ("operator", "api-server", "environment", "trainer")
PARENTS = {  # variants, built on request: one of the images above with more packages
    "environment-atropos": "environment",
    "environment-verifiers": "environment",
    "trainer-tinker": "trainer",
    "trainer-vllm": "trainer",
}
REGISTRY = "https://registry-1.docker.io/v2/"
REGISTRY_SECONDS = 3.0
SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
BASE_TAG = f"localhost/clotho-dev/python:{SUITE}-{hashlib.sha256(BASE_PACKAGES.encode()).hexdigest()[:8]}"
_NEEDS_SNAPSHOT = "containerd.io/gc.ref.snapshot.overlayfs"  # a label that keeps it
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def provide(folder: Folder, names: Iterable[str] = NAMES) -> dict[str, str]:
    """Make the cluster have these images; the tags carry the hash of everything that goes into them."""
    if folder.daemon() is None:
        raise ClusterError(f"cluster {folder.name!r} is not running; start it with `make cluster`")
    return import_images(folder, names)


def import_images(folder: Folder, names: Iterable[str] = NAMES) -> dict[str, str]:
    """Into the containerd of this folder, which is running; those that it lacks are built if need be."""
    base = base_image()
    tags = {name: tag_of(name, base) for name in names}
    if _missing(folder, tags):
        with building(base):
            for name, tag in _missing(folder, tags).items():
                build_image(name, tag, base)
                import_image(folder, name, tag)
                _forget_older(folder, name, tag)
    return tags


def provide_derived(folder: Folder, name: str, parent: str, context: Path) -> str:
    """Make the cluster have one more image, from `context`'s Containerfile, whose PARENT is one of ours; its tag."""
    base = base_image()
    under = tag_of(parent, base)
    digest = hashlib.sha256(under.encode())
    for path in sorted(context.iterdir()):
        digest.update(path.read_bytes())
    tag = f"localhost/clotho/{name}:{digest.hexdigest()[:12]}"
    if _missing(folder, {name: tag}):
        with building(base):
            build_image(parent, under, base)
            _build(name, tag, context / "Containerfile", context, [f"PARENT={under}"])
            import_image(folder, name, tag)
            _forget_older(folder, name, tag)
    return tag


def build(names: Iterable[str] = NAMES) -> None:
    """Without a containerd to import them into."""
    base = base_image()
    with building(base):
        for name in names:
            build_image(name, tag_of(name, base), base)


def base_image() -> str | None:
    """None stands for the Containerfiles' own base image, from a registry."""
    return chosen_base() or (None if _registry_answers() else BASE_TAG)


def chosen_base() -> str | None:
    """$BASE_IMAGE: a mirror's copy of the Containerfiles' own."""
    return os.environ.get("BASE_IMAGE") or None


@contextmanager
def building(base: str | None) -> Iterator[None]:
    packages.require_root("building images")
    packages.require(packages.IMAGES, packages.DEBIAN_BASE if base == BASE_TAG else {})
    with only_one(images_lock(), "building or importing images"):
        discard_leftovers()
        if base == BASE_TAG:
            _provide_debianbase_image()
        yield


def _missing(folder: Folder, tags: dict[str, str]) -> dict[str, str]:
    present = set(ctr(folder, "images", "list", "--quiet").split())
    return {name: tag for name, tag in tags.items() if tag not in present}


def with_variants(variants: str) -> tuple[str, ...]:
    """All images, and the variants of a list such as `atropos,tinker`."""
    by_word = {name.removeprefix(f"{parent}-"): name for name, parent in PARENTS.items()}
    words = [word.strip() for word in variants.split(",") if word.strip()]
    if unknown := sorted(set(words) - set(by_word)):
        raise ClusterError(f"unknown variant {', '.join(unknown)}; there are: {', '.join(by_word)}")
    return (*NAMES, *(by_word[word] for word in dict.fromkeys(words)))


def containerfile(name: str) -> Path:
    if name not in PARENTS:
        return REPOSITORY / "images" / name / "Containerfile"
    parent = PARENTS[name]
    return REPOSITORY / "images" / parent / f"Containerfile.{name.removeprefix(f'{parent}-')}"


def tag_of(name: str, base: str | None) -> str:
    under = tag_of(PARENTS[name], base) if name in PARENTS else base or ""
    digest = hashlib.sha256(under.encode())
    for path in [containerfile(name), *_copied(containerfile(name))]:
        digest.update(str(path.relative_to(REPOSITORY)).encode())
        digest.update(path.read_bytes())
    return f"localhost/clotho/{name}:{digest.hexdigest()[:12]}"


def _copied(file: Path) -> list[Path]:
    """The files that COPY lines name: what the image depends on."""
    sources: list[Path] = []
    for line in re.findall(r"^COPY (.+)$", file.read_text(), re.MULTILINE):
        for word in line.split()[:-1] if not line.startswith("--from=") else []:
            path = REPOSITORY / word
            sources += sorted(path.rglob("*")) if path.is_dir() else [path]
    return [path for path in sources if path.is_file() and "__pycache__" not in path.parts]


def _registry_answers() -> bool:
    try:
        with urllib.request.urlopen(REGISTRY, timeout=REGISTRY_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # a registry answers 401 to anonymous requests
    except OSError:
        return False


def _provide_debianbase_image() -> None:
    if buildah("images", "--quiet", BASE_TAG, check=False).strip():
        return
    root = cache_folder() / "debian-base"
    with step(f"Making a Debian {SUITE} base image (no image registry can be reached)") as progress:
        stream(["rm", "-rf", str(root)], progress)
        arguments = ["--variant=minbase", f"--include={BASE_PACKAGES}", SUITE, str(root)]
        stream(["debootstrap", *arguments], progress)
        for leftover in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
            stream(["find", str(root / leftover), "-type", "f", "-delete"], progress)
        container = buildah("from", "scratch").strip()
        stream([*argv_of("add", "--quiet", container, str(root), "/")], progress)
        buildah("config", "--cmd", "/bin/sh", container)
        stream([*argv_of("commit", "--quiet", "--disable-compression", "--rm", container, BASE_TAG)], progress)
        stream(["rm", "-rf", str(root)], progress)


def build_image(name: str, tag: str, base: str | None, labels: Mapping[str, str] | None = None) -> None:
    if name in PARENTS:
        build_image(PARENTS[name], tag_of(PARENTS[name], base), base)
    _build(name, tag, containerfile(name), REPOSITORY, starts_from(name, base), labels)


def _build(
    name: str,
    tag: str,
    file: Path,
    context: Path,
    arguments: Iterable[str],
    labels: Mapping[str, str] | None = None,
) -> None:
    uv_cache = cache_folder().parent / "uv"  # the one that `uv sync` of this checkout has filled already
    uv_cache.mkdir(parents=True, exist_ok=True)
    argv = argv_of(
        "build",
        "--layers",
        "--isolation=chroot",
        "--network=host",
        f"--file={file}",
        f"--tag={tag}",
        f"--volume={uv_cache}:/root/.cache/uv",
        *own_certificates(),
        *(f"--build-arg={each}" for each in arguments),
        *(f"--label={key}={value}" for key, value in (labels or {}).items()),
        str(context),
    )
    with step(f"Building image {name}") as progress:
        stream(argv, progress)


def own_certificates() -> list[str]:
    """For a build behind a proxy whose certificate authority this machine trusts; not kept in the image."""
    return [f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []


def starts_from(name: str, base: str | None) -> list[str]:
    """The build argument with the image that this one starts from; none where it is the Containerfile's own."""
    if name in PARENTS:
        return [f"PARENT={tag_of(PARENTS[name], base)}"]
    return [f"BASE={base}"] if base else []


def import_image(folder: Folder, name: str, tag: str) -> None:
    """Without a copy of its layers, which are gigabytes."""
    with step(f"Importing image {name}") as progress:
        config = _config(tag)
        snapshots = link_layers(folder, storage(), json.loads(config)["rootfs"]["diff_ids"], progress)
        import_archive(folder, oci.archive_of_unpacked(config, tag), "--no-unpack")
        ctr(folder, "content", "label", oci.digest_of(config), f"{_NEEDS_SNAPSHOT}={snapshots[-1]}")
        release(folder, snapshots)


def _config(tag: str) -> bytes:
    """The exact bytes, which have a digest."""
    return buildah("inspect", "--type=image", "--format={{.Config}}", tag).removesuffix("\n").encode()


def _forget_older(folder: Folder, name: str, tag: str) -> None:
    """A trainer image weighs several gigabytes in each of two stores: the newest is enough."""
    prefix = f"localhost/clotho/{name}:"
    remove_images(folder, lambda image: image.startswith(prefix) and image != tag)
    for image in buildah("images", "--noheading", "--format={{.Name}}:{{.Tag}}").split():
        if image.startswith(prefix) and image != tag:
            buildah("rmi", image, check=False)
