"""`Client`: the runs of a namespace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clotho.authoring.changes import edited, spec_problems, with_change
from clotho.authoring.draft import RefusedEditError
from clotho.cli.files.manifests import Manifest
from clotho.cli.files.run_files import read_run_and_maps
from clotho.cli.session.creation import create_run
from clotho.cli.session.lookup import all_runs, find_run
from clotho.client.connection import Connection
from clotho.client.errors import ClothoError, explained
from clotho.client.frames import Frame, frame, run_row
from clotho.client.run import Run
from clotho.cluster.login import load_as_kubectl
from clotho.workspace.drafting import begin_draft, fresh_name
from clotho.workspace.objects import Workspace

Object = dict[str, Any]
Source = Mapping[str, Any] | str | os.PathLike[str]


class Client:
    """With the permissions of your kubeconfig; `namespace` and `context` default to those of kubectl."""

    def __init__(
        self, namespace: str = "", *, context: str = "", kubeconfig: str | os.PathLike[str] | None = None
    ) -> None:
        with explained():
            credentials = load_as_kubectl(Path(kubeconfig) if kubeconfig else None, context)
        self._connection = Connection(credentials, namespace)

    @property
    def namespace(self) -> str:
        return self._connection.workspace.namespace

    def create(
        self,
        source: Source | None = None,
        *,
        name: str = "",
        environment: str = "",
        model: str = "",
        steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Run:
        """From a manifest or a spec, from a file with one, or from an Environment with `model` and `steps`.

        `settings`: fields by their paths, as in `clotho run start --set` (`{"training.learningRate": 1e-5}`).
        """
        if (source is None) == (not environment):
            raise ClothoError("give a manifest, a spec or a file, or name an environment; one of them")
        changes = {**(settings or {})}
        changes |= {"model.name": model} if model else {}
        changes |= {"training.steps": steps} if steps is not None else {}
        workspace = self._connection.workspace
        with explained():
            manifest, maps = ({}, []) if source is None else _read(source)
        if source is None:
            manifest = self._connection.call(_drafted(workspace, environment, name, changes))
        else:
            manifest = _changed(manifest, name, changes)
        return Run(self._connection, self._connection.call(create_run(workspace, manifest, maps)))

    def run(self, name: str) -> Run:
        return Run(self._connection, self._connection.call(find_run(self._connection.workspace, name)))

    def runs(self) -> list[Run]:
        bodies = self._connection.call(all_runs(self._connection.workspace))
        return [Run(self._connection, body) for body in bodies]

    def results(self) -> Frame:
        """A row for each run of the namespace: a DataFrame, or a list of dictionaries without pandas."""
        return frame([run_row(run.body) for run in self.runs()])

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(source: Source) -> tuple[Manifest, list[Manifest]]:
    if isinstance(source, Mapping):
        if (kind := source.get("kind", "TrainingRun")) != "TrainingRun":
            raise ClothoError(f"this manifest is of kind {kind}, not TrainingRun")
        return (dict(source) if "spec" in source else {"spec": dict(source)}), []
    return read_run_and_maps(Path(source))


def _changed(manifest: Manifest, name: str, changes: Mapping[str, Any]) -> Manifest:
    metadata = manifest.get("metadata", {})
    chosen = name or metadata.get("name", "")
    if not chosen:
        raise ClothoError("the run has no name; give one with name=")
    spec: Object = manifest["spec"]
    for field, value in changes.items():
        try:
            spec = with_change(spec, field, value)
        except RefusedEditError as refused:
            raise ClothoError(f"settings: {field}: {refused}") from refused
    if problems := spec_problems(chosen, spec):
        raise ClothoError(f"run {chosen} is not valid: {'; '.join(problems)}")
    return {"metadata": {**metadata, "name": chosen}, "spec": spec}


async def _drafted(workspace: Workspace, environment: str, name: str, changes: Mapping[str, Any]) -> Manifest:
    draft = await begin_draft(workspace, environment, {})
    for field, value in changes.items():
        draft = edited(draft, field, value)
    chosen = name or fresh_name(environment)
    if problems := draft.problems(chosen):
        raise ClothoError("; ".join(problems))
    return {"metadata": {"name": chosen}, "spec": draft.run_spec()}
