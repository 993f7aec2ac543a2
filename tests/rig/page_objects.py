"""Runs in every phase, with histories, environments and tests: what the page's tests and screenshots show."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from clotho.api.history import KeptLog, history_data, log_data
from clotho.api.metadata import Metadata
from clotho.render.names import history_name, logs_name
from clotho_contract.history import Answer, Evaluation, History, SampleGroup, series_of
from rig.cluster_access import Body, ClusterAccess, run_manifest

MODEL = "Qwen/Qwen3-8B"
PROMPT = (
    "A bakery sells muffins for $3 each and cookies for $1.50 each. On Saturday it sold twice as many cookies as\n"
    "muffins and took in $96 in total. How many muffins did it sell?"
)
ANSWERS = (
    ("Let m be the number of muffins: 3m + 1.5·2m = 96, so 6m = 96.\n\nThe bakery sold **16** muffins.", 1.0, 0.87),
    ("A muffin and two cookies are $6 together, and 96 / 6 = 16.\n\nAnswer: 16", 1.0, 0.87),
    ("If all items were muffins there would be 32 of them … so maybe 32?\n\nAnswer: 32", 0.0, -1.15),
    ("Twice as many cookies: 96 / 4.5 = 21.3, which rounds to 21.\n\nAnswer: 21", 0.0, -1.15),
)
CONFIG = {"group_size": 8}


def ago(**time: float) -> str:
    return (datetime.now(UTC) - timedelta(**time)).strftime("%Y-%m-%dT%H:%M:%SZ")


def figures(step: int, seed: random.Random, speed: float = 1.0, best: float = 0.82) -> dict[str, float | None]:
    learnt = best * (1 - math.exp(-step * speed / 140))
    noise = seed.gauss(0, 0.028)
    waiting = 3.2 + seed.random() * 2
    return {
        "rewardMean": round(min(max(0.06 + learnt + noise, 0), 1), 4),
        "rewardStd": round(0.05 + 0.19 * math.exp(-step / 260), 4),
        "percentCorrect": round(100 * min(max(0.06 + learnt + noise, 0), 1), 2),
        "loss": round(0.05 * math.exp(-step / 220) * (1 + seed.gauss(0, 0.35)), 5),
        "kl": round(0.0002 * step**0.8 * (1 + seed.gauss(0, 0.05)), 5),
        "entropy": round(0.35 + 0.5 * math.exp(-step / 320) + seed.gauss(0, 0.012), 4),
        "gradientNorm": round(0.35 + abs(seed.gauss(0, 0.09)), 4),
        "learningRate": 1e-5 * min(1.0, step / 20),
        "completionsMeanLength": round(210 + 0.28 * step + seed.gauss(0, 9), 1),
        "stalenessMean": round(abs(seed.gauss(0.6, 0.15)), 3),
        "tokensPerSecond": round(11800 + seed.gauss(0, 420), 0),
        "secondsTraining": round(9.4 + seed.gauss(0, 0.3), 2),
        "secondsWaiting": round(waiting, 2),
        "secondsPerStep": round(9.9 + waiting, 2),
    }


def history(steps: int, seed: int = 1, speed: float = 1.0, best: float = 0.82) -> History:
    numbers = random.Random(seed)  # noqa: S311 - curves, not secrets
    points = {step: figures(step, numbers, speed, best) for step in range(1, steps + 1)}
    evaluated = [
        Evaluation(
            step=step,
            time=ago(minutes=(steps - step) / 4.6),
            environment="gsm8k",
            figures={"percent_correct": round(100 * (points[step]["rewardMean"] or 0) * 0.95, 1)},
        )
        for step in range(50, steps + 1, 50)
    ]
    samples = [
        group(kind, step, answers)
        for kind, answers in (("newest", ANSWERS), ("best", ANSWERS[:2]), ("worst", ANSWERS[2:]))
        for step in (steps, max(steps - 1, 1))
    ]
    return History(series=series_of(points), samples=tuple(samples), evaluations=tuple(evaluated))


def group(kind: Any, step: int, answers: Any, prompt: str = PROMPT) -> SampleGroup:
    found = tuple(Answer(text=text, reward=reward, advantage=advantage) for text, reward, advantage in answers)
    return SampleGroup(step=step, kind=kind, environment="gsm8k", version=step - 1, prompt=prompt, answers=found)


def running(step: int, steps: int, **more: Any) -> Body:
    learnt = [s for s in (1, step // 9, step // 5, step // 3, step // 2, step * 3 // 4, step) if s > 0]
    kept = history(step, best=more.pop("best", 0.82), speed=more.pop("speed", 1.0)).series
    rewards = dict(kept.points("rewardMean"))
    near = {s: rewards[min(rewards, key=lambda each: abs(each - s))] for s in sorted(set(learnt))}
    progress = {
        "step": step,
        "totalSteps": steps,
        "percent": step * 100 // steps,
        "steps": f"{step}/{steps}",
        "rewardMean": near[step],
        "loss": 0.0123,
        "tokensPerSecond": 11840.0,
        "etaSeconds": (steps - step) * 13,
        "lastStepTime": ago(seconds=9),
    }
    return {
        "phase": "Running",
        "message": f"Training: step {step}/{steps}.",
        "progress": progress,
        "history": [{"step": s, "rewardMean": value} for s, value in near.items()],
        "checkpoint": {"step": step - step % 50, "path": f"/var/lib/clotho/checkpoints/step-{step - step % 50:08}"},
        "startTime": ago(minutes=95),
        "runningTime": ago(minutes=92),
        "writtenAt": ago(seconds=9),
        "attempt": 1,
        **more,
    }


def component(name: str, state: str = "Ready", **more: Any) -> Body:
    return {
        "name": name,
        "state": state,
        "ready": 1 if state == "Ready" else 0,
        "pod": f"gsm8k-8b-3f2a91bc-{name}",
        **more,
    }


COMPONENTS = {
    "apiServer": component("api-server"),
    "trainer": component("trainer", ranks="8/8"),
    "inference": component("inference", replicas=4, ready=4),
    "environments": [component("gsm8k", replicas=6, ready=6, restarts=1)],
}
EVALUATED = {
    "environment": "gsm8k",
    "figure": "percent_correct",
    "step": 400,
    "value": 72.3,
    "bestStep": 350,
    "best": 78.7,
}
OUT_OF_MEMORY = "trainer: out of memory (limit 80Gi, spec.trainer.template); all 3 restarts are used."


async def write_all(cluster: ClusterAccess) -> None:
    gsm8k = {"environments": [{"name": "gsm8k", "config": CONFIG}], "model": {"name": MODEL}}
    large: Body = {**gsm8k, "trainer": {"gpus": 8}, "inference": {"replicas": 4}}
    training = {"steps": 1200, "batchSize": 64}
    await write_run(
        cluster,
        "gsm8k-8b",
        running(412, 1200, components=COMPONENTS, evaluations=[EVALUATED]),
        history(412),
        training=training,
        **large,
    )
    slow = {**training, "learningRate": 2e-6}
    status = running(405, 1200, components=COMPONENTS, best=0.62, speed=0.7)
    await write_run(cluster, "gsm8k-8b-low-rate", status, history(405, 2, 0.7, 0.62), training=slow, **large)
    stalled = running(88, 500, best=0.4, stall={"cause": "EnvironmentsNotProducing", "since": ago(minutes=38)})
    stalled["message"] = "Stalled for 38 minutes: the environments produce no groups (code-repair: 0 of 2 pods answer)."
    await write_run(cluster, "code-repair", stalled, history(88, 3, 0.6, 0.4), model={"name": "Qwen/Qwen3-4B"})
    done = {
        "phase": "Completed",
        "message": "Completed all 80 steps; the final checkpoint is written.",
        "completionTime": ago(hours=2),
    }
    await write_run(
        cluster,
        "letters",
        running(80, 80, best=0.97, speed=6, **done),
        history(80, 4, 6, 0.94),
        training={"steps": 80, "batchSize": 8},
        trainer={"gpus": 0},
    )
    failed = running(31, 500, best=0.3, phase="Failed", message=OUT_OF_MEMORY, completionTime=ago(hours=5), restarts=3)
    await write_run(
        cluster, "chain-sum-14b", failed, history(31, 5, 1, 0.3), model={"name": "Qwen/Qwen3-14B"}, trainer={"gpus": 4}
    )
    for name in ("math-sweep-1", "math-sweep-2"):
        queued = {
            "phase": "Pending",
            "queuedSince": ago(minutes=12),
            "message": "Queued: team allows 3 active runs in this namespace.",
        }
        await write_run(cluster, name, queued, None, **gsm8k)
    await write_run(
        cluster,
        "tool-use",
        running(240, 800, best=0.5, phase="Suspended", message="Suspended at step 240."),
        history(240, 6, 1, 0.5),
    )
    await write_catalogue(cluster)


async def write_run(cluster: ClusterAccess, name: str, status: Body, kept: History | None, **spec: Any) -> Body:
    await cluster.client.create(cluster.folder("trainingruns"), run_manifest(name, **spec), Body)
    run = await cluster.patch("trainingruns", name, {"status": status}, "/status")
    if kept is not None:
        await write_history(cluster, run, history_data(kept))
    return run


async def write_history(cluster: ClusterAccess, run: Body, data: dict[str, str]) -> None:
    await _write_map(cluster, history_name(metadata_of(run)), data)


async def write_logs(cluster: ClusterAccess, run: Body, *logs: KeptLog) -> None:
    await _write_map(cluster, logs_name(metadata_of(run)), log_data(logs))


async def _write_map(cluster: ClusterAccess, name: str, data: dict[str, str]) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    if any(each["metadata"]["name"] == name for each in await cluster.all("configmaps")):
        await cluster.patch("configmaps", name, {"data": data})
    else:
        await cluster.client.create(cluster.folder("configmaps"), body, Body)


def metadata_of(run: Body) -> Metadata:
    return msgspec.convert(run["metadata"], Metadata)


async def write_catalogue(cluster: ClusterAccess) -> None:
    choice = {"name": "answer_format", "type": "string", "default": "boxed", "enum": ["boxed", "last_number"]}
    fields = [
        {"name": "group_size", "type": "integer", "default": 8, "minimum": 2, "description": "Answers to a question."},
        {"name": "max_token_length", "type": "integer", "default": 2048, "description": "Longest answer, in tokens."},
        {**choice, "description": "Where the answer is looked for."},
    ]
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Described",
        "message": "",
        "lastTransitionTime": ago(days=2),
        "observedGeneration": 1,
    }
    described = {
        "description": "Grade-school word problems with a number as the answer.",
        "fields": fields,
        "conditions": [ready],
        "className": "GSM8K",
    }
    await _create(cluster, "environments", "Environment", "gsm8k", {"entry": "envs.gsm8k:GSM8K"}, described)
    broken = {"message": "ModuleNotFoundError: No module named 'tree_sitter'; add it to spec.requirements."}
    await _create(
        cluster,
        "environments",
        "Environment",
        "code-repair",
        {"entry": "envs.repair:CodeRepair", "description": "Failing tests that a patch must turn green."},
        broken,
    )
    sample = {"prompt": PROMPT, "answer": "6m = 96, so m = 16.", "score": 1.0}
    models = [
        {**_tested("qwen/qwen3-8b", "small", 27), "samples": [sample]},
        _tested("z-ai/glm-4.7-flash", "medium", 39),
        {"name": "minimax/minimax-m2.7", "size": "large", "phase": "Failed", "error": "HTTP 429: rate limit exceeded"},
    ]
    summary = {
        "requested": 3,
        "tested": 2,
        "succeeded": 2,
        "bestModel": "z-ai/glm-4.7-flash",
        "averageAccuracy": 0.6875,
        "environmentWorks": True,
    }
    tested = {
        "phase": "Completed",
        "message": "2 of 3 models made all their groups.",
        "models": models,
        "summary": summary,
    }
    await _create(
        cluster, "inferencetests", "InferenceTest", "gsm8k-before-training", {"environmentName": "gsm8k"}, tested
    )


def _tested(name: str, size: str, correct: int) -> Body:
    counted = {"stepsTested": 3, "completions": 48, "correct": correct, "accuracy": correct / 48}
    return {"name": name, "size": size, "phase": "Completed", **counted, "stepsWithCorrect": 3, "stepSuccessRate": 1.0}


async def _create(cluster: ClusterAccess, plural: str, kind: str, name: str, spec: Body, status: Body) -> None:
    body = {"apiVersion": "clotho.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    await cluster.client.create(cluster.folder(plural), body, Body)
    await cluster.patch(plural, name, {"status": status}, "/status")
