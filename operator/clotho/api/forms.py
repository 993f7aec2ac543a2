"""What a text in a spec looks like, in words: where its pattern says less than an example."""

from typing import Any, Final

from clotho.api.networks import Cidr
from clotho.api.rules import Rule
from clotho.api.schema import Schema
from clotho.api.training_run import EnvironmentName, ObjectName, Quantity, Requirement


def _pattern(annotated: Any) -> str:
    return str(annotated.__metadata__[0].pattern)


_EXPLAINED: Final = {
    _pattern(Quantity): "a size such as 10Gi",
    _pattern(EnvironmentName): "a name of lower-case letters, digits and -",
}
_PATTERNS: Final = {  # rules about fields that are so many would cost the API server a tenth more of each status write
    _pattern(ObjectName): "the name of an object: lower-case letters, digits, - and .",
    _pattern(Cidr): "a network such as 203.0.113.0/24",
    _pattern(Requirement): "a line such as rapidfuzz==3.14.5 --hash=sha256:... (see `pip hash`)",
}


def form_of(pattern: str) -> str:
    """Empty where the pattern has to do."""
    return _EXPLAINED.get(pattern) or _PATTERNS.get(pattern) or _url(pattern)


def _url(pattern: str) -> str:
    return "a URL that starts with http:// or https://" if "https?://" in pattern else ""


def explain_patterns(schema: Schema) -> None:
    """Rules at single texts take the place of patterns: the API server then answers with words."""
    for inner in (*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])):
        explain_patterns(inner)
    pattern = schema.get("pattern", "")
    if words := _EXPLAINED.get(pattern) or _url(pattern):
        del schema["pattern"]
        rule = Rule(rule=f"self.matches(r'{pattern}')", message=f"must be {words}")
        schema["x-kubernetes-validations"] = [rule.render()]
