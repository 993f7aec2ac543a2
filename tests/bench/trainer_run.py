"""The three processes of a run on this machine, and what the trainer's log has to say about its steps."""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.request import urlopen

TOKEN = "a-token-for-the-bench"
_WARM_UP = 3  # steps: the first compiles, and the next begin with half-made batches
_SHOWN = ("engine serves", "activations:", "engine is ready", "transformers engine", "in 8 bits")

_PHASES = {
    f"seconds_{phase}"
    for phase in ("copying", "checksum", "receiving", "swapping", "writing", "draining", "reloading", "publishing")
}


class Ports(NamedTuple):
    api_server: int = 1
    inference: int = 2
    status: int = 3
    environment: int = 4
    policy: int = 5
    replica: int = 6
    replica_status: int = 7


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the processes do with the work."""
    parser.add_argument("--steps", type=int, default=2, help="measured; more warm up")
    parser.add_argument("--ragged", action="store_true", help="our environment asks for answers of many lengths")
    parser.add_argument(
        "--batches-in-flight",
        type=float,
        default=1.0,
        help="groups that our environment has open; one batch is an environment's default",
    )
    parser.add_argument("--engine", default="auto", help="inference.engine of our side")
    parser.set_defaults(together=1)  # batches that are generated together


def config(options: argparse.Namespace, ports: Ports | None = None) -> Any:
    from clotho_contract.config import Endpoints, EnvironmentConfig, RunConfig, RunIdentity
    from clotho_contract.settings import Checkpoint, Inference, Lora, Model, Training

    ports = ports or Ports()
    rows = options.prompts * options.group
    environment = {
        "prompts": options.prompts,
        "prompt_tokens": options.prompt_tokens,
        "max_tokens": options.new_tokens,
        "group_size": options.group,
        "concurrency": int(options.prompts * options.batches_in_flight),
        "ragged": options.ragged,
    }
    return RunConfig(
        run=RunIdentity(name="bench", namespace="bench", id="bench"),
        endpoints=Endpoints(
            api_server=f"http://127.0.0.1:{ports.api_server}", inference=f"http://127.0.0.1:{ports.inference}"
        ),
        model=Model(name=options.shape, quantization="fp8" if options.side in ("fp8", "fp8-cache") else "none"),
        training=Training(
            steps=options.steps + _WARM_UP,
            batch_size=rows,
            max_tokens=options.prompt_tokens + options.new_tokens,
            learning_rate=1e-6,
            lora=Lora(rank=options.rank, alpha=2.0 * max(options.rank, 1)),
            checkpoint=Checkpoint(every_steps=10_000),
            max_off_policy_batches=1,
        ),
        inference=Inference(
            max_batch_size=rows * options.together,
            engine=options.engine,
            kv_cache_dtype="fp8" if options.side == "fp8-cache" else "auto",
        ),
        environments=(
            EnvironmentConfig(
                name="bench", entry=str(Path(__file__).with_name("fixed_lengths.py")), config=environment
            ),
        ),
    )


@dataclass(frozen=True)
class Replica:
    """An inference replica beside the trainer, of which all samples come."""

    command: list[str]  # of this interpreter, with the arguments of the trainer's own
    make_config: Callable[[Ports], Any]
    variables: dict[str, str]
    observe: Callable[[Ports], None]  # called now and then while the trainer runs


def measured(
    make_config: Callable[[Ports], Any],
    trainer: list[str],
    replica: Replica | None = None,
    variables: dict[str, str] | None = None,
    limit_seconds: float = 3600.0,
) -> dict[str, Any]:
    """`trainer` is a command of this interpreter that takes the arguments of the trainer's own."""
    from clotho_contract.config import render

    ports = Ports(*(free_port() for _ in Ports._fields))
    commands = _commands(trainer, replica, ports)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in commands:
            (folder / part).mkdir()
            made = replica.make_config if replica and part == "replica" else make_config
            (folder / part / "run.yaml").write_text(render(made(ports)))
        own = {"trainer": variables or {}, "replica": replica.variables if replica else {}}
        with running(commands, folder, own) as processes:
            observe = partial(replica.observe, ports) if replica else _nothing
            problem = _wait_for_trainer(processes, limit_seconds, observe)
            sampled = _sampled_tokens(ports.replica_status) if replica and not problem else None
        lines = lines_of(folder / "trainer.log")
        followed = sum("serving the policy of step" in line for line in lines_of(folder / "replica.log"))
        phases = {part: _phases(lines_of(folder / f"{part}.log")) for part in ("trainer", "replica")}
        if problem or os.environ.get("BENCH_LOGS"):
            show_logs(folder, commands)
    if problem:
        raise SystemExit(problem)
    figures = _from_log([json.loads(line) for line in lines if line.startswith("{")]) | {"policy_seconds": phases}
    return figures | ({"replica": {"versions": followed, "sampled_tokens": sampled}} if replica else {})


def _nothing() -> None: ...


