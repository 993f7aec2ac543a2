"""Every claim of docs/trust-model.md about a wall names tests, and those tests exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "trust-model.md"
_WALLS = DOCUMENT.read_text().partition("\n## The walls\n")[2].partition("\n## What remains\n")[0]
_INTRODUCTION, *_SECTIONS = _WALLS.split("\n### ")


def rows() -> Iterator[tuple[str, str]]:
    for section in _SECTIONS:
        _, head, rule, *body = [line for line in section.splitlines() if line]
        assert (head, rule) == ("| claim | tests |", "|---|---|")
        for line in body:
            row = re.fullmatch(r"\| (.+) \| (.*?) ?\|", line)
            assert row is not None, f"not a claim with tests: {line}"
            yield row[1], row[2]


CLAIMS = list(rows())


@cache
def functions_of(path: Path) -> dict[str, bool]:
    """The names of a file's test functions, and whether each is parametrised."""
    found = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {each.name: "parametrize" in "".join(map(ast.unparse, each.decorator_list)) for each in found}


def problem_of(test: str) -> str:
    match = re.fullmatch(r"([\w/]+\.py)::(test_\w+)(\[.+\])?", test)
    if match is None or not (TESTS / match[1]).is_file():
        return f"{test}: no such file"
    known = functions_of(TESTS / match[1])
    if match[2] not in known:
        return f"{test}: no such test"
    return f"{test}: the test has no parameters" if match[3] and not known[match[2]] else ""


@pytest.mark.parametrize(("claim", "tests"), CLAIMS, ids=[claim[:50] for claim, _ in CLAIMS])
def test_every_claim_names_tests_that_exist(claim: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)`", tests)
    assert named, "no test"
    assert re.sub(r"`[^`]+`", "", tests).strip() == ""
    assert [problem for each in named if (problem := problem_of(each))] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert problem_of("unit/no_such.py::test_x") == "unit/no_such.py::test_x: no such file"
    assert problem_of("unit/test_trust_model.py::test_x") == "unit/test_trust_model.py::test_x: no such test"
    name = "unit/test_trust_model.py::test_a_name_that_does_not_exist_is_found[x]"
    assert problem_of(name) == f"{name}: the test has no parameters"


def test_walls_have_no_claim_outside_a_table() -> None:
    assert _INTRODUCTION.count("\n\n") <= 1, "the introduction is one paragraph"
    assert len(_SECTIONS) >= 9
