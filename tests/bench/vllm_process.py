"""The trainer's own command, for a vLLM that shares its GPU and machine: on a free port, with $BENCH_VLLM_OPTIONS, and
in a replica with $BENCH_VLLM_SHARE of the GPU's memory.

    python tests/bench/vllm_process.py -- serve ...
"""

import os
import shlex
import sys

from trainer_run import free_port

from clotho_contract.config import RunConfig
from clotho_trainer.__main__ import main
from clotho_trainer.inference.vllm import engine
from clotho_trainer.process import replica

_own_command_line = engine.command_line


def _command_line(config: RunConfig, context: int) -> list[str]:
    return [*_own_command_line(config, context, free_port()), *shlex.split(os.environ["BENCH_VLLM_OPTIONS"])]


engine.command_line = _command_line  # type: ignore[assignment]
replica._VLLM_MEMORY_SHARE = float(os.environ["BENCH_VLLM_SHARE"])
sys.exit(main(sys.argv[2:]))
