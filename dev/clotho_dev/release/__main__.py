"""`python -m clotho_dev.release`: push images, pack and push the chart, set the version of a release."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import builders, destination, push


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pushing = commands.add_parser("push", help="build every image, push it, print its digest")
    pushing.add_argument("--registry", required=True, help="host[:port][/path]")
    pushing.add_argument("--tag", required=True)
    return parser


def _to(registry: str) -> destination.Destination:
    return destination.parse(registry, plain_http=os.environ.get("PLAIN_HTTP") == "1")


def _push(registry: str, tag: str) -> None:
    to = _to(registry)
    digests = push.push(to, tag, builders.choose(os.environ.get("BUILDER")))
    values = push.DIST / "images.yaml"
    values.write_text(push.chart_values(to, digests))
    print(push.table(to, digests))
    shown = values.relative_to(Path.cwd()) if values.is_relative_to(Path.cwd()) else values
    print(f"""
Install them:
  helm upgrade --install clotho charts/clotho --namespace clotho-system --create-namespace --wait --values {shown}""")


def main() -> None:
    arguments = _parser().parse_args()
    try:
        match arguments.command:
            case "push":
                _push(arguments.registry, arguments.tag)
    except ClusterError as error:
        sys.exit(f"{arguments.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
