"""The command line: `python -m clotho_environment serve|process|wait|describe|install`."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

import msgspec
import yaml
from msgspec import structs

import clotho_contract.config as run_config
from clotho_contract import description, logs, open_files, termination
from clotho_contract.config import ConfigError, EnvironmentConfig, RunConfig
from clotho_contract.entries import FORMS
from clotho_contract.names import (
    CHECK_VARIABLE,
    CONFIG_VARIABLE,
    ENVIRONMENT_STATUS_PORT,
    ENVIRONMENT_VARIABLE,
    PACKAGES_VARIABLE,
    REQUIREMENTS_VARIABLE,
    TOKENIZER_PATH,
    TOKENIZER_VARIABLE,
)
from clotho_contract.termination import Termination
from clotho_environment.entries import AtroposEntry, EntryError, find_entry
from clotho_environment.pod.packages import use_packages
from clotho_environment.pod.secrets import API_KEY_VARIABLE, Secrets, take_secrets
from clotho_environment.sdk.environment import InvalidConfigError

if TYPE_CHECKING:
    from clotho_environment.commands.process import Target, WriteLine

log = logging.getLogger("clotho_environment")

LENIENCE_SECONDS = 15.0  # for a deadline that is noticed a little late
CHECK_SECONDS = 300.0  # to import the environment, which may load a dataset
CLEANUP_SECONDS = 20.0  # after an interrupt; longer than a child gets to end
INTERRUPTED = 130  # the exit code that shells use for it
INTERRUPTION = Termination(reason="Stopped", message="interrupted")
REFUSALS = (ConfigError, EntryError, InvalidConfigError)
T = TypeVar("T")

EPILOG = f"""\
An entry is {FORMS}.

Try one without a cluster, against any OpenAI-compatible server:
  OPENAI_API_KEY=... python -m clotho_environment process --entry my_env.py --base-url https://.../v1 --model some/model
