"""Every command with its options; what a command does is imported when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from clotho.api.names import LOGGED_COMPONENTS
from clotho.cli.failure import Exit
from clotho.cli.parser import Command, Group, OneOf, Parser, not_one_of, port, positive, seconds
from clotho_contract.nearest import nearest

FIGURES = (  # those that clotho_contract.history keeps; it is not imported for every command
    "rewardMean",
    "rewardStd",
    "percentCorrect",
    "loss",
    "worldModelLoss",
    "kl",
    "entropy",
    "gradientNorm",
    "learningRate",
    "completionsMeanLength",
    "completionsTruncated",
    "toolsCallsPerRollout",
    "stalenessMean",
    "tokensPerSecond",
    "secondsPerStep",
    "secondsWaiting",
    "secondsSampling",
    "secondsTraining",
)
SHELLS = ("bash", "zsh", "fish")
EPILOG = """\
Start here:
  {prog} check
      what is missing to work with this cluster, and how to get it
  {prog} env discover my_envs/ --config-map
      find environments in Python files, and print their manifests
  {prog} run start -e gsm8k --model Qwen/Qwen3-8B --steps 500 --watch
      start a run, and follow it

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused,
5 cluster unreachable, 6 timed out, 130 interrupted, 143 terminated.
"""
START_EXAMPLES = """\
examples:
  {prog} -f run.yaml --watch
  {prog} -e gsm8k --model Qwen/Qwen3-8B --steps 500 --set group_size=16
  {prog} -f run.yaml --set training.learningRate=1e-5 --dry-run
