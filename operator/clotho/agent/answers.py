"""Kubernetes objects -> the answers that agents get. Pure; what is unknown is null."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from clotho.api.metadata import Metadata
from clotho.authoring.draft import Draft, Setting
from clotho.render.names import run_id
from clotho.render.testing import trial_pod_name

Object = Mapping[str, Any]
Answer = dict[str, Any]
HISTORY_SAMPLES: Final = 10
DEFAULT_PROJECT: Final = "atropos-tinker"


def environment_answer(environment: Object) -> Answer:
    spec, status = environment.get("spec", {}), environment.get("status", {})
    entry = spec.get("entry") or environment["metadata"]["name"]
    ready: Object = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    return {
        "name": environment["metadata"]["name"],
        "class_name": status.get("className", ""),
        "file_path": file_path(entry),
        "description": spec.get("description") or status.get("description", ""),
        "ready": ready.get("status") == "True",
        "message": status.get("message", ""),
    }


def file_path(entry: str) -> str:
    """The file of an entry that names one; else the entry itself."""
    path = entry.removeprefix("atropos:").partition(".py")
    return f"{path[0]}.py" if path[1] else entry


def config_answer(draft: Draft) -> Answer:
    settings = list(draft.settings())
    return {
        "environment": draft.environment.metadata.name,
        "configurable_fields": [_setting(each) for each in settings if not each.is_locked],
        "locked_fields": [_setting(each) for each in settings if each.is_locked],
    }


def _setting(setting: Setting) -> Answer:
    field = setting.field
    limits = {
        "minimum": field.minimum,
        "maximum": field.maximum,
        "exclusive_minimum": field.exclusive_minimum,
        "exclusive_maximum": field.exclusive_maximum,
        "choices": list(field.enum) or None,
    }
    decided = {"decided_by": setting.decided_by} if setting.decided_by else {}
    return {
        "name": field.name,
        "type": field.type,
        "default": field.default,
        "description": field.description,
        "current_value": setting.value,
        "required": field.required,
        **decided,
        **{key: value for key, value in limits.items() if value is not None},
    }


def changed_settings(draft: Draft) -> Answer:
    """What differs from the defaults."""
    chosen = [each for each in draft.settings() if not each.decided_by]  # the others follow from these
    return {each.field.name: each.value for each in chosen if each.value != each.field.default}


def run_summary(run: Object) -> Answer:
    spec, status = run.get("spec", {}), run.get("status", {})
    return {
        "run_id": run["metadata"]["name"],
        "environment": environments_of(run),
        "status": state(run),
        "step": (status.get("progress") or {}).get("step", 0),
        "total_steps": spec.get("training", {}).get("steps"),
        "started_at": status.get("startTime"),
        **wandb_names(run),
    }


def state(run: Object) -> str:
    return str(run.get("status", {}).get("phase", "Pending")).lower()


def environments_of(run: Object) -> str:
    places = run.get("spec", {}).get("environments", ())
    return ", ".join(place.get("environmentName") or place["name"] for place in places)


def wandb_names(run: Object) -> Answer:
    """The run as it appears in W&B; null for a run that does not report there."""
    asked = run.get("spec", {}).get("tracking", {}).get("wandb")
    policy = run.get("status", {}).get("policy") or {}
    locked = policy.get("locked", {}).get("tracking", {}).get("wandb")
    if not asked and not locked:
        return {"wandb_project": None, "wandb_run_name": None, "wandb_url": None}
    wandb = {"project": DEFAULT_PROJECT, **(asked or {}), **(locked or {})}
    places = run["spec"].get("environments", ())
    first = places[0]["name"] if places else run["metadata"]["name"]
    identity = run_id(Metadata(name="", uid=run["metadata"].get("uid", "")))
    return {
        "wandb_project": wandb["project"],
        "wandb_run_name": wandb.get("name") or f"{first}-{identity}",
        "wandb_url": run.get("status", {}).get("wandbUrl") or None,
    }


def with_wandb_name(spec: Object, environment: str, now: datetime) -> Answer:
    """A run that reports to W&B and has no name there gets `<environment>-<timestamp>`."""
    wandb = spec.get("tracking", {}).get("wandb")
    if not wandb or wandb.get("name"):
        return dict(spec)
    name = f"{environment}-{now:%Y%m%d-%H%M%S}"
    return {**spec, "tracking": {**spec["tracking"], "wandb": {**wandb, "name": name}}}


def logs_answer(run: Object) -> Answer:
    return {
        component: f"{_command(run, 'logs')} --component {component}"
        for component in ("api-server", "trainer", "environment")
    }


def _command(run: Object, verb: str) -> str:
    """For people to whom the agent reports."""
    return f"clotho run {verb} {run['metadata']['name']} --namespace {run['metadata'].get('namespace', '')}"


def status_answer(run: Object, now: datetime, evaluated: float | None) -> Answer:
    status = run.get("status", {})
    answer = {
        "run_id": run["metadata"]["name"],
        "status": state(run),
        "environment": environments_of(run),
        "running_time_minutes": running_minutes(status, now),
        "processes": processes(status.get("components") or {}),
        "metrics": metrics(status.get("progress") or {}, evaluated),
        "progress": status.get("progress"),
        "message": status.get("message", ""),
        "logs": logs_answer(run),
        **wandb_names(run),
    }
    if state(run) == "failed":
        answer["error"] = status.get("message", "")
    return answer


def duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{-(-seconds // 60)} minutes"


def running_minutes(status: Object, now: datetime) -> float:
    if not status.get("startTime"):
        return 0.0
    start = datetime.fromisoformat(status["startTime"])
    end = datetime.fromisoformat(status["completionTime"]) if status.get("completionTime") else now
    return round(max(0.0, (end - start.astimezone(UTC)).total_seconds()) / 60, 1)


def processes(components: Object) -> Answer:
    fixed = {"api_server": "apiServer", "trainer": "trainer", "inference": "inference"}
    named = {name: components[field] for name, field in fixed.items() if components.get(field)}
    named |= {f"environment {part['name']}": part for part in components.get("environments", ())}
    return {
        name: {
            "state": part.get("state", "Missing").lower(),
            "ready": f"{part.get('ready', 0)}/{part.get('replicas', 1)}",
            "restarts": part.get("restarts", 0),
            "last_exit": (part.get("lastExit") or {}).get("message"),
        }
        for name, part in named.items()
    }


def metrics(numbers: Object, evaluated: float | None = None) -> Answer:
    """`evaluated` comes from the environments: status does not have it."""
    return {
        "step": numbers.get("step"),
        "reward_mean": numbers.get("rewardMean"),
        "percent_correct": numbers.get("percentCorrect"),
        "eval_percent_correct": evaluated,
        "loss": numbers.get("loss"),
    }


def results_answer(run: Object) -> Answer:
    status = run.get("status", {})
    results = status.get("results") or {}
    samples: Sequence[Object] = status.get("history", ())
    return {
        "run_id": run["metadata"]["name"],
        "status": state(run),
        "environment": environments_of(run),
        "final_metrics": metrics(results or status.get("progress") or {}),
        "history": [metrics(sample) for sample in samples[-HISTORY_SAMPLES:]],
        "weights": {"claim": results.get("claim"), "path": results.get("path")} if results.get("path") else None,
        "output_files": output_files(status),
        "download": _command(run, "download") if results.get("path") else None,
        "message": status.get("message", ""),
        **wandb_names(run),
    }


def output_files(status: Object) -> list[str]:
    """The final checkpoint's folder and what an export wrote, on the run's claim."""
    results, export = status.get("results") or {}, status.get("export") or {}
    exported = [f"{export.get('folder', '')}/{each['path']}" for each in export.get("files", ())]
    return [*([results["path"]] if results.get("path") else []), *exported]


def test_answer(test: Object) -> Answer:
    spec, status, metadata = test["spec"], test.get("status", {}), test["metadata"]
    head = Metadata(name=metadata["name"], namespace=metadata.get("namespace", ""))
    steps, size = spec.get("steps", 3), spec.get("groupSize", 16)
    summary = status.get("summary") or {}
    return {
        "test": head.name,
        "status": str(status.get("phase", "Pending")).lower(),
        "environment": spec.get("environmentName", ""),
        "num_steps": steps,
        "group_size": size,
        "total_completions_per_model": steps * size,
        "models_tested": [_model_answer(head, *each) for each in enumerate(status.get("models", ()))],
        "summary": {
            "models_requested": summary.get("requested"),
            "models_tested": summary.get("tested"),
            "models_succeeded": summary.get("succeeded"),
            "best_model": summary.get("bestModel") or None,
            "average_accuracy": summary.get("averageAccuracy"),
            "avg_accuracy": summary.get("averageAccuracy"),  # this and the next as in Atropos' own tool set
            "environment_works": summary.get("environmentWorks"),
            "environment_working": summary.get("environmentWorks"),
        },
        "message": status.get("message", ""),
    }


def _step_answer(number: int, step: Object) -> Answer:
    scores = step.get("scores", ())
    return {"step": number, "scores": list(scores), "correct": sum(score > 0 for score in scores)}


def _model_answer(test: Metadata, index: int, result: Object) -> Answer:
    return {
        "model": result["name"],
        "size": result.get("size", "custom"),
        "status": str(result.get("phase", "Pending")).lower(),
        "steps_tested": result.get("stepsTested", 0),
        "completions": result.get("completions", 0),
        "total_completions": result.get("completions", 0),
        "correct": result.get("correct", 0),
        "accuracy": result.get("accuracy"),
        "steps_with_correct": result.get("stepsWithCorrect", 0),
        "step_success_rate": result.get("stepSuccessRate"),
        "samples": list(result.get("samples", ())),
        "steps": [_step_answer(number, each) for number, each in enumerate(result.get("steps", ()), 1)],
        "output_file": f"kubectl logs {trial_pod_name(test, index)} --namespace {test.namespace}",
        "error": result.get("error") or None,
    }
