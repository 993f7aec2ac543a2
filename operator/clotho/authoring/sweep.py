"""A sweep: runs that differ in a few fields, as a grid or at random, with names that show the values. No I/O."""

import hashlib
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct, field

from clotho.api.names import GROUP
from clotho.authoring.changes import spec_problems, with_change
from clotho.authoring.draft import RefusedEditError
from clotho.authoring.mistakes import spell_out

Object = dict[str, Any]
Values = dict[str, Any]
SWEEP_LABEL: Final = f"{GROUP}/sweep"  # the sweep's name, on each of its runs
VALUES_ANNOTATION: Final = f"{GROUP}/sweep-values"  # the swept fields of a run, as JSON
NAME_LIMIT: Final = 63
MOST_RUNS: Final = 500
_SHOWN_PROBLEMS: Final = 5


class Range(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers between two limits, for random sweeps; whole ones where both limits are."""

    min: int | float
    max: int | float
    scale: Literal["linear", "log"] = "linear"

    def draw(self, source: random.Random) -> int | float:
        is_whole = isinstance(self.min, int) and isinstance(self.max, int)
        if self.scale == "log":
            value = math.exp(source.uniform(math.log(self.min), math.log(self.max)))
        else:
            value = source.uniform(self.min, self.max + is_whole)
        if is_whole:
            return min(max(int(value), int(self.min)), int(self.max))
        return float(f"{value:.3g}")  # short enough for a name


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep file. `base` names a file with a TrainingRun; `spec` is one instead."""

    name: str
    parameters: dict[str, list[Any] | Range]
    method: Literal["grid", "random"] = "grid"
    runs: int | None = None  # of a random sweep
    seed: int = 0
    limit: int | None = None  # of runs at once; all where absent
    base: str = ""
    spec: Object = field(default_factory=dict)


class Problem(Struct, frozen=True):
    path: tuple[str, ...]  # in the sweep file
    text: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.text}" if self.path else self.text


class SweepError(Exception):
    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


