"""One TrainingRun: its state as last read, and what can be done with it."""

from __future__ import annotations

import time
from typing import Any, Final

from clotho.api.phases import FINISHED_PHASES
from clotho.cli.session.claims import delete_claim, own_claim, refuse_shared_claim
from clotho.cli.session.lookup import find_run_patiently
from clotho.client.connection import Connection
from clotho.client.display import as_html, live_display
from clotho.client.errors import ClothoError
from clotho.client.frames import Frame, frame, history_rows
from clotho.cluster.outcomes import ApiError
from clotho.workspace.history import component_of_title, kept_logs_of, of_last_attempt
from clotho.workspace.log_lines import readable
from clotho.workspace.logs import component_of, pod_title, read_log
from clotho.workspace.objects import Workspace
from clotho.workspace.progress import progress_of, rewards_of

Object = dict[str, Any]
POLL_SECONDS: Final = 1.0


class Run:
    def __init__(self, connection: Connection, body: Object) -> None:
        self._connection, self._workspace = connection, connection.workspace
        self.body = body

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def spec(self) -> Object:
        spec: Object = self.body["spec"]
        return spec

    @property
    def status(self) -> Object:
        status: Object = self.body.get("status", {})
        return status

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", "Pending"))

    @property
    def message(self) -> str:
        return str(self.status.get("message", ""))

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED_PHASES

    def refresh(self) -> Run:
        """Reads it again."""
        self.body = self._connection.call(self._workspace.get("TrainingRun", self.name))
        return self

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Run:
        """Until it is Completed, Failed or Stopped; shows the live view meanwhile. Raises TimeoutError."""
        show = live_display() if progress else None
        deadline = None if timeout is None else time.monotonic() + timeout
        rewards: dict[int, float] = {}
        while True:
            self.body = self._connection.call(find_run_patiently(self._workspace, self.name))
            rewards |= rewards_of(self.body)
            if show:
                show(self.body, rewards)
            if self.is_finished:
                return self
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self.name} is not finished after {timeout:g} s; it continues: {self.message}")
            time.sleep(POLL_SECONDS)

    def history(self) -> Frame:
        """Step, reward and loss over the run: a DataFrame, or a list of dictionaries without pandas."""
        return frame(history_rows(self.body))

    def logs(self, component: str = "", *, tail: int | None = None) -> str:
        """Of all pods that still exist, or of one component: trainer, api-server or environment."""
        return self._connection.call(_logs(self._workspace, self.body, component, tail))

    def stop(self) -> Run:
        """For good, after a final checkpoint."""
        self.body = self._connection.call(self._workspace.stop_run(self.name))
        return self

    def suspend(self) -> Run:
        self.body = self._connection.call(self._workspace.suspend_run(self.name))
        return self

    def resume(self) -> Run:
        self.body = self._connection.call(self._workspace.resume_run(self.name))
        return self

    def delete(self, *, with_claim: bool = False) -> None:
        """`with_claim`: also the volume claim with the checkpoints, where it was created for this run."""
        self._connection.call(_delete(self._workspace, self.body, with_claim=with_claim))

    def __repr__(self) -> str:
        step = progress_of(self.body).get("step", 0)
        return f"<Run {self.name}: {self.phase}, step {step}/{self.spec['training']['steps']}>"

    def _repr_html_(self) -> str:
        return as_html(self.body)


async def _logs(workspace: Workspace, run: Object, component: str, tail: int | None) -> str:
    name = run["metadata"]["name"]
    pods = [pod for pod in await workspace.pods_of(name) if component in ("", component_of(pod))]
    if not pods:
        return await _kept_logs(workspace, run, component, tail)
    lines = []
    for pod in pods:
        title = pod_title(pod)
        try:
            async for line in read_log(workspace, pod, tail=tail):
                lines += [f"{title}  {each}" for each in readable(line.decode(errors="replace"))]
        except ApiError as error:  # a pod that has not started does not hide the logs of the others
            lines.append(f"{title}  ({error.message})")
    return "\n".join(lines)


async def _kept_logs(workspace: Workspace, run: Object, component: str, tail: int | None) -> str:
    logs = of_last_attempt(await kept_logs_of(workspace, run))
    wanted = [log for log in logs if component in ("", component_of_title(log.title))]
    if not wanted:
        name = run["metadata"]["name"]
        raise ClothoError(f"run {name} has no {f'{component} ' if component else ''}pod now, and no log of one is kept")
    lines = [(log.title, line) for log in wanted for line in log.text.split("\n")[-(tail or 0) :]]
    return "\n".join(f"{title}  {each}" for title, line in lines for each in readable(line))


async def _delete(workspace: Workspace, body: Object, *, with_claim: bool) -> None:
    claim = own_claim(body)
    if with_claim:
        await refuse_shared_claim(workspace, body)
    await workspace.delete("TrainingRun", body["metadata"]["name"])
    if with_claim and claim:
        await delete_claim(workspace, claim)
