"""The command line's grammar and nothing else: what a command does is imported once it is known which."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from clotho.authoring.nearest import nearest
from clotho.cli.failure import Exit

FORMATS = ("table", "json", "yaml")
SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = "Reinforcement-learning fine-tuning on Kubernetes: environments, runs, tests, policies."
EPILOG = """\
Start here:
  {prog} check                                   what is missing, and how to get it
  {prog} env discover my_envs/ --config-map      find environments in files, print their manifests
  {prog} run start --environment gsm8k --model Qwen/Qwen3-8B --steps 500 --watch

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused, 5 cluster unreachable, 6 timed out, 130 interrupted.
"""


class Parser(argparse.ArgumentParser):
    """One helpful line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '?([^' ]*)'? \(choose from (.*)\)$", message):
            word, known = wrong[1], re.findall(r"[\w-]+", wrong[2])
            message = f"{word!r} is not one of: {', '.join(known)}{nearest(word, known)}"
        elif message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            message = f"unknown argument {word}{nearest(word.partition('=')[0], self.known_options())}"
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(Exit.USAGE)

    def known_options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def choices_after(self, option: str) -> list[str] | None:
        """The values that an option takes; None for what is no option, or one without a value."""
        for action in self._actions:
            if option in action.option_strings and action.nargs != 0:
                return [str(choice) for choice in action.choices or ()]
        return None

    def positional_choices(self) -> list[str]:
        actions = [action for action in self._actions if not action.option_strings]
        return [str(choice) for action in actions if isinstance(action.choices, tuple) for choice in action.choices]

    def first_positional(self) -> str:
        """What it is called in the help: RUN, ENVIRONMENT, ..."""
        return next((str(action.metavar) for action in self._actions if not action.option_strings), "")

    def commands(self) -> dict[str, Parser]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}


def parse(prog: str, words: Sequence[str]) -> argparse.Namespace:
    root = build(prog)
    options, left_over = root.parse_known_args(words)
    if left_over:
        options.parser.error(f"unrecognized arguments: {' '.join(left_over)}")
    if not hasattr(options, "run"):
        options.parser.print_help(sys.stderr)
        raise SystemExit(Exit.USAGE)
    return options


def build(prog: str) -> Parser:
    root = Parser(
        prog=prog,
        description=DESCRIPTION,
        epilog=EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.set_defaults(parser=root, kubeconfig=None, context="", namespace="")
    root.add_argument(
        "--version",
        action="store_const",
        const="clotho.cli.commands.version:show",
        dest="run",
        default=argparse.SUPPRESS,
    )
    groups = root.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _environment_commands(_group(groups, "env", "find, list and describe environments"))
    _run_commands(_group(groups, "run", "start, watch, stop and fetch training runs"))
    _test_command(groups)
    _policy_commands(_group(groups, "policy", "what the administrator has locked"))
    _check_command(groups)
    _mcp_command(groups)
    _completion_command(groups)
    return root


Add = Callable[..., Parser]


def _group(groups: Any, name: str, title: str) -> Add:
    parser = groups.add_parser(name, help=title, description=_sentence(title), allow_abbrev=False)
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    return lambda *args, **kwargs: _command(commands, *args, **kwargs)


def _command(commands: Any, name: str, title: str, run: str, *, formats: bool = True, cluster: bool = True) -> Parser:
    parser: Parser = commands.add_parser(name, help=title, description=_sentence(title), allow_abbrev=False)
    parser.set_defaults(run=f"clotho.cli.commands.{run}", parser=parser)
    if formats:
        parser.add_argument("-o", "--output", choices=FORMATS, default="table", help="default: %(default)s")
    if cluster:
        add_cluster_options(parser.add_argument_group("cluster"))
    return parser


def add_cluster_options(where: Any) -> None:
    where.add_argument("-n", "--namespace", default="", help="default: the context's")
    where.add_argument("--context", default="", help="of the kubeconfig")
    where.add_argument("--kubeconfig", type=Path, help="default: $KUBECONFIG or ~/.kube/config")


def _sentence(title: str) -> str:
    return f"{title[:1].upper()}{title[1:]}."


def _environment_commands(add: Add) -> None:
    add("list", "list the catalogue of the namespace", "environments:list_all")
    describe = add("describe", "show an environment's config fields", "environments:describe")
    describe.add_argument("name", metavar="ENVIRONMENT")
    discover = add(
        "discover", "find environments in Python files, without running them", "environments:discover", cluster=False
    )
    discover.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    discover.add_argument("--write", type=Path, metavar="FILE", help="write Environment manifests; - prints them")
    discover.add_argument("--config-map", action="store_true", help="ship the files in ConfigMaps: no image to build")
    discover.add_argument(
        "--image",
        default="",
        help="image that holds the files, or, with --config-map, runs them (default: the operator's own)",
    )
    discover.add_argument("--image-path", default="", metavar="FOLDER", help="where PATH lies in that image")


def _run_commands(add: Add) -> None:
    start = add("start", "start a training run", "runs:start")
    source = start.add_mutually_exclusive_group(required=True)
    source.add_argument("-f", "--file", type=Path, help="a TrainingRun manifest; - reads standard input")
    source.add_argument("-e", "--environment", default="", help="an Environment of the namespace")
    start.add_argument("--name", default="", help="default: the manifest's, or <environment>-<random>")
    start.add_argument("--model", default="", help="for --environment: such as Qwen/Qwen3-8B")
    start.add_argument("--steps", type=_positive, help="optimiser steps")
    start.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="such as training.batchSize=64 or, of the environment, group_size=16",
    )
    start.add_argument("--dry-run", action="store_true", help="check everything, also with the API server, and print")
    start.add_argument("-w", "--watch", action="store_true", help="follow it until it ends")
    convert = add("from-config", "turn another trainer's config file into a run", "from_config:convert", formats=False)
    convert.add_argument("file", type=Path, metavar="FILE", help="YAML with model, generation, training, data, wandb")
    convert.add_argument("--name", default="", help="default: the file's")
    convert.add_argument("--gpus", type=int, default=1, help="of the trainer; 0 runs on the CPU (default: %(default)s)")
    convert.add_argument("--wandb-secret", default="wandb", help="Secret with WANDB_API_KEY (default: %(default)s)")
    convert.add_argument("--apply", action="store_true", help="create it instead of printing it")
    add("list", "list the runs of the namespace", "runs:list_all").add_argument(
        "-A", "--all-namespaces", action="store_true"
    )
    _named(add("status", "show how a run is", "runs:status"))
    watch = _named(
        add("watch", "follow a run, with progress and rewards, until it ends", "watching:watch", formats=False)
    )
    watch.add_argument("--timeout", type=_positive, metavar="SECONDS", help="stop looking then (exit code 6)")
    stop = _named(add("stop", "end a run for good, after a last checkpoint", "runs:stop"))
    stop.add_argument("--suspend", action="store_true", help="only pause it; `run resume` goes on")
    _named(add("resume", "go on with a suspended run", "runs:resume"))
    logs = _named(add("logs", "print the logs of a run's pods", "logs:logs", formats=False))
    logs.add_argument("-c", "--component", choices=("trainer", "api-server", "environment"), help="default: all")
    logs.add_argument("--follow", action="store_true", help="until the pods end")
    logs.add_argument("--tail", type=_positive, metavar="LINES", help="of each pod")
    _named(add("results", "show final metrics, the history and where the weights are", "runs:results"))
    export = _named(add("export", "copy a run's checkpoint out of its volume claim", "export:export"))
    export.add_argument("--to", type=Path, metavar="FOLDER", help="copy there; without it, only say where it is")
    export.add_argument("--image", default="", help="image with tar for the copying pod (default: the trainer's)")


