"""`env`: the environments of a namespace, and those found in local files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clotho.authoring.run_decided import DECIDED_BY
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.discovery import Discovery
from clotho.cli.files.discovery import discover as discover_in
from clotho.cli.files.manifests import environment_manifests
from clotho.cli.terminal import output
from clotho.cli.terminal.screen import page_width
from clotho.plan.wording import counted

if TYPE_CHECKING:
    from clotho.workspace.objects import Workspace


def discover(options: argparse.Namespace) -> int:
    """Problems of single files are warnings on standard error; the other files are still used."""
    if options.image_path and not options.image:
        raise Failure("--image-path is a path in an image: name it with --image", Exit.USAGE)
    if options.image_path and options.config_map:
        raise Failure("--image-path and --config-map exclude each other: files come from one of them", Exit.USAGE)
    found = discover_in(options.paths)
    is_usable = bool(found.environments)
    if options.write or options.config_map or options.image:
        needs_atropos = not options.image and any(each.flavour == "atropos" for each in found.environments)
        manifests = environment_manifests(
            found,
            options.paths,
            image=options.image,
            atropos_image=_atropos_image(options) if needs_atropos else "",
            image_path=options.image_path,
            as_config_map=options.config_map,
        )
        _write(manifests, options.write)
        is_usable = bool(manifests)
    else:
        output.show(options.output, _found(found), _table(found))
    for problem in found.problems:
        output.note(f"warning: {problem}")
    return Exit.OK if is_usable else Exit.NOT_FOUND


def _atropos_image(options: argparse.Namespace) -> str:
    """Of the release that the cluster has; empty where none can be asked."""
    from clotho.cli.session.connection import run_connected
    from clotho.cli.session.installation import environment_variant, operator_deployment

    async def ask(options: argparse.Namespace, workspace: Workspace) -> str:
        deployment = await operator_deployment(workspace, options.operator_namespace)
        return environment_variant(deployment, "atropos")

    try:
        return run_connected(ask, options)
    except Failure:
        return ""


def _found(found: Discovery) -> dict[str, Any]:
    environments = [
        {
            "name": each.name,
            "class_name": each.class_name,
            "file_path": each.file,
            "description": each.description,
            "config_class": each.config_class,
        }
        for each in found.environments
    ]
    return {
        "environments": environments,
        "count": len(environments),
        "warnings": [{"file_path": str(each.path), "problem": each.what} for each in found.problems],
    }


def _table(found: Discovery) -> list[str]:
    body = [[each.name, each.class_name, each.config_class, each.file, each.description] for each in found.environments]
    lines = output.rows(
        ["NAME", "CLASS", "CONFIG", "FILE", "DESCRIPTION"], body, "No environments found.", page_width()
    )
    if body:
        lines += [
            "",
            "Next: add --config-map (or --image IMAGE) and --write environments.yaml, then kubectl apply.",
        ]
    return lines


def _write(manifests: list[dict[str, Any]], path: Path | None) -> None:
    text = output.to_yaml(*manifests)
    if path is None or str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}", Exit.USAGE) from error
    output.note(f"wrote {counted(len(manifests), 'manifest')} to {path}; next: kubectl apply --server-side -f {path}")


async def list_all(options: argparse.Namespace, workspace: Workspace) -> int:
    items = await workspace.all("Environment")
    if not items:
        from clotho.cli.session.lookup import require_namespace

        await require_namespace(workspace)
    body = [
        [
            each["metadata"]["name"],
            _ready(each),
            each.get("status", {}).get("className", ""),
            each["spec"].get("description") or each.get("status", {}).get("description", ""),
            _why_not_ready(each),
        ]
        for each in items
    ]
    header = ["NAME", "READY", "CLASS", "DESCRIPTION", "MESSAGE"]
    empty = f"No environments in {workspace.namespace}; `env discover PATH` finds some."
    output.show(options.output, items, output.rows(header, body, empty, page_width()))
    return Exit.OK


def _ready(environment: dict[str, Any]) -> str:
    conditions = environment.get("status", {}).get("conditions", ())
    return next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown")


def _why_not_ready(environment: dict[str, Any]) -> str:
    return "" if _ready(environment) == "True" else _message(environment)


def _message(environment: dict[str, Any]) -> str:
    message: str = environment.get("status", {}).get("message") or "Not described by the operator yet."
    return " ".join(message.split())


async def describe(options: argparse.Namespace, workspace: Workspace) -> int:
    catalogue = {each["metadata"]["name"]: each for each in await workspace.all("Environment")}
    if options.name not in catalogue:
        from clotho.cli.session.lookup import unknown

        raise await unknown(workspace, "environment", options.name, catalogue)
    environment = catalogue[options.name]
    status = environment.get("status", {})
    spec = environment["spec"]
    own = spec.get("config", {})
    body = [
        [each["name"], each.get("type", "any"), _default(each, own), _limits(each), each.get("description", "")]
        for each in status.get("fields", ())
    ]
    lines = [
        f"{options.name}  {status.get('className', '')}".rstrip(),
        spec.get("description") or status.get("description", ""),
        f"entry {spec.get('entry') or options.name}" + (f", image {spec['image']}" if spec.get("image") else ""),
        f"ready {_ready(environment)}: {_message(environment)}",
        "",
        *output.rows(["FIELD", "TYPE", "DEFAULT", "LIMITS", "DESCRIPTION"], body, "No fields are known.", page_width()),
    ]
    if omitted := status.get("omittedFields"):
        lines.append(f"({omitted} more fields are not described: there are too many)")
    output.show(options.output, environment, lines)
    return Exit.OK


def _default(field: dict[str, Any], own: Mapping[str, Any]) -> str:
    """What a run gets by default; `own` is the config of the Environment itself."""
    if field["name"] in own:
        return output.compact(own[field["name"]])
    if field.get("fixed") and field["name"] in DECIDED_BY:
        return f"({DECIDED_BY[field['name']]})"
    if field.get("required"):
        return "(required)"
    return output.compact(field.get("default"))


def _limits(field: dict[str, Any]) -> str:
    bounds = [
        f"{sign} {field[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if field.get(key) is not None
    ]
    if field.get("enum"):
        bounds.append(" | ".join(map(str, field["enum"])))
    if field.get("fixed"):
        bounds.append("fixed")
    return ", ".join(bounds)
