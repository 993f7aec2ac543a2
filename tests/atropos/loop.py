"""Runs environments of an Atropos checkout, unchanged, in `process` and `serve`, with the real API server and trainer.

A tiny model on a CPU is enough.

make atropos-loop ATROPOS=CHECKOUT                         those that need no hub, no key and no GPU
make atropos-loop ATROPOS=CHECKOUT FILES=gsm8k_server.py   others, below environments/
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from clotho_contract.config import EnvironmentConfig, RunConfig
from clotho_dev.atropos_survey import UNEXPLAINED, reason_for
from integration.loop.processes import Ports, Run, letters_config, serving, tiny_model, until
from rig.trajectory_servers import ToolUnavailableError, atropos_python

STEPS, GROUPS = 2, 2
GROUP_SIZE = 4
CONTEXT = 8192  # tokens; the prompts are long, and a token of the tiny model is one character
SPECIAL_TOKENS = 5  # of the tiny model; they come first
LIMIT_SECONDS = 900
PACKAGES = ("gymnasium==1.1.1", "matplotlib")
COMMON: dict[str, Any] = {
    "group_size": GROUP_SIZE,
    "ensure_scores_are_not_same": False,  # a random policy often fails in every attempt
    "max_token_length": CONTEXT,
    "steps_per_eval": 10**6,
}
FILES: dict[str, dict[str, Any]] = {
    "game_environments/gymnasium/gym_taxi.py": {"max_token_length": 2700},
    "game_environments/gymnasium/blackjack/blackjack_env_no_thinking.py": {},
    "game_environments/gymnasium/blackjack/blackjack_env_thinking.py": {"max_token_length": 256},
    "community/metric_card_generator/metric_card_generator.py": {"max_token_length": 256},
    "community/selcube/rubiks_cube_environment.py": {"max_token_length": 256},
    "community/word_hunt/word_hunt_env.py": {},
}


@dataclass(frozen=True)
class Result:
    """How far a file came; `problem` is what ended it early."""

    file: str
    groups: int = 0
    steps: int = 0
    problem: str = ""

    @property
    def outcome(self) -> str:
        if self.groups >= GROUPS and self.steps >= STEPS:
            return "runs"
        return reason_for(self.problem)


def report(results: Sequence[Result]) -> str:
    lines = [f"{'FILE':<70}{'GROUPS':>7}{'STEPS':>7}  OUTCOME"]
    for result in results:
        lines.append(f"{result.file:<70}{result.groups:>7}{result.steps:>7}  {result.outcome}")
        if result.outcome == UNEXPLAINED:
            lines.append(result.problem)
    running = sum(result.outcome == "runs" for result in results)
    return "\n".join([*lines, "", f"{running} of {len(results)} run unchanged"])


def has_unexplained(results: Sequence[Result]) -> bool:
    """A failure without a known cause outside this repository counts as ours."""
    return any(result.outcome == UNEXPLAINED for result in results)


def talkative_model(folder: Path) -> Path:
    """The tiny model with a long context, which never samples a special token: answers are never empty or short.

    Many environments drop short answers, and some fail on empty ones.
    """
    from safetensors.torch import load_file, save_file  # here: the unit tests of this file need no torch

    model = tiny_model(folder)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][:, 0] = 10.0  # so the first feature is large and positive everywhere
    weights["lm_head.weight"][:, 0] = 0.0
    weights["lm_head.weight"][:SPECIAL_TOKENS, 0] = -10.0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


def config_of(path: Path, config: dict[str, Any], model: Path, ports: Ports) -> RunConfig:
    run = letters_config(model, ports, steps=STEPS)
    training = msgspec.structs.replace(run.training, batch_size=2 * GROUP_SIZE, max_tokens=CONTEXT, learning_rate=1e-6)
    place = EnvironmentConfig(name=path.stem.replace("_", "-"), entry=f"atropos:{path}", config=COMMON | config)
    return msgspec.structs.replace(run, training=training, environments=(place,))


def try_out(file: str, checkout: Path, model: Path, python: Path, folder: Path) -> Result:
    ports = Ports()
    config = config_of(checkout / "environments" / file, FILES.get(file, {}), model, ports)
    groups = 0
    try:
        with serving(config, ports, folder) as run:
            run.extra_environment["CLOTHO_ATROPOS_PYTHON"] = str(python)
            groups = process(run)
            return Result(file, groups, serve(run))
    except AssertionError as error:
        return Result(file, groups, problem=str(error))


def process(run: Run) -> int:
    """How many groups it wrote: first, while the trainer waits for its first batch and serves the policy."""
    output = run.folder / "groups.jsonl"
    options = ["--groups", str(GROUPS), "--tokens", "--output", str(output), "--deadline", str(LIMIT_SECONDS)]
    command = [sys.executable, "-m", "clotho_environment", "process", "--config", str(run.config_path), *options]
    done = subprocess.run(command, env=run.variables("process"), check=False, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return sum(len(line["scores"]) == len(line["tokens"]) == GROUP_SIZE for line in lines)


def serve(run: Run) -> int:
    """How many steps the trainer took on its groups before both ended by themselves."""
    run.start("environment")
    processes = run.processes["trainer"], run.processes["environment"]
    until(lambda: all(each.poll() == 0 for each in processes), run, "last step", timeout=LIMIT_SECONDS)
    return len(run.steps())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/NousResearch/atropos")
    parser.add_argument("files", nargs="*", default=list(FILES), metavar="FILE", help="below environments/")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    if missing := [file for file in options.files if not (checkout / "environments" / file).is_file()]:
        parser.error(f"{checkout}/environments has no {', '.join(missing)}")
    try:
        python = atropos_python(*PACKAGES)
    except ToolUnavailableError as error:
        parser.error(f"atroposlib cannot be installed: {error}")
    results = []
    with tempfile.TemporaryDirectory(prefix="atropos-loop-") as name, contextlib.chdir(name):  # some write files there
        model = talkative_model(Path(name, "tiny"))
        for number, file in enumerate(options.files):
            folder = Path(name, str(number))
            folder.mkdir()
            results.append(try_out(file, checkout, model, python, folder))
            print(f"{file}: {results[-1].outcome}", file=sys.stderr, flush=True)
    print(report(results))
    return 1 if has_unexplained(results) else 0


if __name__ == "__main__":
    sys.exit(main())
