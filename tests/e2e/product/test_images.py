"""What is inside the images, seen from a container: nothing that helps an intruder, nothing that delays a start."""

from __future__ import annotations

import json

import pytest

from clotho_dev.cluster import images
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.target import Embedded
from rig.pods import Pods

INSPECT = """
import importlib.util, json, os, pathlib, shutil, stat
def privileged(folder):
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(root, name))]
        for name in files:
            mode = os.lstat(os.path.join(root, name)).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                yield os.path.join(root, name)
compilers = [name for name in ("gcc", "cc", "g++", "clang", "make") if shutil.which(name)]
sources = [str(path) for path in pathlib.Path("/opt/app").rglob("*.py")]
uncompiled = [path for path in sources if not os.path.exists(importlib.util.cache_from_source(path))]
print(json.dumps({"privileged": sorted(privileged("/")), "compilers": compilers, "uncompiled": uncompiled}))
"""
COMPILERS = {"trainer": ["gcc", "cc"]}  # Triton compiles the launchers of its kernels


@pytest.mark.parametrize("name", images.NAMES)
def test_image_has_no_setuid_file_no_needless_compiler_and_compiled_sources(
    embedded: Embedded, kubectl: Kubectl, namespace: str, name: str
) -> None:
    tag = embedded.provide_images([name])[name]
    found = json.loads(Pods(kubectl.in_namespace(namespace), tag).run("inspector", INSPECT))
    assert found == {"privileged": [], "compilers": COMPILERS.get(name, []), "uncompiled": []}