"""


def parse(prog: str, argv: Sequence[str]) -> argparse.Namespace:
    """Walks down the tree; options belong to the command at its end."""
    place: Command | Group = TREE
    program, rest = prog, list(argv)
    while isinstance(place, Group):
        if place.default and rest[:1] and rest[0].startswith("-") and rest[0] not in ("-h", "--help"):
            rest = [place.default, *rest]
        word, rest = (rest[0], rest[1:]) if rest else ("", rest)
        if place.has_version and word == "--version":
            return argparse.Namespace(run="clotho.cli.commands.version:show", parser=place.parser(prog))
        if (found := place.find(word)) is None:
            _stop_at(place, prog, word)
        place, prog = found, f"{prog} {word}"
    options = place.parser(prog).parse(rest)
    options.program = program
    return options


def _stop_at(place: Group, prog: str, word: str) -> NoReturn:
    parser = place.parser(prog)
    if word in ("-h", "--help"):
        parser.print_help()
        raise SystemExit(Exit.OK)
    if not word:
        parser.print_help(sys.stderr)
        raise SystemExit(Exit.USAGE)
    if word.startswith("-"):
        parser.error(f"{word} comes before the command; write options after it: {prog} COMMAND {word} ...")
    guess = nearest(word, place.names())
    parser.error(f"no command {word!r}{guess}" if guess else not_one_of(word, place.names()))


def _run(parser: Parser) -> None:
    parser.take("name", metavar="RUN", help="name of a TrainingRun")


def _environment(parser: Parser) -> None:
    parser.take("name", metavar="ENVIRONMENT", help="name of an Environment")


def _changes(parser: Parser, example: str) -> None:
    parser.take("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE", help=example)


def _creation(parser: Parser) -> None:
    parser.take("--dry-run", action="store_true", help="validate, also on the API server, and print the manifest")
    parser.take("-w", "--watch", action="store_true", help="follow the run until it ends")


def _discover(parser: Parser) -> None:
    parser.take("paths", nargs="+", type=Path, metavar="PATH", help="Python files or directories")
    parser.take("--write", type=Path, metavar="FILE", help="write Environment manifests; - prints them")
    parser.take("--config-map", action="store_true", help="ship the files in ConfigMaps: no image to build")
    parser.take(
        "--image",
        default="",
        help="image that contains the files; with --config-map: that runs them (default: the installed release's)",
    )
    parser.take("--image-path", default="", metavar="DIRECTORY", help="where PATH is in that image")
    _operator_namespace(parser)


def _start(parser: Parser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    parser.take(
        "-f",
        "--file",
        group=source,
        type=Path,
        help="a TrainingRun, or another trainer's config; - reads standard input",
    )
    parser.take("-e", "--environment", group=source, default="", help="an Environment of the namespace")
    parser.take("--name", default="", help="default: the manifest's, or ENVIRONMENT-<random>")
    parser.take("--model", default="", help="such as Qwen/Qwen3-8B; required with --environment")
    parser.take("--steps", type=positive, help="optimiser steps; required with --environment")
    _changes(parser, "a field of the run (training.batchSize=64) or of the environment (group_size=16); repeatable")
    _creation(parser)


def _clone(parser: Parser) -> None:
    _run(parser)
    parser.take("--name", dest="new_name", default="", help="of the new run; default: RUN-2, RUN-3, ...")
    _changes(parser, "a field that differs, such as training.learningRate=1e-5; repeatable")
    _creation(parser)


def _sweep(parser: Parser) -> None:
    parser.take("-f", "--file", type=Path, required=True, help="a sweep file; - reads standard input")
    parser.take("--dry-run", action="store_true", help="validate, also on the API server, and print every manifest")


def _sweep_results(parser: Parser) -> None:
    parser.take("name", metavar="SWEEP", help="name of a sweep")


def _from_config(parser: Parser) -> None:
    parser.take("file", type=Path, metavar="FILE", help="YAML with model, generation, training, data, wandb")
    parser.take("--name", default="", help="default: the file's name")
    parser.take("--gpus", type=int, default=1, help="of the trainer; 0 trains on the CPU (default: %(default)s)")
    parser.take("--wandb-secret", default="wandb", help="Secret with WANDB_API_KEY (default: %(default)s)")
    parser.take("--apply", action="store_true", help="create the run instead of printing it")


def _list(parser: Parser) -> None:
    parser.take("-A", "--all-namespaces", action="store_true", help="runs of every namespace")


def _watch(parser: Parser) -> None:
    _run(parser)
    parser.take("--timeout", type=seconds, metavar="TIME", help="exit with code 6 after this time (90s, 15m, 2h)")


def _compare(parser: Parser) -> None:
    parser.take("names", nargs="+", metavar="RUN", help="two or more runs")


def _stop(parser: Parser) -> None:
    _run(parser)
    parser.take("--suspend", action="store_true", help="pause instead; `run resume` continues from the checkpoint")


def _delete(parser: Parser) -> None:
    _run(parser)
    parser.take("--with-claim", action="store_true", help="also delete the volume claim with the checkpoints")


def _logs(parser: Parser) -> None:
    _run(parser)
    parser.take(
        "-c",
        "--component",
        type=OneOf(*LOGGED_COMPONENTS),
        metavar="COMPONENT",
        help=f"{', '.join(LOGGED_COMPONENTS)}; default: all",
    )
    parser.take("-f", "--follow", action="store_true", help="print new lines of all pods until the run ends")
    parser.take("--since", type=seconds, metavar="TIME", help="only lines of the last 90s, 15m, 2h, 1d")
    parser.take("--tail", type=positive, metavar="LINES", help="only the last lines of each pod")
    parser.take(
        "--attempt", type=positive, metavar="N", help="of the Nth start of the trainer: the last lines that were kept"
    )


def _plot(parser: Parser) -> None:
    _run(parser)
    parser.take(
        "--figure",
        dest="figures",
        action="append",
        type=OneOf(*FIGURES),
        metavar="FIGURE",
        help="such as rewardMean, loss or kl; repeatable; default: all",
    )


def _samples(parser: Parser) -> None:
    _run(parser)
    parser.take("--kind", type=OneOf("newest", "best", "worst"), metavar="KIND", help="newest, best or worst")


def _download(parser: Parser) -> None:
    _run(parser)
    parser.take(
        "--what",
        type=OneOf("model", "checkpoint", "metrics", "logs"),
        default="model",
        metavar="PART",
        help="model (default): the exported files, or else the newest checkpoint without optimizer state; "
        "checkpoint: all of it, to continue training; metrics: the run's history as JSON; logs: one file for each pod",
    )
    parser.take("--to", type=Path, metavar="DIRECTORY", help="an empty or new directory; default: ./RUN")
    parser.take("--list", dest="only_list", action="store_true", help="show where it is and copy nothing")
    parser.take("--image", default="", help="image with tar for the copying pod (default: the trainer's)")


def _test(parser: Parser) -> None:
    _environment(parser)
    parser.take("--model", dest="models", action="append", metavar="MODEL", help="repeatable; default: three models")
    parser.take("--base-url", default="", metavar="URL", help="an OpenAI-compatible API (default: OpenRouter)")
    parser.take("--secret", default="", help="Secret with the key OPENAI_API_KEY; a key is never an argument")
    parser.take("--steps", type=positive, default=3, help="groups for each model (default: %(default)s)")
    parser.take("--group-size", type=positive, default=16, help="completions in a group (default: %(default)s)")
    parser.take(
        "--timeout",
        type=seconds,
        default=600,
        metavar="TIME",
        help="for everything, from the creation of the test, image pulls included (default: 10m)",
    )
    _changes(parser, "a config field of the environment; repeatable")
    parser.take("--keep", action="store_true", help="keep the InferenceTest afterwards")


def _check(parser: Parser) -> None:
    parser.take("--wandb-secret", default="wandb", help="Secret with WANDB_API_KEY (default: %(default)s)")
    parser.take("--tinker-secret", default="tinker", help="Secret with TINKER_API_KEY (default: %(default)s)")
    _operator_namespace(parser)
    parser.take("--cluster", action="store_true", help="also check GPUs, storage, images, network and clocks")
    parser.take("--gpu-resource", default="nvidia.com/gpu", help="what nodes call a GPU (default: %(default)s)")
    parser.take(
        "--image", dest="images", action="append", metavar="IMAGE", help="to pull; repeatable; default: the operator's"
    )
    parser.take(
        "--no-pods", action="store_true", help="with --cluster: start no pods, so images and network are not tried"
    )


def _operator_namespace(parser: Parser) -> None:
    parser.take("--operator-namespace", default="clotho-system", help="default: %(default)s")


def _mcp(parser: Parser) -> None:
    parser.take("--http", action="store_true", help="streamable HTTP instead of standard input and output")
    parser.take("--host", default="127.0.0.1", help="other than loopback requires $CLOTHO_MCP_TOKEN")
    parser.take("--port", type=port, default=8765, help="default: %(default)s")
    parser.take("--base", type=Path, metavar="FILE", help="a TrainingRun manifest that every run starts from")
    parser.take(
        "--status-interval",
        type=positive,
        default=1800,
        metavar="SECONDS",
        help="least time between two rl_check_status of a run that is well under way (default: %(default)s)",
    )
    parser.take("--test-secret", default="", help="Secret with OPENAI_API_KEY for rl_test_inference")
    parser.take("--test-base-url", default="", metavar="URL", help="API of the tested models (default: OpenRouter)")


def _ui(parser: Parser) -> None:
    parser.take("--port", type=port, default=8766, help="on 127.0.0.1 (default: %(default)s)")
    parser.take("--no-open", action="store_true", help="print the address and start no browser")


def _completion(parser: Parser) -> None:
    parser.take("shell", type=OneOf(*SHELLS), metavar="SHELL", help=", ".join(SHELLS))


TREE = Group(
    "clotho",
    "reinforcement-learning fine-tuning of language models on Kubernetes",
    (
        Group(
            "env",
            "find, list and describe environments",
            (
                Command("list", "list the environments of the namespace", "environments:list_all"),
                Command("describe", "show the config fields of an environment", "environments:describe", _environment),
                Command(
                    "discover",
                    "find environments in Python files, without running them",
                    "environments:discover",
                    _discover,
                ),
            ),
        ),
        Group(
            "run",
            "start, follow, compare, stop and download training runs",
            (
                Command("start", "start a training run", "runs:start", _start, epilog=START_EXAMPLES),
                Command("clone", "start a run with the settings of another", "copies:clone", _clone),
                Command("restart", "continue a failed or stopped run from its checkpoint", "copies:restart", _clone),
                Command(
                    "from-config",
                    "convert another trainer's config file into a run",
                    "from_config:convert",
                    _from_config,
                    formats=(),
                ),
                Command("list", "list the runs of the namespace", "runs:list_all", _list),
                Command("status", "show a run: phase, progress, components, conditions", "runs:status", _run),
                Command("watch", "follow a run until it ends", "watching:watch", _watch, formats=()),
                Command("compare", "compare the settings and results of runs", "comparison:compare", _compare),
                Command("logs", "print the logs of a run", "logs:logs", _logs, formats=("text", "json")),
                Command("plot", "draw the curves of a run: reward, loss, KL and others", "history:plot", _plot),
                Command("samples", "show answers of the policy with their rewards", "history:samples", _samples),
                Command("stop", "stop a run for good, after a final checkpoint", "runs:stop", _stop),
                Command("resume", "resume a suspended run", "runs:resume", _run),
                Command("results", "show final metrics, history and files of a run", "runs:results", _run),
                Command(
                    "download",
                    "copy a run's model, checkpoint, metrics or logs to this machine",
                    "download:download",
                    _download,
                ),
                Command("delete", "delete a run", "deletion:delete", _delete),
            ),
        ),
        Group(
            "sweep",
            "try several settings: one run for each",
            (
                Command("start", "create the runs of a sweep file", "sweeps:start", _sweep),
                Command("results", "compare the runs of a sweep, the best first", "sweeps:results", _sweep_results),
            ),
            epilog="`{prog} -f FILE` is the same as `{prog} start -f FILE`.",
            default="start",
        ),
        Command("test", "try an environment against served models, before training", "inference_tests:test", _test),
        Group(
            "policy",
            "show the administrator's policies",
            (Command("explain", "show what is locked and limited in the namespace", "policies:explain"),),
        ),
        Command("check", "check what is missing to work here, and how to get it", "check:check", _check),
        Command("ui", "look at runs, curves, samples and logs in a browser", "ui:serve", _ui, formats=()),
        Command("mcp", "serve the rl_* tools to agents (MCP)", "mcp:serve", _mcp, formats=()),
        Command(
            "completion",
            "print a completion script for a shell",
            "completion:script",
            _completion,
            formats=(),
            cluster=False,
        ),
    ),
    EPILOG,
    has_version=True,
)
