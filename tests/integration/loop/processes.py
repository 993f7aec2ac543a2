"""The real processes of a run on this machine's CPU: API server, trainer (one rank or several) and one environment."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from clotho_contract.config import Endpoints, EnvironmentConfig, RunConfig, RunIdentity, render
from clotho_contract.settings import Checkpoint, Lora, Loss, Model, Training
from clotho_dev.ports import free_port

ROOT = Path(__file__).parents[3]
SOURCES = [ROOT / "images" / part for part in ("contract", "api-server", "trainer", "environment")]
TOKEN = "a-token-for-tests"

Name = Literal["api-server", "trainer", "trainer-1", "trainer-2", "replica", "environment"]
RANKS: tuple[Name, ...] = ("trainer", "trainer-1", "trainer-2")


def tiny_model(folder: Path) -> Path:
    _python("clotho_trainer", "tiny-model", str(folder))
    return folder


@dataclass
class Ports:
    api_server: int = field(default_factory=free_port)
    inference: int = field(default_factory=free_port)
    trainer_status: int = field(default_factory=free_port)
    environment_status: int = field(default_factory=free_port)
    rendezvous: int = field(default_factory=free_port)
    policy: int = field(default_factory=free_port)
    replica: int = field(default_factory=free_port)
    replica_status: int = field(default_factory=free_port)
    further_ranks: tuple[tuple[int, int], ...] = ()  # the inference and status ports of each

    def of_rank(self, rank: int) -> tuple[int, int]:
        return self.further_ranks[rank - 1] if rank else (self.inference, self.trainer_status)

    @property
    def inference_urls(self) -> tuple[str, ...]:
        ranks = range(1 + len(self.further_ranks)) if self.further_ranks else ()
        return tuple(f"http://127.0.0.1:{self.of_rank(rank)[0]}" for rank in ranks)


def letters_config(model: Path, ports: Ports, steps: int = 60) -> RunConfig:
    """Small enough for a CPU, and far from the edge: what this learns it learns with every seed."""
    return RunConfig(
        run=RunIdentity(name="letters", namespace="default", id="letters-test"),
        endpoints=Endpoints(
            api_server=f"http://127.0.0.1:{ports.api_server}",
            inference=f"http://127.0.0.1:{ports.inference}",
            inference_ranks=ports.inference_urls,
            policy=f"http://127.0.0.1:{ports.policy}",
        ),
        model=Model(name=str(model), dtype="float32"),
        training=Training(
            steps=steps,
            batch_size=128,
            max_tokens=64,
            learning_rate=1e-2,
            gradient_checkpointing=False,
            lora=Lora(rank=8, alpha=16.0),
            loss=Loss(entropy_coefficient=0.05),
            checkpoint=Checkpoint(every_steps=5, keep=2),
            max_off_policy_batches=1,
        ),
        environments=(EnvironmentConfig(name="letters", entry="letters", config={"group_size": 16, "concurrency": 8}),),
    )


@dataclass
class Run:
    """Processes that can be killed and started again, each with a log and a volume of its own."""

    config: RunConfig
    ports: Ports
    folder: Path
    processes: dict[Name, subprocess.Popen[bytes]] = field(default_factory=dict)
    logs: dict[Name, IO[bytes]] = field(default_factory=dict)
    extra_environment: dict[str, str] = field(default_factory=dict)

    @property
    def config_path(self) -> Path:
        return self.folder / "run.yaml"

    def start(self, name: Name) -> None:
        self.config_path.write_text(render(self.config))
        log = self.logs.setdefault(name, (self.folder / f"{name}.log").open("ab"))
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", *self._command(name), "--config", str(self.config_path)],
            env=self.variables(name) | self._rank_variables(name),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _command(self, name: Name) -> list[str]:
        if name == "api-server":
            return ["clotho_api_server", "--port", str(self.ports.api_server), "--host", "127.0.0.1"]
        if name == "environment":
            return ["clotho_environment", "serve", "--port", str(self.ports.environment_status)]
        replica = (self.ports.replica, self.ports.replica_status)
        inference, status = map(str, replica if name == "replica" else self.ports.of_rank(RANKS.index(name)))
        ports = ("--inference-port", inference, "--status-port", status)
        if name == "replica":
            return ["clotho_trainer", "serve", "--host", "127.0.0.1", *ports]
        return ["clotho_trainer", "train", "--host", "127.0.0.1", *ports, "--policy-port", str(self.ports.policy)]

    def _rank_variables(self, name: Name) -> dict[str, str]:
        if name not in RANKS or not self.ports.further_ranks:
            return {}
        return {
            "PET_NNODES": str(1 + len(self.ports.further_ranks)),
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(RANKS.index(name)),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(self.ports.rendezvous),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def variables(self, name: str) -> dict[str, str]:
        volume = self.folder / name
        volume.mkdir(exist_ok=True)
        own = {
            "CLOTHO_TOKEN": TOKEN,
            "CLOTHO_DATA": str(volume),
            "CLOTHO_TERMINATION_MESSAGE": str(volume / "termination"),
        }
        return _environment() | own | self.extra_environment

    def kill(self, name: Name) -> None:
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def terminate(self, name: Name, timeout: float = 60) -> int:
        self.processes[name].terminate()
        return self.processes[name].wait(timeout)

    def wait(self, name: Name, timeout: float) -> int:
        return self.processes[name].wait(timeout)

    def termination(self, name: Name) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.folder / name / "termination").read_text())
        return body

    def progress(self) -> dict[str, Any]:
        return fetch(f"http://127.0.0.1:{self.ports.trainer_status}/progress") or {}

    def server_status(self) -> dict[str, Any]:
        return fetch(f"http://127.0.0.1:{self.ports.api_server}/status") or {}

    def log_lines(self, name: Name) -> list[dict[str, Any]]:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def steps(self) -> list[tuple[int, float]]:
        """Every optimiser step in the order it was taken, with its mean reward."""
        taken = [line for line in self.log_lines("trainer") if "reward/mean" in line]
        return [(int(line["message"].split()[1]), float(line["reward/mean"])) for line in taken]

    def tail(self, name: Name) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-25:])

    def close(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is None:
                self.kill(name)
        for log in self.logs.values():
            log.close()


@contextmanager
def running(config: RunConfig, ports: Ports, folder: Path) -> Iterator[Run]:
    run = Run(config, ports, folder)
    try:
        for name in ("api-server", "trainer", "environment"):
            run.start(name)  # type: ignore[arg-type]
        yield run
    finally:
        run.close()


@contextmanager
def serving(config: RunConfig, ports: Ports, folder: Path) -> Iterator[Run]:
    """API server and trainer, ready; and the tokenizer, brought by an environment's init step as in a pod."""
    run = Run(config, ports, folder, extra_environment={"CLOTHO_TOKENIZER": str(folder / "tokenizer")})
    try:
        run.start("api-server")
        run.start("trainer")
        wait = ["clotho_environment", "wait", "--timeout", "300", "--config", str(run.config_path)]
        done = subprocess.run(
            [sys.executable, "-m", *wait], env=run.variables("wait"), check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + run.tail("trainer")
        yield run
    finally:
        run.close()


def until(condition: Callable[[], bool], run: Run, what: str, timeout: float = 400) -> None:
    """Poll a real process; a process that ends meanwhile ends the wait with its log."""
    deadline = time.monotonic() + timeout
    while not condition():
        for name, process in run.processes.items():
            if process.poll() not in (None, 0):
                raise AssertionError(
                    f"{name} ended with {process.returncode} while waiting for {what}:\n{run.tail(name)}"
                )
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {name}\n{run.tail(name)}" for name in run.processes)
            raise AssertionError(f"no {what} within {timeout:.0f} s:\n{logs}")
        time.sleep(0.05)


def fetch(url: str) -> dict[str, Any] | None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310
            body: dict[str, Any] = json.load(response)
            return body
    except (urllib.error.URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
        return None


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", *arguments], env=_environment(), check=True, capture_output=True)


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(str(source) for source in SOURCES)
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    return {key: value for key, value in os.environ.items() if not key.startswith("CLOTHO_")} | quiet
