"""Run as a script by the interpreter that has atroposlib: `launch.py FILE ARGUMENTS` is `python FILE ARGUMENTS`, except

- that transformers 5 tokenizes conversations to lists of token ids, as the version that Atropos was written for, and
- that what the environment logs of its evaluations (`evaluate_log`, and `eval...` in `wandb_log`) reaches the run.

It stands alone on purpose: that interpreter need not have this package.
"""

import asyncio
import functools
import json
import runpy
import sys
import urllib.request
from pathlib import Path
from typing import Any

MOST_FIGURES = 32
LONGEST_NAME = 128
SEND_SECONDS = 10


def tokenize_to_lists() -> None:
    """transformers 5 changed the default to a BatchEncoding, which Atropos slices like a list and sends as JSON."""
    try:
        from transformers import PreTrainedTokenizerBase
    except ImportError:
        return  # the environment's own import error names what is missing
    original = PreTrainedTokenizerBase.apply_chat_template

    @functools.wraps(original)
    def apply_chat_template(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **{"return_dict": False, **options})

    PreTrainedTokenizerBase.apply_chat_template = apply_chat_template  # type: ignore[method-assign]


def report_evaluations() -> None:
    try:
        from atroposlib.envs.base import BaseEnv  # type: ignore[import-not-found]
    except ImportError:
        return
    log_to_wandb, log_evaluation = BaseEnv.wandb_log, BaseEnv.evaluate_log

    @functools.wraps(log_to_wandb)
    async def wandb_log(self: Any, wandb_metrics: Any = None) -> Any:
        await _report(self, {name: value for name, value in (wandb_metrics or {}).items() if name.startswith("eval")})
        return await log_to_wandb(self, wandb_metrics)

    @functools.wraps(log_evaluation)
    async def evaluate_log(self: Any, metrics: Any, *arguments: Any, **options: Any) -> Any:
        await _report(self, metrics)
        return await log_evaluation(self, metrics, *arguments, **options)

    BaseEnv.wandb_log, BaseEnv.evaluate_log = wandb_log, evaluate_log


async def _report(env: Any, metrics: Any) -> None:
    """Best effort: an evaluation never stops an environment."""
    try:
        figures = numbers_in(metrics)
        if figures:
            body = json.dumps({"figures": figures, "step": int(env.curr_step)}).encode()
            await asyncio.to_thread(_send, f"{env.config.rollout_server_url}/evaluations", body)
    except Exception as error:
        print(f"WARNING the evaluation was not reported: {error}", file=sys.stderr)


def numbers_in(metrics: Any) -> dict[str, float]:
    """Those that are numbers, numpy's included."""
    named = {str(name)[:LONGEST_NAME]: value for name, value in dict(metrics).items() if hasattr(value, "__float__")}
    return {name: float(value) for name, value in list(named.items())[:MOST_FIGURES]}


def _send(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - the gateway's
    urllib.request.urlopen(request, timeout=SEND_SECONDS).close()  # noqa: S310


def main() -> None:
    file = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path[0] = str(file.resolve().parent)
    tokenize_to_lists()
    report_evaluations()
    runpy.run_path(str(file), run_name="__main__")


if __name__ == "__main__":
    main()