"""


def main(arguments: list[str] | None = None) -> NoReturn:
    options = _parser().parse_args(arguments)
    secrets = take_secrets()
    use_packages()
    stream = sys.stderr if options.command in ("process", "describe") else sys.stdout
    logs.set_up(stream=stream, secrets=secrets.values)
    open_files.raise_limit()
    code = None
    try:
        ending: Termination = options.run(options, secrets)
    except REFUSALS as error:
        log.debug("refused", exc_info=error)
        ending = Termination(reason="InvalidConfig", message=str(error))
    except KeyboardInterrupt:
        ending, code = INTERRUPTION, INTERRUPTED
    except Exception as error:
        log.exception("internal error in the environment runner")
        ending = Termination(reason="InternalError", message=f"{type(error).__name__}: {error}")
    _leave(structs.replace(ending, message=logs.without(secrets.values, ending.message)), code)


def _leave(ending: Termination, code: int | None = None) -> NoReturn:
    """The exit code follows from the reason unless it is given."""
    is_good = ending.reason in ("Finished", "Stopped")
    log.log(logging.INFO if is_good else logging.ERROR, "%s: %s", ending.reason, ending.message)
    termination.write(ending)
    logging.shutdown()
    sys.stdout.flush()
    if code is None:
        code = 0 if is_good else 1
    os._exit(code)  # environment code may leave threads behind that would hold the process open


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m clotho_environment",
        description="Run, try out and describe reinforcement-learning environments.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="make groups for a run until it is finished")
    _add_choice(serve)
    serve.add_argument("--port", type=int, default=ENVIRONMENT_STATUS_PORT, help="status port (default %(default)s)")
    serve.set_defaults(run=_serve)

    process = commands.add_parser("process", help="write a few groups, one JSON line each: a test of the environment")
    _add_choice(process)
    process.add_argument("--base-url", help="inference server; the run's own when absent")
    process.add_argument("--model", help="its name for the model; the run's own when absent")
    process.add_argument("--groups", type=_positive, default=3, help="how many (default %(default)s)")
    process.add_argument("--deadline", type=float, default=600, metavar="SECONDS", help="default %(default)s")
    process.add_argument("--output", type=Path, help="a file, overwritten; standard output when absent")
    process.add_argument("--tokens", action="store_true", help="require token ids and log-probabilities")
    process.add_argument(
        "--results",
        action="store_true",
        help="count correct completions and put the counts into the termination message",
    )
    process.set_defaults(run=_process)

    wait = commands.add_parser(
        "wait",
        help="return when the run's API server, trainer and inference are ready",
        description=f"With ${CHECK_VARIABLE} set, the environment is imported and its config validated first.",
    )
    wait.add_argument("--config", type=Path, help=f"the run's config file (default ${CONFIG_VARIABLE})")
    wait.add_argument(
        "--tokenizer", type=Path, help=f"where to put it (default ${TOKENIZER_VARIABLE} or {TOKENIZER_PATH})"
    )
    wait.add_argument("--timeout", type=float, metavar="SECONDS", help="give up then; never when absent")
    wait.set_defaults(run=_wait)

    install = commands.add_parser("install", help=f"install ${REQUIREMENTS_VARIABLE} into ${PACKAGES_VARIABLE}")
    install.set_defaults(run=_install)

    describe = commands.add_parser("describe", help="print the environment's config fields as JSON")
    _add_choice(describe)
    describe.add_argument("--output", type=Path, help="a file, overwritten; standard output when absent")
    describe.add_argument(
        "--serve", action="store_true", help="import in a process apart and report on the status port until stopped"
    )
    describe.add_argument("--port", type=int, default=ENVIRONMENT_STATUS_PORT, help="default %(default)s")
    describe.add_argument("--deadline", type=float, default=120, metavar="SECONDS", help="default %(default)s")
    describe.set_defaults(run=_describe)
    return parser


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help=f"the run's config file (default ${CONFIG_VARIABLE})")
    parser.add_argument("--environment", help=f"which of the run's environments (default ${ENVIRONMENT_VARIABLE})")
    parser.add_argument("--entry", help="run this instead of what the config names")
    parser.add_argument(
        "--set", dest="fields", action="append", default=[], metavar="FIELD=VALUE", help="a config field, as YAML"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _serve(options: argparse.Namespace, secrets: Secrets) -> Termination:
    run = run_config.load(options.config)
    place = _place(run, options)
    entry = find_entry(place.entry)
    token = secrets.token
    if isinstance(entry, AtroposEntry):
        from clotho_environment.commands.atropos import serve_atropos

        return _run(serve_atropos(entry.path, run, place, token=token, port=options.port, config_path=options.config))
    from clotho_environment.commands.serve import serve

    return _run(serve(entry, run, place, token=token, port=options.port, config_path=options.config))


def _process(options: argparse.Namespace, secrets: Secrets) -> Termination:
    from clotho_environment.commands.process import Target
    from clotho_environment.commands.trial import Tally, give_up_after

    os.environ.pop(API_KEY_VARIABLE, None)  # it is the tested model's, not for environment code
    run = None if options.base_url else run_config.load(options.config)
    place = _place(run, options)
    target = Target(
        base_url=run.endpoints.inference if run else options.base_url,
        model=options.model or (run.model.name if run else "default"),
        key=secrets.api_key or secrets.token,
        has_tokens=options.tokens,
    )
    with _output(options.output) as output:
        if not options.results:
            return _make_groups(options, place, target, output.write)
        tally = Tally(output.write, target.key)
        logging.getLogger().addHandler(tally)
        late = Termination(
            reason="EnvironmentFailed",
            message=f"the environment blocks the event loop; the deadline of {options.deadline:g} s passed",
        )
        give_up_after(options.deadline + LENIENCE_SECONDS, lambda: _leave(tally.add_to(late)))
        try:
            return tally.add_to(_make_groups(options, place, target, tally.write))
        except REFUSALS as error:
            return tally.add_to(Termination(reason="InvalidConfig", message=str(error)))


def _make_groups(
    options: argparse.Namespace, place: EnvironmentConfig, target: "Target", write_line: "WriteLine"
) -> Termination:
    from clotho_environment.commands.process import Order, process_entry

    order = Order(place.config, target, write_line, groups=options.groups, deadline_seconds=options.deadline)
    entry = find_entry(place.entry)
    if isinstance(entry, AtroposEntry):
        from clotho_environment.commands.atropos import process_atropos

        return _run(process_atropos(entry.path, order))
    return _run(process_entry(entry, order))


def _wait(options: argparse.Namespace, secrets: Secrets) -> Termination:
    from clotho_environment.commands.describe import check_isolated
    from clotho_environment.commands.wait import wait
    from clotho_environment.pod.tokenizer import tokenizer_path

    run = run_config.load(options.config)
    if os.environ.get(CHECK_VARIABLE) and (ending := _run(check_isolated(options.config, seconds=CHECK_SECONDS))):
        return ending
    return _run(wait(run, secrets.token, options.tokenizer or tokenizer_path(), options.timeout))


def _install(_: argparse.Namespace, __: Secrets) -> Termination:
    from clotho_environment.commands.install import install

    return install(os.environ)


def _describe(options: argparse.Namespace, _: Secrets) -> Termination:
    """Of a run's environment, its config is checked, too."""
    run = None if options.entry else run_config.load(options.config)
    place = _place(run, options)
    from clotho_environment.commands.describe import describe, serve_description
    from clotho_environment.commands.trial import give_up_after

    if options.serve:
        return _run(serve_description(place.entry, port=options.port, seconds=options.deadline))
    late = f"{place.entry} could not be imported within {options.deadline:g} s"
    failed = Termination(reason="EnvironmentFailed", message=late)
    give_up_after(options.deadline + LENIENCE_SECONDS, lambda: _leave(failed))
    entry = find_entry(place.entry)
    if isinstance(entry, AtroposEntry):
        from clotho_environment.commands.atropos import describe_atropos

        found = _run(describe_atropos(entry.path, seconds=options.deadline))
    else:
        if run is not None:
            from clotho_environment.commands.serve import check_config

            check_config(entry, run, place)
        found = describe(entry)
    with _output(options.output) as output:
        body = description.encode(description.bounded(found))
        output.write(msgspec.json.format(body, indent=2) + b"\n" if output.isatty() else body)
    return Termination(reason="Finished", message=f"described {place.entry}")


