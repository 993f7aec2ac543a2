"""What ranks cost and that they learn: a step alone and in a team of one, and two ranks on one device with gloo.

`team_of_one` takes the same steps as `alone`, in turn with them, through a process group of world size 1: NCCL on a
GPU, gloo on a CPU. `two_ranks` are two processes on one device that learn the letters task with the tiny model;
gloo has their gradients, because NCCL refuses two ranks on one GPU. The last line is JSON.

    python tests/bench/ranks.py --shape tiny          a dry run on any machine
    python tests/bench/ranks.py                       on a GPU
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "images" / part) for part in ("contract", "trainer")]
sys.path.append(str(Path(__file__).parent))

import learning  # noqa: E402
import trainer_work  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=8, group=8, new_tokens=256, micro=0)
    parser.set_defaults(shape="0.6b")
    parser.add_argument("--steps", type=int, default=12, help="measured with each; two more warm up")
    parser.add_argument("--learning-steps", type=int, default=40)
    parser.add_argument("--port", type=int, default=29511, help="where the two ranks meet")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(str(options.packages))
    if options.side:
        asyncio.run(_rank(int(options.side), options))
        return
    result = {"bench": "ranks", "shape": options.shape, **_cost(options), "two_ranks": _two_ranks(options)}
    print(json.dumps(result))


def _cost(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from clotho_contract.config import RunConfig, RunIdentity
    from clotho_contract.settings import Lora, Model, Training
    from clotho_trainer.model.tiny import make_tokenizer
    from clotho_trainer.training.batch import prepare
    from clotho_trainer.training.local import team
    from clotho_trainer.training.local.backend import LocalBackend

    tokenizer = make_tokenizer()
    longest = options.prompt_tokens + options.new_tokens
    config = RunConfig(
        run=RunIdentity(name="ranks", namespace="bench", id="ranks"),
        model=Model(name="bench"),
        training=Training(
            steps=99,
            batch_size=options.prompts * options.group,
            max_tokens=longest,
            lora=Lora(rank=options.rank, alpha=16.0),
            micro_batch_size=options.micro,
        ),
    )
    model = trainer_work.make_model(options.shape, tokenizer)
    backend = LocalBackend(config, model, tokenizer, Path(tempfile.mkdtemp()))
    batch = prepare(trainer_work.scored_groups(options, options.prompts), backend.rules, 0)
    one = team.connect(0, 1, team.open_store(), timeout_seconds=60)
    teams = {"alone": team.Alone(), "team_of_one": one}
    seconds: dict[str, list[float]] = {name: [] for name in teams}
    for turn in range(options.steps + 2):
        for name in sorted(teams, reverse=turn % 2 == 1):
            backend._team = teams[name]
            began = time.perf_counter()
            backend.step(batch, 1e-5)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - began)
    torch.distributed.destroy_process_group()
    figures = {name: round(median(taken), 5) for name, taken in seconds.items()}
    ratio = median(mine / theirs for mine, theirs in zip(seconds["team_of_one"], seconds["alone"], strict=True))
    return {
        "collectives": "nccl" if torch.cuda.is_available() else "gloo",
        "seconds_per_step": figures,
        "cost": round(ratio - 1, 4),
    }


def _two_ranks(options: argparse.Namespace) -> dict[str, Any]:
    """Rank 1 has nothing to print."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side"]
    follower = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
    try:
        done = subprocess.run([*command, "0"], stdout=subprocess.PIPE, text=True, check=True, timeout=150)
    finally:
        follower.kill()
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


async def _rank(rank: int, options: argparse.Namespace) -> None:
    from clotho_trainer.model import tiny
    from clotho_trainer.training.local import backend as local_backend
    from clotho_trainer.training.local import team

    options.steps, options.dtype = options.learning_steps, "float32"
    folder = Path(tempfile.mkdtemp())
    tiny.write(folder / "model", 0)
    config = learning._config(folder / "model", "auto", "in_turn", rank, options)
    backend = local_backend.load_backend(config, folder)
    store = team.open_store(options.port) if rank == 0 else team.reach_store("127.0.0.1", options.port)
    backend.join(team.connect(rank, 2, store, timeout_seconds=120, collectives="gloo"))
    if rank:
        for _ in range(options.steps):
            backend.follow()
        return
    await _lead(backend, options)


async def _lead(backend: Any, options: argparse.Namespace) -> None:
    from clotho_trainer.training.batch import prepare

    await backend.engine.start()
    rewards, began = [], time.monotonic()
    for _ in range(options.steps):
        groups = await asyncio.gather(*(learning._group(backend, letter) for letter in learning.LETTERS))
        batch = prepare(groups, backend.rules, backend.version)
        await asyncio.to_thread(backend.step, batch, 1e-2)
        rewards.append(batch.figures["reward/mean"])
    await backend.engine.stop()
    figures = {"first5": round(mean(rewards[:5]), 3), "last5": round(mean(rewards[-5:]), 3)}
    print(json.dumps({**figures, "device": str(backend.live.device), "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
