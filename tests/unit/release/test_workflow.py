"""The release workflow: what it runs exists, in an order in which nothing untested is published."""

import re
from pathlib import Path

import yaml

from clotho_dev.cluster import images

ROOT = Path(__file__).parents[3]
FILE = ROOT / ".github" / "workflows" / "release.yml"
WORKFLOW = yaml.safe_load(FILE.read_text())
JOBS = WORKFLOW["jobs"]


def commands(job: str) -> str:
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


def test_tags_start_it_and_nothing_else_does() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}, "YAML 1.1 reads `on` as true"


def test_tests_pass_before_images_are_pushed_and_signed() -> None:
    assert (JOBS["push"]["needs"], JOBS["sign"]["needs"]) == ("test", "push")
    assert "make test" in commands("test")


def test_every_pushed_image_is_signed_and_attested() -> None:
    (variants,) = re.findall(r"make push .*VARIANTS=(\S+)", commands("push"))
    assert tuple(JOBS["sign"]["strategy"]["matrix"]["image"]) == images.with_variants(variants)
    assert all(words in commands("sign") for words in ("cosign sign", "cosign attest"))


def test_every_variant_that_an_example_takes_from_our_registry_is_pushed() -> None:
    manifests = "\n".join(path.read_text() for path in (ROOT / "examples").rglob("*.yaml"))
    named = {name for name in images.PARENTS if f"ghcr.io/clotho-dev/{name}:" in manifests}
    assert named
    assert named <= set(JOBS["sign"]["strategy"]["matrix"]["image"])


def test_make_targets_exist() -> None:
    targets = {name for job in JOBS for name in re.findall(r"\bmake ([a-z-]+)", commands(job))}
    makefiles = "\n".join(path.read_text() for path in (ROOT / "Makefile", *(ROOT / "make").glob("*.mk")))
    assert targets
    assert targets <= set(re.findall(r"^([a-z0-9-]+):", makefiles, re.MULTILINE))


def test_rights_are_given_to_the_jobs_that_need_them() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in JOBS["test"]
    assert "id-token" not in JOBS["push"]["permissions"]


def test_no_expression_is_expanded_inside_a_script() -> None:
    """A tag or a name with shell syntax would run; variables of the environment do not."""
    assert all("${{" not in commands(job) for job in JOBS)
