"""`python -m clotho_dev.release`: push images, pack and push the chart, set the version of a release."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from clotho_dev.cluster import binaries, images
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import builders, chart, destination, prepare, push, version

INSTALL = (
    "helm upgrade --install clotho charts/clotho --namespace clotho-system --create-namespace --wait"
    " --values dist/images.yaml"
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pushing = commands.add_parser("push", help="build every image, push it, print its digest")
    pushing.add_argument("--registry", required=True, help="host[:port][/path]")
    pushing.add_argument("--tag", required=True)
    pushing.add_argument(
        "--variants", default="", help="more than all of them: atropos, verifiers, tinker, vllm, by commas"
    )
    packing = commands.add_parser("chart-package", help="pack the chart into dist/")
    packing.add_argument("--digests", default="", help="what `push` wrote: the package names these images")
    chart_pushing = commands.add_parser("chart-push", help="push the packed chart as an OCI artefact")
    chart_pushing.add_argument("--registry", required=True, help="host[:port][/path]")
    release = commands.add_parser("release", help="set a new version everywhere, and pack the chart")
    release.add_argument("--version", required=True)
    release.add_argument("--digests", default="")
    return parser


def _to(registry: str) -> destination.Destination:
    return destination.parse(registry, plain_http=os.environ.get("PLAIN_HTTP") == "1")


def _push(registry: str, tag: str, variants: str) -> None:
    to = _to(registry)
    digests = push.push(to, tag, builders.choose(os.environ.get("BUILDER")), images.with_variants(variants))
    (push.DIST / "images.yaml").write_text(push.chart_values(to, digests))
    (push.DIST / "images.txt").write_text(push.listing(to, digests))
    print(f"{push.table(to, digests)}\n\nInstall them:\n  {INSTALL}")


def _pushed(digests: str) -> prepare.Pushed | None:
    return prepare.read_pushed(Path(digests)) if digests else None


def _pack(digests: str) -> None:
    print(chart.pack(_helm(), push.DIST, _pushed(digests)))


def _push_chart(registry: str) -> None:
    print(chart.push(_helm(), chart.package(push.DIST), _to(registry)))


def _release(text: str, digests: str) -> None:
    from clotho_dev.chart import generate  # needs the operator's own packages

    new, pushed = version.parse(text), _pushed(digests)
    prepare.require_clean_tree()
    prepare.write_files(prepare.edited(prepare.read_files(), new, datetime.now(UTC).date(), pushed))
    generate.write(generate.install_files(_helm()))
    print(f"""{chart.pack(_helm(), push.DIST)}

The version is {new} everywhere. Review it and publish it:
  git commit --all --message 'release: {new}'
  git tag v{new}""")


def _helm() -> Path:
    return binaries.find(["helm"])["helm"]


def main() -> None:
    arguments = _parser().parse_args()
    try:
        match arguments.command:
            case "push":
                _push(arguments.registry, arguments.tag, arguments.variants)
            case "chart-package":
                _pack(arguments.digests)
            case "chart-push":
                _push_chart(arguments.registry)
            case "release":
                _release(arguments.version, arguments.digests)
    except ClusterError as error:
        sys.exit(f"{arguments.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