class Variant(Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    name: str
    values: Values
    spec: Object

    def manifest(self, sweep: str) -> Object:
        values = json.dumps(self.values, ensure_ascii=False)
        metadata = {"name": self.name, "labels": {SWEEP_LABEL: sweep}, "annotations": {VALUES_ANNOTATION: values}}
        return {"metadata": metadata, "spec": self.spec}


def parse_sweep(document: Any) -> Sweep:
    """Raises SweepError."""
    if problems := list(_shape_problems(document)):
        raise SweepError(problems)
    try:
        sweep = msgspec.convert(document, Sweep)
    except msgspec.ValidationError as error:
        mistake = spell_out(error, document, Sweep)
        raise SweepError([Problem(tuple(re.findall(r"[^.\[\]]+", mistake.path)), mistake.problem)]) from error
    if problems := list(_problems(sweep)):
        raise SweepError(problems)
    return sweep


def _shape_problems(document: Any) -> Iterator[Problem]:
    """What a decoder would report without the parameter's name."""
    if not isinstance(document, Mapping):
        yield Problem((), "a sweep has the fields name, base or spec, and parameters")
        return
    parameters = document.get("parameters")
    for name, values in parameters.items() if isinstance(parameters, Mapping) else ():
        is_range = isinstance(values, Mapping) and {"min", "max"} <= values.keys() <= {"min", "max", "scale"}
        if not isinstance(values, list) and not is_range:
            yield Problem(("parameters", str(name)), "write a list of values, or min, max and optionally scale")


def _problems(sweep: Sweep) -> Iterator[Problem]:
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", sweep.name):
        yield Problem(("name",), "at most 40 lower-case letters, digits and hyphens, a letter first")
    if bool(sweep.base) == bool(sweep.spec):
        yield Problem((), "name a file with a TrainingRun in base, or write its spec in spec; one of them")
    if sweep.limit is not None and sweep.limit < 1:
        yield Problem(("limit",), "must be at least 1")
    if not sweep.parameters:
        yield Problem(("parameters",), "name at least one field with its values")
    for name, values in sweep.parameters.items():
        yield from (Problem(("parameters", name), text) for text in _value_problems(values, sweep.method))
    if sweep.method == "random" and (sweep.runs is None or not 1 <= sweep.runs <= MOST_RUNS):
        yield Problem(("runs",) if sweep.runs is not None else (), f"runs of a random sweep: from 1 to {MOST_RUNS}")
    if sweep.method == "grid" and sweep.runs is not None:
        yield Problem(("runs",), "a grid has one run for each combination; use method: random for another number")
    count = math.prod(len(values) for values in sweep.parameters.values() if isinstance(values, list))
    if sweep.method == "grid" and count > MOST_RUNS:
        yield Problem(("parameters",), f"{count} combinations; at most {MOST_RUNS}")


def _value_problems(values: list[Any] | Range, method: str) -> Iterator[str]:
    if isinstance(values, list):
        if not values:
            yield "the list is empty"
        elif len({_text(value) for value in values}) < len(values):
            yield "a value is listed twice"
        return
    if method == "grid":
        yield "a grid needs a list of values; min and max are for method: random"
    if not values.min < values.max or not math.isfinite(values.min) or not math.isfinite(values.max):
        yield "min must be less than max"
    elif values.scale == "log" and values.min <= 0:
        yield "scale log needs a min greater than 0"


def expand(sweep: Sweep, base: Object) -> list[Variant]:
    """Every run of the sweep, in a fixed order. Raises SweepError."""
    refused = []
    for parameter in sweep.parameters:
        try:
            with_change(base, parameter, None)
        except RefusedEditError as error:
            refused.append(Problem(("parameters", parameter), str(error)))
    if refused:
        raise SweepError(refused)
    chosen = list(_grid(sweep) if sweep.method == "grid" else _random(sweep))
    names = _names(sweep.name, chosen)
    variants = []
    for name, values in zip(names, chosen, strict=True):
        spec = base
        for parameter, value in values.items():
            spec = with_change(spec, parameter, value)
        variants.append(Variant(name=name, values=values, spec=spec))
    wrong = [
        Problem(("parameters",), f"run {each.name}: {text}")
        for each in variants
        for text in spec_problems(each.name, each.spec)
    ]
    if wrong:
        more = len(wrong) - _SHOWN_PROBLEMS
        rest = [Problem(("parameters",), f"{more} more problems of this kind")] if more > 0 else []
        raise SweepError([*wrong[:_SHOWN_PROBLEMS], *rest])
    return variants


def _grid(sweep: Sweep) -> Iterator[Values]:
    lists = cast(list[list[Any]], list(sweep.parameters.values()))
    for combination in itertools.product(*lists):
        yield dict(zip(sweep.parameters, combination, strict=True))


def _random(sweep: Sweep) -> Iterator[Values]:
    """The same for the same seed; combinations are different as long as there are any left."""
    source, seen = random.Random(sweep.seed), set[str]()  # noqa: S311 - not for secrets
    wanted = cast(int, sweep.runs)
    for _ in range(wanted * 100):
        if len(seen) == wanted:
            return
        values = {
            name: each.draw(source) if isinstance(each, Range) else source.choice(each)
            for name, each in sweep.parameters.items()
        }
        if _text(values) not in seen:
            seen.add(_text(values))
            yield values


def _names(sweep: str, chosen: Sequence[Values]) -> list[str]:
    """`lr-learningrate-1e-05-batchsize-64`; a digest of the values where that is too long or not unique."""
    parts = [[f"{_slug(_leaf(path))}-{_slug(_shown(value))}" for path, value in each.items()] for each in chosen]
    plain = ["-".join([sweep, *each]) for each in parts]
    counts = Counter(plain)
    return [
        name if len(name) <= NAME_LIMIT and counts[name] == 1 else _with_digest(name, values)
        for name, values in zip(plain, chosen, strict=True)
    ]


def _with_digest(name: str, values: Values) -> str:
    digest = hashlib.sha256(_text(values).encode()).hexdigest()[:8]
    return f"{name[: NAME_LIMIT - 9].rstrip('-')}-{digest}"


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return _scientific(value) if 0 < abs(value) < 0.01 else f"{value:g}".replace("+", "")
    return value if isinstance(value, str) else _text(value)


def _scientific(value: float) -> str:
    """`1e-4`, as people write learning rates."""
    digits, _, exponent = f"{value:e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"


def _slug(text: str) -> str:
    """Letters, digits and hyphens: a point becomes `p`, a leading minus `m`."""
    text = re.sub(r"(?<=\d)\.(?=\d)", "p", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"^-", "m", text)).strip("-") or "none"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
