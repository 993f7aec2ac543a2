"""Variants of images: which there are, what they start from, and that nothing else changes in them."""

import re

import pytest

from clotho_dev import REPOSITORY
from clotho_dev.cluster import images
from clotho_dev.cluster.failure import ClusterError


def test_variants_are_built_only_on_request() -> None:
    assert images.with_variants("") == images.NAMES
    assert images.with_variants("tinker, atropos,tinker") == (*images.NAMES, "trainer-tinker", "environment-atropos")


def test_unknown_variant_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ClusterError, match="unknown variant trtllm; there are: atropos, verifiers, tinker, vllm"):
        images.with_variants("atropos,trtllm")


def test_every_variant_has_a_containerfile_and_none_is_forgotten() -> None:
    files = set((REPOSITORY / "images").glob("*/Containerfile.*"))
    assert {images.containerfile(name) for name in images.PARENTS} == files


@pytest.mark.parametrize("name", images.PARENTS)
def test_variant_starts_from_its_image_and_gives_up_root(name: str) -> None:
    text = images.containerfile(name).read_text()
    assert re.findall(r"^FROM (.+)$", text, re.MULTILINE) == ["${PARENT}"]
    assert f"/{images.PARENTS[name]}:" in text.partition("FROM")[0]
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["0:0", "65532:65532"]
    assert "--require-hashes" in text
    assert f'title="clotho-{name}"' in text


def test_vllm_runs_as_a_user_without_a_name() -> None:
    """torch asks for the user's name when vLLM is imported, and the pods' user is in no /etc/passwd."""
    assert re.search(r"^ENV LOGNAME=\w+$", images.containerfile("trainer-vllm").read_text(), re.MULTILINE)


def test_variant_changes_with_the_image_it_starts_from() -> None:
    tags = {base: images.tag_of("environment-atropos", base) for base in (None, "another")}
    assert len(set(tags.values())) == 2
    assert images.starts_from("environment-atropos", None) == [f"PARENT={images.tag_of('environment', None)}"]


def test_builds_are_sent_the_folders_that_containerfiles_copy_from_and_no_others() -> None:
    """docker sends the whole folder otherwise, environments of gigabytes included."""
    everything, *exceptions = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    files = (REPOSITORY / "images").glob("*/Containerfile*")
    copied = [
        line.split()[0] for file in files for line in re.findall(r"^COPY (?!--from)(.+)$", file.read_text(), re.M)
    ]
    assert everything == "*"
    assert {f"!{source.partition('/')[0]}" for source in copied} == {each for each in exceptions if each[0] == "!"}
    assert "**/__pycache__" in exceptions, "tags do not depend on them, so that layers must not either"
