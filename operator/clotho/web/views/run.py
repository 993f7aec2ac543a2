"""One run in all its parts: each is sent again only when it changes."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from clotho.web.views.runs import run_row
from clotho.web.views.timeline import components_of, timeline
from clotho_contract.history import History

Object = Mapping[str, Any]
View = dict[str, Any]
_WRITTEN: Final = ("name", "namespace", "labels", "annotations")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def run_parts(body: Object, history: History, events: Iterable[Object]) -> View:
    return {
        "run": run_row(body) | _details(body),
        "components": [_component(part) for part in components_of(body)],
        "settings": {"manifest": _as_yaml(manifest(body)), "resolved": _as_yaml(_resolved(body))},
        "commands": commands(body),
        "timeline": timeline(body, events, history.evaluations),
        **history_parts(body, history),
    }


def history_parts(body: Object, history: History) -> View:
    """Before a history is kept, the few samples in the status make a curve too."""
    series: Any = history.series
    if not history.series.steps:
        samples = body.get("status", {}).get("history") or ()
        names = ("rewardMean", "loss", "percentCorrect")
        figures = {name: [sample.get(name) for sample in samples] for name in names}
        kept = {name: values for name, values in figures.items() if any(value is not None for value in values)}
        series = {"steps": [sample["step"] for sample in samples], "figures": kept}
    return {"series": series, "samples": history.samples, "evaluations": history.evaluations}


def _details(body: Object) -> View:
    status = body.get("status", {})
    return {
        "message": status.get("message") or "Waiting for the operator.",
        "started": status.get("startTime"),
        "attempt": status.get("attempt", 0),
        "checkpoint": status.get("checkpoint"),
        "results": status.get("results"),
        "export": status.get("export"),
        "wandb": _web_address(status.get("wandbUrl") or ""),
        "policies": (status.get("policy") or {}).get("names", []),
        "evaluated": status.get("evaluations") or [],
        "conditions": [
            {key: each.get(key) for key in ("type", "status", "reason", "message", "lastTransitionTime")}
            for each in status.get("conditions", ())
        ],
    }


def _web_address(text: str) -> str:
    """A link may lead to a web page and nowhere else."""
    return text if text.startswith(("https://", "http://")) else ""


def _component(part: Object) -> View:
    return {
        "name": part["name"],
        "state": part.get("state", "Missing"),
        "ready": part.get("ready", 0),
        "replicas": part.get("replicas", 1),
        "ranks": part.get("ranks", ""),
        "restarts": part.get("restarts", 0),
        "pod": part.get("pod", ""),
        "image": part.get("image", ""),
        "message": part.get("message") or (part.get("lastExit") or {}).get("message", ""),
    }


def manifest(body: Object) -> View:
    """To be saved and applied again."""
    metadata = {key: body["metadata"][key] for key in _WRITTEN if body["metadata"].get(key)}
    if notes := {key: text for key, text in metadata.pop("annotations", {}).items() if key != _LAST_APPLIED}:
        metadata["annotations"] = notes
    head = {key: body.get(key, "") for key in ("apiVersion", "kind")}
    return {**head, "metadata": metadata, "spec": body.get("spec", {})}


def _resolved(body: Object) -> View:
    status = body.get("status", {})
    found = {"environments": status.get("resolved"), "policy": status.get("policy")}
    return {key: value for key, value in found.items() if value}


def _as_yaml(document: View) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100) if document else ""


def commands(body: Object) -> list[View]:
    name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")
    wanted = (
        ("Follow it in a terminal", ("run", "watch")),
        ("Print its logs", ("run", "logs")),
        ("Stop it after a last checkpoint", ("run", "stop")),
        ("Copy the model here", ("run", "download")),
        ("Start another one like it", ("run", "clone")),
    )
    return [{"title": title, "command": shlex.join(["clotho", *verb, name, "-n", namespace])} for title, verb in wanted]
