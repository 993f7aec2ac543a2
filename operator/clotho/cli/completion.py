"""`completion`: a few lines for the shell, which ask this program what could come next."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from clotho.cli import arguments
from clotho.cli.failure import Exit

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


def candidates(words: Sequence[str]) -> list[str]:
    """What the last word may become: commands, options, choices; nothing where only the cluster would know."""
    *before, current = words or [""]
    parser, rest = arguments.build("clotho"), list(before)
    while rest and (commands := parser.commands()) and rest[0] in commands:
        parser = commands[rest.pop(0)]
    known = parser.choices_after(rest[-1]) if rest else None
    if known is None:
        known = (
            parser.known_options() if current.startswith("-") else [*parser.commands(), *parser.positional_choices()]
        )
    return [word for word in known if word.startswith(current)]