def _place(run: RunConfig | None, options: argparse.Namespace) -> EnvironmentConfig:
    """The environment of the run that the options, or the pod's variable, choose; its fields can be overridden."""
    name = options.environment or os.environ.get(ENVIRONMENT_VARIABLE, "")
    if run is None:
        if not options.entry:
            raise ConfigError(f"--entry is missing: which environment? Use {FORMS}")
        place = EnvironmentConfig(name=name or "environment", entry=options.entry)
    elif not name and len(run.environments) == 1:
        place = run.environments[0]
    elif not name:
        known = ", ".join(e.name for e in run.environments) or "none"
        raise ConfigError(
            f"which environment of the run? Set ${ENVIRONMENT_VARIABLE} or --environment; it has: {known}"
        )
    else:
        place = run.environment(name)
    fields = place.config | dict(_field(text) for text in options.fields)
    return msgspec.structs.replace(place, entry=options.entry or place.entry or place.name, config=fields)


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text}: write it as FIELD=VALUE")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {name}: the value is not YAML: {error}") from error


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = path.open("wb", buffering=0)
    except OSError as error:
        raise ConfigError(f"--output {path}: {error.strerror}") from error
    with file:
        yield file


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Not `uvloop.run`: that waits for every task, also for those that environment code refuses to end."""
    import uvloop

    loop = uvloop.new_event_loop()
    task = loop.create_task(coroutine)
    _cancel_when_interrupted(task)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _cancel_when_interrupted(task: asyncio.Task[Any]) -> None:
    """So that it ends its child processes. KeyboardInterrupt would not, and Python ignores it in some callbacks."""
    from clotho_environment.commands.trial import give_up_after

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.default_int_handler)  # a second one does not wait
        give_up_after(CLEANUP_SECONDS, lambda: _leave(INTERRUPTION, INTERRUPTED))
        task.get_loop().call_soon_threadsafe(task.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
