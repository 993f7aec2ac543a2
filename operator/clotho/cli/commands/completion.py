"""`completion`: a few lines for the shell, which ask this program what could come next."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from clotho.cli import arguments
from clotho.cli.failure import Exit, Failure

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
# For now: source <(clotho completion bash)
""",
    "zsh": """\
#compdef clotho kubectl-clotho
_clotho() {
    local -a found
    found=("${(@f)$(clotho __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _clotho clotho kubectl-clotho
# For now: source <(clotho completion zsh)
""",
    "fish": """\
function __clotho_complete
    set -l words (commandline -opc) (commandline -ct)
    clotho __complete $words[2..-1] 2>/dev/null
end
complete -c clotho -a '(__clotho_complete)'
complete -c kubectl-clotho -a '(__clotho_complete)'
# For now: clotho completion fish | source
""",
}


def script(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell], end="")
    return Exit.OK


def for_kubectl() -> int:
    """`kubectl_complete-clotho`, which kubectl asks for its plugin: the words, then what the shell may add to them."""
    found = candidates(sys.argv[1:])
    print("\n".join([*found, ":4" if found else ":0"]))  # 4: no file names; 0: whatever the shell does by itself
    return Exit.OK


def candidates(words: Sequence[str]) -> list[str]:
    """What the last word may become: commands, options, choices, and names that the cluster knows."""
    *before, current = words or [""]
    parser, rest = arguments.build("clotho"), list(before)
    while rest and (commands := parser.commands()) and rest[0] in commands:
        parser = commands[rest.pop(0)]
    known = parser.choices_after(rest[-1]) if rest else None
    if known is None and current.startswith("-"):
        known = parser.known_options()
    if known is None:
        known = [*parser.commands(), *parser.positional_choices()] or _names(parser, rest)
    return [word for word in known if word.startswith(current)]


def _names(parser: arguments.Parser, rest: list[str]) -> list[str]:
    """Runs or environments, where one is wanted and none is named yet; nothing when the cluster cannot say."""
    kind = KINDS.get(parser.first_positional())
    if kind is None:
        return []
    cluster = arguments.Parser(add_help=False, allow_abbrev=False)
    arguments.add_cluster_options(cluster)
    options, named = cluster.parse_known_args(rest)
    if any(not word.startswith("-") for word in named):
        return []
    from clotho.cli.session.connection import run_connected

    found: list[str] = []

    async def ask(_: argparse.Namespace, workspace: Workspace) -> int:
        found.extend(each["metadata"]["name"] for each in await workspace.all(kind))
        return Exit.OK

    with contextlib.suppress(Failure):
        run_connected(ask, options)
    return found
