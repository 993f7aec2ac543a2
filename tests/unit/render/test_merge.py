"""Strategic merge: the table of what `kubectl patch` would do."""

from typing import Any

import pytest

from clotho.render.merge import TemplateError, merge

BASE: dict[str, Any] = {
    "restartPolicy": "Never",
    "nodeSelector": {"a": "1"},
    "tolerations": [{"key": "x"}],
    "containers": [
        {"name": "main", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
        {"name": "side"},
    ],
}


@pytest.mark.parametrize(
    ("patch", "field", "expected"),
    [
        ({"nodeSelector": {"b": "2"}}, "nodeSelector", {"a": "1", "b": "2"}),
        ({"nodeSelector": {"a": None}}, "nodeSelector", {}),
        ({"nodeSelector": {"$patch": "replace", "c": "3"}}, "nodeSelector", {"c": "3"}),
        ({"nodeSelector": {"env": "prod", "ports": "2"}}, "nodeSelector", {"a": "1", "env": "prod", "ports": "2"}),
        ({"nodeSelector": None}, "nodeSelector", None),
        ({"tolerations": [{"key": "y"}]}, "tolerations", [{"key": "y"}]),
        ({"priorityClassName": "high"}, "priorityClassName", "high"),
        ({"containers": [{"name": "side", "$patch": "delete"}]}, "containers", BASE["containers"][:1]),
        ({"containers": [{"name": "new"}]}, "containers", [*BASE["containers"], {"name": "new"}]),
        (
            {"containers": [{"name": "main", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]},
            "containers",
            [
                {
                    "name": "main",
                    "image": "i",
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
                },
                {"name": "side"},
            ],
        ),
    ],
)
def test_merge_follows_strategic_merge_patch(patch: dict[str, Any], field: str, expected: Any) -> None:
    assert merge(BASE, patch).get(field) == expected


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"containers": "many"}, "template.containers: expected a list, got a string"),
        ({"containers": ["main"]}, r"template.containers\[0\]: expected an object, got a string"),
        ({"containers": [{"image": "x"}]}, r"template.containers\[0\]: name is missing"),
        ({"containers": [{"name": None}]}, r"template.containers\[0\]: name is missing"),
        (
            {"containers": [{"name": ["a"]}]},
            r"template.containers\[0\].name: expected a string or a number, got a list",
        ),
        (
            {"containers": [{"name": "main", "env": [{"name": {}}]}]},
            r"template.containers\[0\].env\[0\].name: expected a string or a number, got an object",
        ),
        ({"initContainers": [{"image": "x"}]}, r"template.initContainers\[0\]: name is missing"),
        ({"new": {"containers": [{"image": "x"}]}}, r"template.new.containers\[0\]: name is missing"),
        ({"$patch": "replace", "containers": [{"image": "x"}]}, r"template.containers\[0\]: name is missing"),
        ({"$patch": "replace", "nodeSelector": "x"}, "template.nodeSelector: expected an object, got a string"),
        ({"nodeSelector": 5}, "template.nodeSelector: expected an object, got a number"),
        ({"tolerations": {}}, "template.tolerations: expected a list, got an object"),
    ],
)
def test_an_invalid_pod_template_is_refused_with_its_path(patch: dict[str, Any], words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        merge(BASE, patch)


def test_the_base_is_left_as_it_was() -> None:
    before = repr(BASE)
    merge(BASE, {"containers": [{"name": "main", "image": "other"}], "nodeSelector": {"z": "9"}})
    assert repr(BASE) == before
