"""`completion`: a short script for the shell, which asks this program for the candidates."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from clotho.cli import arguments
from clotho.cli.failure import Exit, Failure
from clotho.cli.parser import Command, Group, Parser, add_cluster_options

if TYPE_CHECKING:
    from clotho.workspace.objects import OurKind, Workspace

KINDS: Final[Mapping[str, OurKind]] = {"RUN": "TrainingRun", "ENVIRONMENT": "Environment"}
SCRIPTS: Final = {
    "bash": """\
_clotho() {
    local IFS=$'\\n'
    COMPREPLY=($(clotho __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _clotho clotho kubectl-clotho
# For this session only: source <(clotho completion bash)
""",
    "zsh": """\
#compdef clotho kubectl-clotho
_clotho() {
    local -a found
    found=("${(@f)$(clotho __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _clotho clotho kubectl-clotho
# For this session only: source <(clotho completion zsh)
""",
    "fish": """\
function __clotho_complete
    set -l words (commandline -opc) (commandline -ct)
    clotho __complete $words[2..-1] 2>/dev/null
end
complete -c clotho -a '(__clotho_complete)'
complete -c kubectl-clotho -a '(__clotho_complete)'
# For this session only: clotho completion fish | source
""",
}


def script(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell], end="")
    return Exit.OK


def for_kubectl() -> int:
    """`kubectl_complete-clotho`, which kubectl calls to complete its plugin: the candidates, then a directive."""
    found = candidates(sys.argv[1:])
    print("\n".join([*found, ":4" if found else ":0"]))  # 4: no file names; 0: the shell's default
    return Exit.OK


def candidates(argv: Sequence[str]) -> list[str]:
    """What the last word may become: commands, options, values, and names that the cluster knows."""
    *before, current = argv or [""]
    place: Command | Group = arguments.TREE
    rest = list(before)
    while isinstance(place, Group) and rest and (found := place.find(rest[0])):
        place, rest = found, rest[1:]
    parser = place.parser("clotho")
    if isinstance(place, Group):
        known = parser.known_options() if current.startswith("-") else [] if rest else place.names()
    else:
        known = _in_command(parser, rest, current)
    return [word for word in known if word.startswith(current)]


def _in_command(parser: Parser, rest: list[str], current: str) -> list[str]:
    if rest and (values := parser.values_after(rest[-1])) is not None:
        return values
    if current.startswith("-"):
        return parser.known_options()
    return parser.positional_values() or _names(parser, rest)


def _names(parser: Parser, rest: list[str]) -> list[str]:
    """Runs or environments, where one is expected and none is named yet; nothing when the cluster does not answer."""
    kind = KINDS.get(parser.first_positional())
    if kind is None:
        return []
    cluster = Parser("clotho", "", add_help=False)
    add_cluster_options(cluster)
    options, named = cluster.parse_known_args(rest)
    if any(not word.startswith("-") for word in named) and not parser.takes_several():
        return []
    from clotho.cli.session.connection import run_connected

    found: list[str] = []

    async def ask(_: argparse.Namespace, workspace: Workspace) -> int:
        found.extend(each["metadata"]["name"] for each in await workspace.all(kind))
        return Exit.OK

    with contextlib.suppress(Failure):
        run_connected(ask, options)
    return found
