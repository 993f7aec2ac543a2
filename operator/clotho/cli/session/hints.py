"""Commands that a message suggests, complete with the namespace and cluster that the user named."""

from __future__ import annotations

import argparse
import shlex


def hint(options: argparse.Namespace, *argv: str, namespace: str = "") -> str:
    """`clotho run watch gsm8k -n lab`."""
    given = {
        "-n": namespace or options.namespace,
        "--context": options.context,
        "--kubeconfig": options.kubeconfig,
    }
    where = [word for option, value in given.items() if value for word in (option, str(value))]
    return f"{options.program} {shlex.join([*argv, *where])}"
