"""A tree of commands over argparse: mistakes are one line, and only the parser of the called command is built."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from clotho.cli.failure import Exit
from clotho_contract.nearest import nearest

FORMATS = ("table", "json", "yaml")


class OneOf:
    """The type of an option with few values; completion reads `values`."""

    def __init__(self, *values: str) -> None:
        self.values = values

    def __call__(self, text: str) -> str:
        if text not in self.values:
            raise argparse.ArgumentTypeError(not_one_of(text, self.values))
        return text


def not_one_of(word: str, known: Sequence[str]) -> str:
    return f"{word!r} is not one of: {', '.join(known)}{nearest(word, known)}"


class Parser(argparse.ArgumentParser):
    """The options of one command. `take` adds one, and remembers it for completion."""

    def __init__(self, prog: str, description: str, **more: Any) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)
        self.taken: list[argparse.Action] = []

    def take(self, *names: str, group: Any = None, **settings: Any) -> None:
        self.taken.append((group or self).add_argument(*names, **settings))

    def known_options(self) -> list[str]:
        return ["-h", "--help", *(option for action in self.taken for option in action.option_strings)]

    def values_after(self, option: str) -> list[str] | None:
        """The values of an option, empty where any is allowed; None for another word, or an option without a value."""
        for action in self.taken:
            if option in action.option_strings and action.nargs != 0:
                return list(action.type.values) if isinstance(action.type, OneOf) else []
        return None

    def positional_values(self) -> list[str]:
        types = [action.type for action in self.taken if not action.option_strings]
        return [value for each in types if isinstance(each, OneOf) for value in each.values]

    def first_positional(self) -> str:
        """Its name in the help: RUN, ENVIRONMENT, ..."""
        return next((str(action.metavar) for action in self.taken if not action.option_strings), "")

    def takes_several(self) -> bool:
        return any(action.nargs == "+" for action in self.taken if not action.option_strings)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(Exit.USAGE)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        options, unknown = self.parse_known_args(argv)
        if unknown:
            word = unknown[0]
            self.error(f"unknown argument {word}{nearest(word.partition('=')[0], self.known_options())}")
        return options


class Command(NamedTuple):
    name: str
    title: str
    run: str  # module:function in clotho.cli.commands, imported when it is called
    describe: Callable[[Parser], None] = lambda parser: None
    formats: Sequence[str] = FORMATS  # of --output; empty: there is no such option
    cluster: bool = True
    epilog: str = ""

    def parser(self, prog: str) -> Parser:
        parser = Parser(prog, sentence(self.title), **_as_written(self.epilog, prog))
        parser.set_defaults(
            run=f"clotho.cli.commands.{self.run}", parser=parser, kubeconfig=None, context="", namespace=""
        )
        self.describe(parser)
        if self.formats:
            parser.take(
                "-o",
                "--output",
                type=OneOf(*self.formats),
                default=self.formats[0],
                metavar="FORMAT",
                help=_either(self.formats),
            )
        if self.cluster:
            add_cluster_options(parser)
        return parser


class Group(NamedTuple):
    name: str
    title: str
    members: Sequence[Command | Group]
    epilog: str = ""
    default: str = ""  # the member that options without a command belong to
    has_version: bool = False  # whether it takes --version

    def find(self, name: str) -> Command | Group | None:
        return next((each for each in self.members if each.name == name), None)

    def names(self) -> list[str]:
        return [each.name for each in self.members]

    def parser(self, prog: str) -> Parser:
        """For its help and its mistakes only; the members parse for themselves."""
        parser = Parser(prog, sentence(self.title), usage=f"{prog} COMMAND ...", **_as_written(self.epilog, prog))
        if self.has_version:
            parser.take("--version", action="store_true", help="show the version of this program and exit")
        commands = parser.add_argument_group("commands", f"`{prog} COMMAND --help` explains one.")
        for each in self.members:
            commands.add_argument(each.name, help=each.title)
        return parser


def sentence(title: str) -> str:
    return f"{title[:1].upper()}{title[1:]}."


def _as_written(epilog: str, prog: str) -> dict[str, Any]:
    """An epilog keeps its lines."""
    if not epilog:
        return {}
    return {"epilog": epilog.replace("{prog}", prog), "formatter_class": argparse.RawDescriptionHelpFormatter}


def _either(formats: Iterable[str]) -> str:
    first, *others = formats
    return f"{first} (default), {' or '.join(others)}"


def add_cluster_options(parser: Parser) -> None:
    group = parser.add_argument_group("cluster")
    parser.take("-n", "--namespace", group=group, default="", help="default: the namespace of the context")
    parser.take("--context", group=group, default="", help="a context of the kubeconfig; default: the current one")
    parser.take("--kubeconfig", group=group, type=Path, metavar="FILE", help="default: $KUBECONFIG or ~/.kube/config")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 1 to 65535")
    return int(text)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int:
    """`90`, `90s`, `15m`, `2h` or `1d`."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 15m, 2h or 1d")
    return int(number) * unit
