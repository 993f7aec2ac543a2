"""`inference.engine: vllm` against the real vLLM on one GPU: beside the training, as a server of its own, and in an
inference replica that follows the policy over HTTP, with adapters (`replica`) and with all weights (`replica-full`).

The real processes of a run, with random weights that are saved and loaded. `fast` is the same run with our own engine.
The samples of the replica's sides come from the replica alone, so that they start one vLLM; the trainer and the replica
score the same tokens meanwhile. Each vLLM takes minutes to start: --vllm-options=--enforce-eager shortens that.
The last line is JSON. Needs the command `vllm`, beside this interpreter or on the PATH.

    python tests/bench/real_vllm.py --sides replica,replica-full
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
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
from policy_probe import PolicyProbe  # noqa: E402

from rig import locked_versions  # noqa: E402

START_SECONDS = 300
_REPLICA_MEMORY_SHARE = 0.3  # of the one GPU, which the trainer uses, too
_FULL_LEARNING_RATE = 1e-4  # smaller steps are lost in bfloat16
_PAUSE = 0.2
_PROCESS = [str(Path(__file__).with_name("vllm_process.py"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trainer_work.add_options(parser, prompts=4, group=16, new_tokens=256, micro=8)
    parser.set_defaults(shape="0.6b")
    parser.add_argument("--steps", type=int, default=3, help="measured; more warm up")
    parser.add_argument("--sides", default="fast,colocate,server,replica,replica-full")
    parser.add_argument("--vllm-options", default="", help="more options of `vllm serve`")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for a side, the start of vLLM included")
    options = parser.parse_args()
    options.ragged, options.batches_in_flight, options.together, options.engine = False, 2.0, 1, "auto"
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
        figures = trainer_run.measured(config, trainer, limit_seconds=options.limit)
    elif side == "colocate":
        variables = _variables(options, share=Vllm().memory_share)
        figures = trainer_run.measured(
            lambda ports: config(ports, Vllm()), _PROCESS, variables=variables, limit_seconds=options.limit
        )
    elif side in ("replica", "replica-full"):
        figures = _with_a_replica(config, options, model, is_full=side == "replica-full")
    else:
        port, adapters = trainer_run.free_port(), model.with_name("adapters")
        server = Vllm(mode="server", url=f"http://127.0.0.1:{port}", adapter_path=str(adapters))
        with _vllm_server(config(trainer_run.Ports(), server), port, options):
            figures = trainer_run.measured(lambda ports: config(ports, server), trainer, limit_seconds=options.limit)
            figures["adapters_left"] = len(list(adapters.glob("*")))
    print(json.dumps({"side": side, **figures}), file=sys.stderr, flush=True)
    return figures


def _variables(options: argparse.Namespace, share: float) -> dict[str, str]:
    return {"BENCH_VLLM_OPTIONS": options.vllm_options, "BENCH_VLLM_SHARE": str(share)}


def _with_a_replica(config: Any, options: argparse.Namespace, model: Path, *, is_full: bool) -> dict[str, Any]:
    from msgspec.structs import replace

    from clotho_contract.settings import Lora, Vllm

    def settings(ports: trainer_run.Ports, vllm: Vllm | None = None) -> Any:
        made = config(ports, vllm)
        endpoints = replace(
            made.endpoints,
            policy=f"http://127.0.0.1:{ports.policy}",
            serving_ranks=0,  # the trainer's engine serves the probe alone
            inference_replicas=(f"http://127.0.0.1:{ports.replica}",),
        )
        training = replace(made.training, max_staleness=1)  # the trainer waits for a replica that is slow to follow
        if is_full:
            training = replace(training, lora=Lora(rank=0), learning_rate=_FULL_LEARNING_RATE)
        return replace(made, endpoints=endpoints, training=training)

    probe, began, serving = PolicyProbe(trainer_run.TOKEN, str(model)), time.monotonic(), []

    is_over = threading.Event()

    def follow_trainer(ports: trainer_run.Ports) -> None:
        while not is_over.wait(_PAUSE):
            probe.observe("trainer", ports.inference)

    def observe(ports: trainer_run.Ports) -> None:
        if probe.observe("replica", ports.replica) and not serving:
            serving.append(time.monotonic() - began)
            threading.Thread(target=follow_trainer, args=(ports,), daemon=True).start()
        probe.observe("replica", ports.replica)  # at once, before the next version comes

    replica = trainer_run.Replica(
        _PROCESS, lambda ports: settings(ports, Vllm()), _variables(options, _REPLICA_MEMORY_SHARE), observe
    )
    try:
        figures = trainer_run.measured(settings, ["-m", "clotho_trainer"], replica, limit_seconds=options.limit)
    finally:
        is_over.set()
    start = round(serving[0], 1) if serving else None
    return figures | {"seconds_until_the_replica_served": start, "scores": probe.figures()}


@contextmanager
def _vllm_server(config: Any, port: int, options: argparse.Namespace) -> Iterator[None]:
    """The command line of a colocated one, on another port."""
    from clotho_trainer.inference.vllm.engine import command_line

    command = command_line(config, context=config.training.max_tokens, port=port) + shlex.split(options.vllm_options)
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