def _commands(trainer: list[str], replica: Replica | None, ports: Ports) -> dict[str, list[str]]:
    serve = ["--inference-port", str(ports.inference), "--status-port", str(ports.status)]
    serve += ["--policy-port", str(ports.policy)]
    commands = {
        "api-server": ["-m", "clotho_api_server", "--host", "127.0.0.1", "--port", str(ports.api_server)],
        "trainer": [*trainer, "--", "train", "--host", "127.0.0.1", *serve],
        "environment": ["-m", "clotho_environment", "serve", "--port", str(ports.environment)],
    }
    if trainer[0] == "-m":
        commands["trainer"].remove("--")
    if replica:
        own = ["--inference-port", str(ports.replica), "--status-port", str(ports.replica_status)]
        commands["replica"] = [*replica.command, "--", "serve", "--host", "127.0.0.1", *own]
    return commands


def show_logs(folder: Path, parts: Iterable[str]) -> None:
    for part in parts:
        last = [line[:400] for line in lines_of(folder / f"{part}.log")[-60:]]
        print(f"--- {part}", *last, sep="\n", file=sys.stderr, flush=True)


def lines_of(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.exists() else []


@contextmanager
def running(
    commands: dict[str, list[str]], folder: Path, own: dict[str, dict[str, str]]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for part, command in commands.items():
            variables = {
                "CLOTHO_TOKEN": TOKEN,
                "CLOTHO_INFERENCE_TOKEN": TOKEN,
                "CLOTHO_DATA": str(folder / part),
                "CLOTHO_CONFIG": str(folder / part / "run.yaml"),
                "CLOTHO_TERMINATION_MESSAGE": str(folder / part / "termination"),
                "PYTHONPATH": os.pathsep.join(sys.path),
                **own.get(part, {}),
            }
            with (folder / f"{part}.log").open("wb") as log:
                processes[part] = subprocess.Popen(
                    [sys.executable, *command], env=os.environ | variables, stdout=log, stderr=log
                )
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait()


def _wait_for_trainer(
    processes: dict[str, subprocess.Popen[bytes]], limit_seconds: float, observe: Callable[[], None]
) -> str | None:
    """What went wrong, or None."""
    deadline = time.monotonic() + limit_seconds
    while (code := processes["trainer"].poll()) is None:
        if time.monotonic() > deadline:
            return f"the trainer was not done within {limit_seconds:.0f} s"
        for part, process in processes.items():
            if process.poll():  # the environment may end in order while the trainer saves
                return f"{part} ended with exit code {process.returncode} before the trainer"
        observe()
        time.sleep(0.1)
    return f"the trainer ended with exit code {code}" if code else None


def _sampled_tokens(status_port: int) -> float:
    with urlopen(f"http://127.0.0.1:{status_port}/metrics") as response:
        for line in response.read().decode().splitlines():
            if line.startswith("clotho_inference_sampled_tokens_total"):
                return float(line.split()[-1])
    raise SystemExit("the replica has no metric of the tokens that it sampled")


def _phases(lines: list[str]) -> dict[str, float]:
    """How long a version of the policy took on its way, by what happened to it; medians without the first version."""
    seconds: dict[str, list[float]] = {}
    for entry in (json.loads(line) for line in lines if line.startswith('{"time": ')):
        for name in entry.keys() & _PHASES:
            seconds.setdefault(name.removeprefix("seconds_"), []).append(entry[name])
    return {name: round(median(values[1:]), 3) for name, values in sorted(seconds.items()) if len(values) > 1}


def _from_log(lines: list[dict[str, Any]]) -> dict[str, Any]:
    steps = [line for line in lines if "seconds_per_step" in line]
    measured = steps[_WARM_UP:]
    total, training = (mean([step[key] for step in measured]) for key in ("seconds_per_step", "seconds_training"))
    tokens = mean([step["tokens_per_second"] * step["seconds_per_step"] for step in measured])
    peaks = [step["gpu/memory_peak_bytes"] / 2**30 for step in steps if "gpu/memory_peak_bytes" in step]
    return {
        "seconds_per_step": total,
        "train_seconds": training,
        "generate_seconds": round(total - training, 3),
        "first_step_seconds": steps[0]["seconds_training"],
        "tokens_per_second": round(tokens / total, 1),
        "generated_tokens_per_second": round(tokens / (total - training), 1),
        "peak_gib": round(max(peaks), 1) if peaks else None,
        "logprob_difference": steps[-1].get("sampling/logprob_difference"),
        "staleness": steps[-1].get("staleness/mean"),
        "steps": [_step(step) for step in steps],
        "log": [line["message"] for line in lines if any(part in line.get("message", "") for part in _SHOWN)],
    }


def _step(line: dict[str, Any]) -> dict[str, Any]:
    names = {"logprob_difference": "sampling/logprob_difference", "staleness": "staleness/mean"}
    seconds = {name: line.get(name) for name in ("seconds_per_step", "seconds_training")}
    return seconds | {name: line.get(figure) for name, figure in names.items()}


def service(backend: Any) -> Any:
    """What an inference server serves."""
    from clotho_trainer.inference.service import Service

    return Service(
        engine=backend.engine,
        tokenizer=backend.tokenizer,
        model="bench",
        context=backend.context,
        vocabulary=backend.vocabulary,
        temperature=1.0,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 4)
