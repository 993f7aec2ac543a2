"""The command line of the trainer image. Nothing heavy is imported until it is needed."""

import argparse
import os
import sys
from pathlib import Path

_HELP = """\
A trainer waits for scored groups from the API server, takes optimiser steps on them, and serves the policy:

  port 8001   inference: /generate (SGLang), /v1/completions, /v1/chat/completions, /v1/models, /tokenizer.tar
  port 8002   /progress, /metrics, /healthz, /readyz

  port 8005   /policy, for inference replicas, where CLOTHO_INFERENCE_TOKEN is set

`serve` is an inference replica: the same routes on ports 8001 and 8002, with the policy of the trainer that
`endpoints.policy` of the run's file names. CLOTHO_TOKEN is its token for that trainer.

With several ranks, set by torchrun's variables PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and
PET_MASTER_PORT, each trains its share of every batch and serves the policy; further ranks of a pod on ports 8101, ...

A run with `inline` instead of environments has no API server: prompts come from a dataset, rewards and tools from your
own Python, and CLOTHO_TOKEN may be missing. From Python, without any file: `from clotho_trainer import train`.

Everything about the run comes from one file, by default /etc/clotho/run.yaml or $CLOTHO_CONFIG; checkpoints go to
$CLOTHO_DATA/checkpoints, and the newest whole one is resumed. Secrets come from the environment: CLOTHO_TOKEN
(required), HF_TOKEN, WANDB_API_KEY, TINKER_API_KEY. SIGTERM finishes the step, saves and ends.

Afterwards `export` merges the adapter and writes safetensors or GGUF, with a Modelfile for Ollama. In a pod it reads
the run's file; elsewhere name the checkpoint:
  python -m clotho_trainer export --checkpoint /tmp/run/checkpoints/step-00000100 --quantization q8_0 --output /tmp/out

try it on a laptop:
  python -m clotho_trainer tiny-model /tmp/tiny      then set model.name: /tmp/tiny in the run's file
  CLOTHO_TOKEN=secret CLOTHO_DATA=/tmp/run python -m clotho_trainer train --config run.yaml
"""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "tiny-model":
        return _tiny_model(options.folder, options.seed)
    return {"export": _export, "serve": _serve, "train": _train}[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m clotho_trainer", epilog=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train the policy of a run and serve it")
    _add_ports(train, inference="of the pod's first rank (default: 8001)")
    train.add_argument("--policy-port", type=int, default=8005, help="for inference replicas (default: 8005)")
    serve = commands.add_parser("serve", help="serve the policy that a trainer elsewhere trains: an inference replica")
    _add_ports(serve, inference="(default: 8001)")
    _add_export(commands.add_parser("export", help="merge a checkpoint and write it for other programs"))
    tiny = commands.add_parser("tiny-model", help="write a tiny random model that learns in seconds on a CPU")
    tiny.add_argument("folder", type=Path)
    tiny.add_argument("--seed", type=int, default=0)
    return parser


def _add_ports(command: argparse.ArgumentParser, *, inference: str) -> None:
    command.add_argument("--config", type=Path, help="the run's file (default: $CLOTHO_CONFIG or /etc/clotho/run.yaml)")
    command.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")  # noqa: S104
    command.add_argument("--inference-port", type=int, help=inference)
    command.add_argument("--status-port", type=int, default=8002)


def _add_export(export: argparse.ArgumentParser) -> None:
    export.add_argument("--config", type=Path, help="the run's file, when no checkpoint is named")
    export.add_argument("--checkpoint", type=Path, help="folder of a checkpoint (default: from the run's file)")
    export.add_argument("--output", type=Path, help="folder to write into")
    export.add_argument("--format", action="append", choices=["safetensors", "gguf"], help="may be repeated")
    export.add_argument(
        "--quantization", default="q8_0", choices=["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
    )
    export.add_argument("--base", default="", help="the model it was trained from, where it has moved since")
    export.add_argument("--ollama", default="", help="URL of an Ollama server that gets the GGUF file")
    export.add_argument("--name", default="", help="name of the model on that server")
    export.add_argument("--status-port", type=int, default=0, help="serve /progress there (8002 in a pod)")


def _tiny_model(folder: Path, seed: int) -> int:
    from clotho_trainer.model import tiny

    tiny.write(folder, seed)
    print(f"wrote {folder}; use it as model.name")
    return 0


def _export(options: argparse.Namespace) -> int:
    import asyncio

    from clotho_contract import logs, termination
    from clotho_trainer import failures
    from clotho_trainer.export import command

    logs.set_up(os.environ.get("CLOTHO_LOG_LEVEL", "INFO"), sys.stderr)
    end = asyncio.run(command.run(options))
    termination.write(end)
    print(termination.encode(end).decode(), flush=True)
    os._exit(failures.exit_code(end))  # a half-written file must not keep a stopped pod alive


def _train(options: argparse.Namespace) -> int:
    from clotho_contract import logs, open_files
    from clotho_contract.ranks import inference_port
    from clotho_trainer import failures
    from clotho_trainer.process import ending
    from clotho_trainer.process.place import take_place

    logs.set_up(os.environ.get("CLOTHO_LOG_LEVEL", "INFO"))
    open_files.raise_limit()
    try:
        place = take_place(os.environ)
    except failures.TrainerError as error:
        ending.leave(failures.classify(error, None))
    if place.must_launch:
        from clotho_trainer.process.launch import launch

        ending.leave(launch(place.ranks_per_node, sys.argv[1:]))
    import uvloop

    from clotho_trainer.process import app

    base = options.inference_port
    port = inference_port(place.local_rank) if base is None else base + place.local_rank
    chosen = app.Options(options.config, options.host, port, options.status_port, options.policy_port, place)
    ending.leave(uvloop.run(app.train(chosen)))


def _serve(options: argparse.Namespace) -> int:
    import uvloop

    from clotho_contract import logs, open_files
    from clotho_contract.names import INFERENCE_PORT
    from clotho_trainer.process import ending, replica
    from clotho_trainer.process.app import Options

    logs.set_up(os.environ.get("CLOTHO_LOG_LEVEL", "INFO"))
    open_files.raise_limit()
    port = options.inference_port or INFERENCE_PORT
    ending.leave(uvloop.run(replica.serve(Options(options.config, options.host, port, options.status_port))))


if __name__ == "__main__":
    sys.exit(main())
