"""How long all weights of a model take from a trainer's GPU, or CPU, to where a replica's vLLM reads them, by phase:
the real policy port and follower in two processes over loopback. vLLM's own reload is in real_vllm.py.

The last line is JSON.

    python tests/bench/policy_updates.py --shape 0.6b --versions 5
"""

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "images" / part) for part in ("contract", "trainer")] + [str(Path(__file__).parent)]

import trainer_work  # noqa: E402
from trainer_run import TOKEN, free_port, mean  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=trainer_work.SHAPES, default="0.6b")
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--publish", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    asyncio.run(_publish(options) if options.publish else _follow(options))


async def _publish(options: argparse.Namespace) -> None:
    """The trainer: each line of its input is a step, which it answers with the time."""
    from clotho_contract import logs
    from clotho_trainer.model.live import LiveWeights
    from clotho_trainer.model.tiny import make_tokenizer
    from clotho_trainer.model.trained import write_trained
    from clotho_trainer.process.app import listening
    from clotho_trainer.process.policy_server import PolicyServer

    logs.set_up("INFO")
    tokenizer = make_tokenizer()
    live = LiveWeights(trainer_work.make_model(options.shape, tokenizer), tokenizer)

    class Backend:
        version = property(lambda _: live.version)
        write_trained = staticmethod(lambda spare: write_trained(live, spare))

    server, backend = PolicyServer(TOKEN), Backend()
    async with listening(server.application(), "127.0.0.1", options.publish):
        while await asyncio.to_thread(sys.stdin.readline):
            live.version += 1
            print(json.dumps({"stepped": time.monotonic()}), flush=True)
            server.publish(backend)  # type: ignore[arg-type]


class _NoVllm:
    async def post(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        return b""


class _Figures(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        for name, value in vars(record).items():
            if name.startswith("seconds_"):
                self.seconds[name].append(value)


async def _follow(options: argparse.Namespace) -> None:
    from clotho_trainer.inference.following import PolicyFollower
    from clotho_trainer.inference.vllm.policies import Weights
    from clotho_trainer.model.live import LiveWeights
    from clotho_trainer.model.serving import load_names

    figures = _Figures()
    logger = logging.getLogger("clotho_trainer")
    logger.addHandler(figures)
    logger.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        trainer_work.write_config(options.shape, Path(name))
        model, names = load_names(_settings(name))
        live = LiveWeights(model, None)
        live.whole = {}
        weights, port = Weights(live, _NoVllm(), Path(name), "model"), free_port()  # type: ignore[arg-type]
        follower = PolicyFollower(f"http://127.0.0.1:{port}", TOKEN, live, names, max_staleness=0)
        command = [sys.executable, __file__, "--shape", options.shape, "--publish", str(port)]
        with _process(command) as trainer:
            following = asyncio.create_task(follower.follow(weights))  # type: ignore[arg-type]
            for version in range(1, options.versions + 1):
                figures.seconds["seconds_in_all"].append(await _step(trainer, follower, version))
            following.cancel()
            lines = [json.loads(line) for line in trainer.communicate()[0].splitlines()]
        for line in lines:
            for key in ("seconds_copying", "seconds_checksum"):
                if key in line:
                    figures.seconds[key].append(line[key])
    phases = {key: {"first": round(values[0], 3), "later": mean(values[1:])} for key, values in figures.seconds.items()}
    print(json.dumps({"bench": "policy_updates", "shape": options.shape, **phases}))


def _process(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _step(trainer: "subprocess.Popen[str]", follower: Any, version: int) -> float:
    """Until the replica would serve it. The lines of the trainer's log come with its answers."""
    assert trainer.stdin
    began = time.monotonic()
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    while follower.position.version != version:  # noqa: ASYNC110 - the follower has no event for it
        await asyncio.sleep(0.005)
    return time.monotonic() - began


def _settings(folder: str) -> Any:
    from clotho_contract.settings import Model

    return Model(name=folder)


if __name__ == "__main__":
    main()
