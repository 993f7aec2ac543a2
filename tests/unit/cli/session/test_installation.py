"""The image of a variant is named only where the installed release shows its name."""

import pytest

from clotho.cli.session.installation import RUN_IMAGES, environment_variant


@pytest.mark.parametrize(
    ("images", "variant"),
    [
        (("r:5000/a/api-server:1.2", "r:5000/a/trainer:1.2", "r:5000/a/environment:1.2"), "r:5000/a/environment-x:1.2"),
        (("r/api-server:1", "r/trainer:2", "r/environment:3"), ""),
        (("r/api-server@sha256:1", "r/trainer@sha256:1", "r/environment@sha256:1"), ""),
        (("r/api-server", "r/trainer", "r/environment"), ""),
        (("", "", ""), ""),
    ],
)
def test_variant_of_the_installed_release(images: tuple[str, ...], variant: str) -> None:
    variables = [{"name": name, "value": image} for name, image in zip(RUN_IMAGES, images, strict=True)]
    deployment = {"spec": {"template": {"spec": {"containers": [{"name": "operator", "env": variables}]}}}}
    assert environment_variant(deployment, "x") == variant


def test_variant_without_an_installed_release_has_no_name() -> None:
    assert environment_variant({}, "x") == ""