def _named(parser: Parser) -> Parser:
    parser.add_argument("name", metavar="RUN")
    return parser


def _test_command(groups: Any) -> None:
    test = _command(groups, "test", "try an environment against models before training", "inference_tests:test")
    test.add_argument("name", metavar="ENVIRONMENT")
    test.add_argument("--model", dest="models", action="append", metavar="MODEL", help="again for more; default: three")
    test.add_argument("--base-url", default="", help="of the OpenAI-compatible API (default: OpenRouter)")
    test.add_argument("--secret", default="", help="Secret with the key OPENAI_API_KEY; keys are never arguments")
    test.add_argument("--steps", type=_positive, default=3, help="default: %(default)s")
    test.add_argument("--group-size", type=_positive, default=16, help="completions a step (default: %(default)s)")
    test.add_argument("--timeout", type=_positive, default=600, metavar="SECONDS", help="a model; default: %(default)s")
    test.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE", help="config field")
    test.add_argument("--keep", action="store_true", help="keep the InferenceTest afterwards")


def _policy_commands(add: Add) -> None:
    add("explain", "show what is locked and limited in the namespace", "policies:explain")


def _check_command(groups: Any) -> None:
    check = _command(groups, "check", "say what is missing to work here, and how to get it", "check:check")
    check.add_argument("--wandb-secret", default="wandb", help="Secret with WANDB_API_KEY (default: %(default)s)")
    check.add_argument("--tinker-secret", default="tinker", help="Secret with TINKER_API_KEY (default: %(default)s)")
    check.add_argument("--operator-namespace", default="clotho-system", help="default: %(default)s")


def _mcp_command(groups: Any) -> None:
    mcp = _command(groups, "mcp", "serve the ten rl_* tools to agents (MCP)", "mcp:serve", formats=False)
    mcp.add_argument("--http", action="store_true", help="streamable HTTP instead of standard input and output")
    mcp.add_argument("--host", default="127.0.0.1", help="beyond loopback $CLOTHO_MCP_TOKEN is needed")
    mcp.add_argument("--port", type=_port, default=8765, help="default: %(default)s")
    mcp.add_argument("--base", type=Path, metavar="FILE", help="a TrainingRun manifest that every run starts from")
    mcp.add_argument(
        "--status-interval",
        type=_positive,
        default=1800,
        metavar="SECONDS",
        help="between two looks at a run with rl_check_status (default: %(default)s)",
    )
    mcp.add_argument("--test-secret", default="", help="Secret with OPENAI_API_KEY for rl_test_inference")
    mcp.add_argument("--test-base-url", default="", help="of its models (default: OpenRouter)")


def _completion_command(groups: Any) -> None:
    completion = _command(
        groups,
        "completion",
        "print a script that completes commands in a shell",
        "completion:script",
        formats=False,
        cluster=False,
    )
    completion.add_argument("shell", choices=SHELLS)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 1 to 65535")
    return int(text)
