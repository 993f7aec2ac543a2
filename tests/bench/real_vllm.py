"""`inference.engine: vllm` against the real vLLM on one GPU: beside the training, as a server of its own, and in an
inference replica that follows the policy over HTTP.

The real processes of a run, with random weights that are saved and loaded. `fast` is the same run with our own engine.
The last line is JSON. Needs the command `vllm`, beside this interpreter or on the PATH.

    python tests/bench/real_vllm.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "images" / part for part in ("contract", "api-server", "trainer", "environment")]
sys.path[:0] = [str(source) for source in (*SOURCES, Path(__file__).parent, ROOT / "tests")]

import trainer_run  # noqa: E402
import trainer_work  # noqa: E402

from rig import locked_versions  # noqa: E402

START_SECONDS = 300
_REPLICA_MEMORY_SHARE = 0.3  # of the one GPU that the trainer, its vLLM and the replica's vLLM share
_REPLICA_STEPS = 10  # times the steps of the others: its vLLM may be ready later than the trainer's

# A replica has a GPU and a port of its own, elsewhere.
_REPLICA = """
import sys
from functools import partial
from clotho_trainer.__main__ import main
from clotho_trainer.inference import vllm
from clotho_trainer.process import replica

vllm.command_line = partial(vllm.command_line, port={port})
replica._VLLM_MEMORY_SHARE = {share}
sys.exit(main(sys.argv[1:]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=4, group=16, new_tokens=256, micro=8)
    parser.set_defaults(shape="0.6b")
    parser.add_argument("--steps", type=int, default=3, help="measured; two more warm up")
    parser.add_argument("--sides", default="fast,colocate,server,replica")
    options = parser.parse_args()
    options.ragged, options.batches_in_flight, options.engine = False, None, "auto"
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_USE_FLASHINFER_SAMPLER="0", VLLM_NO_USAGE_STATS="1")
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        _write_model(options.shape, model)
        figures = {side: _measured(side, options, model) for side in options.sides.split(",")}
    print(json.dumps({"bench": "real_vllm", "versions": locked_versions.running(), **figures}))


def _write_model(shape: str, folder: Path) -> None:
    from clotho_trainer.model.tiny import make_tokenizer

    tokenizer = make_tokenizer()
    trainer_work.make_model(shape, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _measured(side: str, options: argparse.Namespace, model: Path) -> dict[str, Any]:
    from msgspec.structs import replace

    from clotho_contract.settings import Vllm

    def config(ports: trainer_run.Ports, vllm: Vllm | None = None) -> Any:
        made = trainer_run.config(options, ports)
        inference = replace(made.inference, engine="vllm", vllm=vllm) if vllm else made.inference
        return replace(made, model=replace(made.model, name=str(model)), inference=inference)

    trainer = ["-m", "clotho_trainer"]
    if side == "fast":
        figures = trainer_run.measured(config, trainer)
    elif side == "colocate":
        figures = trainer_run.measured(lambda ports: config(ports, Vllm()), trainer)
    elif side == "replica":
        figures = _with_a_replica(config, trainer, Vllm(memory_share=_REPLICA_MEMORY_SHARE))
    else:
        port, adapters = trainer_run.free_port(), model.with_name("adapters")
        server = Vllm(mode="server", url=f"http://127.0.0.1:{port}", adapter_path=str(adapters))
        with _vllm_server(config(trainer_run.Ports(), server), port):
            figures = trainer_run.measured(lambda ports: config(ports, server), trainer)
            figures["adapters_left"] = len(list(adapters.glob("*")))
    print(json.dumps({"side": side, **figures}), file=sys.stderr, flush=True)
    return figures


def _with_a_replica(config: Any, trainer: list[str], vllm: Any) -> dict[str, Any]:
    from msgspec.structs import replace

    def with_endpoints(ports: trainer_run.Ports) -> Any:
        made = config(ports, vllm)
        endpoints = replace(
            made.endpoints,
            policy=f"http://127.0.0.1:{ports.policy}",
            inference_replicas=(f"http://127.0.0.1:{ports.replica}",),
        )
        training = replace(made.training, steps=made.training.steps * _REPLICA_STEPS)
        return replace(made, endpoints=endpoints, training=training)

    command = _REPLICA.format(port=trainer_run.free_port(), share=_REPLICA_MEMORY_SHARE)
    return trainer_run.measured(with_endpoints, trainer, ["-c", command])


@contextmanager
def _vllm_server(config: Any, port: int) -> Iterator[None]:
    """The command line of a colocated one, on another port."""
    from clotho_trainer.inference.vllm import command_line

    command = command_line(config, adapters=4, context=config.training.max_tokens, port=port)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
        try:
            _wait_until_healthy(process, f"http://127.0.0.1:{port}/health")
            yield
        finally:
            process.terminate()
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(url, timeout=5):  # noqa: S310 - loopback
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"vLLM did not serve within {START_SECONDS} s (exit code {process.poll()})")


if __name__ == "__main__":
    main()
