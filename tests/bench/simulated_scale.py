"""The simulation of `make simulate-scale` beside real steps on this machine, one rank on the CPU.

Two batch sizes are measured and become its inputs; a size between them is measured as well and compared with what the
simulation makes of it. The last line is JSON; `error` is simulated over measured seconds, less 1.

    python tests/bench/simulated_scale.py
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "images" / "contract")]

from clotho_dev.simulation.inputs import Decode, Inputs, Training, load  # noqa: E402
from clotho_dev.simulation.model import Outcome, Shape, Simulation  # noqa: E402

GROUP, PROMPT, ANSWER = 8, 16, 64
SMALL, BETWEEN, LARGE = 2, 4, 8  # groups of a batch


def main() -> None:
    small, between, large = (_measure(groups) for groups in (SMALL, BETWEEN, LARGE))
    found = _simulate(_inputs(small, large))
    error = found.seconds_per_step / between["seconds_per_step"] - 1
    print(
        json.dumps(
            {
                "bench": "simulated_scale",
                "measured": between,
                "simulated_seconds_per_step": round(found.seconds_per_step, 4),
                "error": round(error, 3),
            }
        )
    )


def _measure(groups: int) -> dict[str, Any]:
    """The three processes of a run, as in trainer.py."""
    work = {"--prompts": groups, "--group": GROUP, "--prompt-tokens": PROMPT, "--new-tokens": ANSWER, "--steps": 8}
    numbers = [str(part) for pair in work.items() for part in pair]
    command = [sys.executable, str(ROOT / "tests/bench/trainer.py"), "--shape", "tiny", "--side", "ours", *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps({"groups": groups, **result}), file=sys.stderr, flush=True)
    return result


def _inputs(small: dict[str, Any], large: dict[str, Any]) -> Inputs:
    """HTTP, the API server and the environment are in the measured rates already."""
    tokens = [count * (PROMPT + GROUP * ANSWER) for count in (SMALL, LARGE)]
    slope = max(1e-9, (large["train_seconds"] - small["train_seconds"]) / (tokens[1] - tokens[0]))
    source = "measured on this machine"
    recorded = load()
    nothing = {"seconds_per_request": 0.0, "seconds_per_sequence": 0.0}
    return msgspec.structs.replace(
        recorded,
        decode=Decode(
            rows=(SMALL * GROUP, LARGE * GROUP),
            tokens_per_second=(small["generated_tokens_per_second"], large["generated_tokens_per_second"]),
            source=source,
        ),
        prefill=msgspec.structs.replace(recorded.prefill, tokens_per_second=1e9),
        training=Training(
            tokens_per_second=1 / slope,
            seconds_per_step=max(0.0, small["train_seconds"] - slope * tokens[0]),
            source=source,
        ),
        http=msgspec.structs.replace(recorded.http, **nothing),
        api_server=msgspec.structs.replace(recorded.api_server, seconds_per_token=0.0),
        lease=msgspec.structs.replace(recorded.lease, seconds_per_token=0.0),
        environment=msgspec.structs.replace(recorded.environment, seconds_per_group=0.0),
        work=msgspec.structs.replace(
            recorded.work,
            group_size=GROUP,
            groups_per_gpu=BETWEEN,
            prompt_tokens=PROMPT,
            longest_answer=ANSWER,
            mean_answer=None,
        ),
    )


def _simulate(inputs: Inputs) -> Outcome:
    return Simulation(inputs, Shape(ranks=1)).run()


if __name__ == "__main__":
    main()
