"""Run as a script by the interpreter that has atroposlib: `launch.py FILE ARGUMENTS` is `python FILE ARGUMENTS`,
except that transformers 5 tokenizes conversations to lists of token ids, as the version that Atropos was written for.

It stands alone on purpose: that interpreter need not have this package.
"""

import functools
import runpy
import sys
from pathlib import Path
from typing import Any


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


def main() -> None:
    file = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path[0] = str(file.resolve().parent)
    tokenize_to_lists()
    runpy.run_path(str(file), run_name="__main__")


if __name__ == "__main__":
    main()
