"""A run with several ranks, each on a slow machine of its own: what its steps take under one load after the other."""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slow_machine
import trainer_run
import trainer_work
from msgspec import structs
from slow_machine import MOST_STOLEN, stolen_seconds

_WARM_UP = 3  # steps under a load that do not count
_MOST_DISTURBED = 5  # times the steps that are wanted
_LIMIT_SECONDS = 300.0  # for the next step, and for all ranks to start


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the environment asks for."""

    name: str
    is_ragged: bool
    batches_in_flight: int
    steps: int  # measured


@dataclass(frozen=True)
class Measured:
    load: Load
    steps: list[dict[str, Any]]  # as the trainer logs them
    disturbed: int  # further steps, during which the host took too much


@dataclass(frozen=True)
class Gang:
    options: argparse.Namespace  # `prompts`: of one rank
    ranks: int
    share: float  # of a core, for each rank
    max_rows: int

    def measured(self, loads: Sequence[Load]) -> list[Measured]:
        """The steps under each load, from the trainer's log. The gang stays; each load has its own environment."""
        ports = [trainer_run.Ports(*(trainer_run.free_port() for _ in trainer_run.Ports._fields)) for _ in self._names]
        found = []
        with (
            tempfile.TemporaryDirectory() as folder,
            slow_machine.slow_machines(self.ranks + 1) as (others, *machines),
            self._started(Path(folder), ports, loads[0]) as processes,
        ):
            others.add(processes["api-server"].pid)
            for name, machine in zip(self._names, machines, strict=True):
                machine.add(processes[name].pid)
            for load in loads:
                with self._environment(Path(folder), ports, load) as environment:
                    others.add(environment[load.name].pid)
                    everything = processes | environment
                    if load is loads[0]:
                        self._until(Path(folder), everything, steps=1)  # at full speed: imports and the first pass
                        for machine in machines:
                            machine.slow_down(self.share)
                    found.append(self._measure(Path(folder), everything, load))
            for machine in machines:
                machine.speed_up()
        return found

    def _measure(self, folder: Path, processes: dict[str, subprocess.Popen[bytes]], load: Load) -> Measured:
        begun = len(self._steps(folder)) + _WARM_UP
        kept: list[dict[str, Any]] = []
        self._until(folder, processes, steps=begun)
        taken, at, stolen = begun, time.monotonic(), stolen_seconds()
        while len(kept) < load.steps:
            if taken - begun > _MOST_DISTURBED * load.steps:
                raise SystemExit(f"the host of this machine takes more than {MOST_STOLEN} cores most of the time")
            self._until(folder, processes, steps=taken + 1)
            steps, now, before = self._steps(folder), time.monotonic(), stolen
            stolen = stolen_seconds()
            if stolen - before <= MOST_STOLEN * (now - at):
                kept += steps[taken:]
            taken, at = len(steps), now
        return Measured(load, kept, taken - begun - len(kept))

    @property
    def _names(self) -> list[str]:
        return [f"trainer-{rank}" for rank in range(self.ranks)]

    def _config(self, ports: Sequence[trainer_run.Ports], load: Load) -> Any:
        options = argparse.Namespace(**vars(self.options))
        options.prompts, options.steps = self.options.prompts * self.ranks, 100_000
        options.ragged, options.batches_in_flight = load.is_ragged, load.batches_in_flight
        config = trainer_run.config(options, ports[0])
        urls = tuple(f"http://127.0.0.1:{each.inference}" for each in ports) if self.ranks > 1 else ()
        return structs.replace(
            config,
            endpoints=structs.replace(config.endpoints, inference_ranks=urls),
            training=structs.replace(config.training, max_off_policy_batches=3),
            inference=structs.replace(config.inference, max_batch_size=self.max_rows),
        )

    @contextmanager
    def _started(
        self, folder: Path, ports: Sequence[trainer_run.Ports], load: Load
    ) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
        trainer = str(Path(__file__).with_name("trainer.py"))
        serve = ["-m", "clotho_api_server", "--host", "127.0.0.1", "--port", str(ports[0].api_server)]
        commands = {"api-server": serve}
        own: dict[str, dict[str, str]] = {}
        meeting = trainer_run.free_port()
        for rank, (name, each) in enumerate(zip(self._names, ports, strict=True)):
            numbers = {"inference": each.inference, "status": each.status, "policy": each.policy}
            arguments = [f"--{kind}-port={port}" for kind, port in numbers.items()]
            work = [*trainer_work.arguments(self.options), "--side", "trainer"]
            commands[name] = [trainer, *work, "--", "train", "--host", "127.0.0.1", *arguments]
            own[name] = self._rank_variables(rank, meeting)
        self._write(folder, commands, ports, load)
        with trainer_run.running(commands, folder, own) as processes:
            try:
                yield processes
            finally:
                for name in self._names:  # nothing of them is needed any more
                    processes[name].kill()

    def _rank_variables(self, rank: int, port: int) -> dict[str, str]:
        one_core = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if self.ranks == 1:
            return one_core
        return one_core | {
            "PET_NNODES": str(self.ranks),
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    @contextmanager
    def _environment(
        self, folder: Path, ports: Sequence[trainer_run.Ports], load: Load
    ) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
        commands = {load.name: ["-m", "clotho_environment", "serve", "--port", str(trainer_run.free_port())]}
        self._write(folder, commands, ports, load)
        with trainer_run.running(commands, folder, {}) as processes:
            yield processes

    def _write(self, folder: Path, parts: dict[str, list[str]], ports: Sequence[trainer_run.Ports], load: Load) -> None:
        from clotho_contract.config import render

        for part in parts:
            (folder / part).mkdir()
            (folder / part / "run.yaml").write_text(render(self._config(ports, load)))

    def _steps(self, folder: Path) -> list[dict[str, Any]]:
        lines = trainer_run.lines_of(folder / f"{self._names[0]}.log")
        return [json.loads(line) for line in lines if line.startswith("{") and '"seconds_per_step"' in line]

    def _until(self, folder: Path, processes: dict[str, subprocess.Popen[bytes]], *, steps: int) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while len(self._steps(folder)) < steps:
            ended = [
                f"{name} ended with {code}" for name, each in processes.items() if (code := each.poll()) is not None
            ]
            if ended or time.monotonic() > deadline:
                trainer_run.show_logs(folder, processes)
                raise SystemExit(", ".join(ended) or f"no {steps} steps within {_LIMIT_SECONDS:.0f} s")
            time.sleep(0.2)
