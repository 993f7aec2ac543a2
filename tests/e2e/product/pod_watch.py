"""Every pod that a selector ever matched, as a watch reported them: how many there were, how many at a time."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any, Self

from clotho_dev.cluster.kubectl import Kubectl

FINISHED = {"Succeeded", "Failed"}


class PodWatch:
    def __init__(self, kubectl: Kubectl, selector: str) -> None:
        scope = [f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}"]
        query = ["get", "pods", f"--selector={selector}", "--watch", "--output-watch-events", "--output=json"]
        self._argv = [str(kubectl.program), *scope, *query]
        self._text = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def wait(self) -> None:
        """Until kubectl ends by itself."""
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or []:
            self._text += line

    def pods(self) -> set[str]:
        """The uids of all that were seen."""
        return {event["object"]["metadata"]["uid"] for event in self._events()}

    def most_at_once(self) -> int:
        """How many were unfinished at the same time, at most."""
        unfinished: set[str] = set()
        most = 0
        for event in self._events():
            uid = event["object"]["metadata"]["uid"]
            is_over = event["type"] == "DELETED" or event["object"]["status"].get("phase") in FINISHED
            unfinished = unfinished - {uid} if is_over else unfinished | {uid}
            most = max(most, len(unfinished))
        return most

    def _events(self) -> list[dict[str, Any]]:
        """Complete documents only; kubectl writes them one after the other."""
        decoder, events, position = json.JSONDecoder(), [], 0
        text = self._text
        while position < len(text):
            try:
                event, end = decoder.raw_decode(text, position)
            except json.JSONDecodeError:
                break
            events.append(event)
            position = end + (len(text[end:]) - len(text[end:].lstrip()))
        return events
