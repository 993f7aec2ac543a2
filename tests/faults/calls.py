"""What the operator asks the API server for, named so that the same request has the same name in every repetition."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from aiohttp import web

Body = dict[str, Any]
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
UNCOUNTED = frozenset({"events", "leases"})  # neither is part of a run's life
_PATH = re.compile(r"/(?:api|apis/[^/]+)/v[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?P<rest>.*)")
_RUN_ID = re.compile(r"-[0-9a-f]{8}(?=-|$)")


@dataclass(frozen=True)
class Write:
    """One write, by what it does and not by when: writes that go out together arrive in any order.

    The n-th write of the same name is another one; a status is named by its phase.
    """

    verb: str
    target: str  # plural[/subresource]
    name: str  # without the run's id
    occurrence: int = 1
    phase: str = ""

    def __str__(self) -> str:
        phase = f"={self.phase}" if self.phase else ""
        return f"{self.verb} {self.target} {self.name}{phase} #{self.occurrence}"


@dataclass(frozen=True)
class Call:
    """A request as the proxy sees it."""

    method: str
    plural: str
    name: str
    subresource: str
    is_watch: bool
    is_dry_run: bool
    body: Body

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and not self.name and not self.is_watch

    @property
    def write(self) -> Write | None:
        if self.method not in VERBS or self.plural in UNCOUNTED or not self.plural:
            return None
        verb = f"{VERBS[self.method]}{'(dry run)' if self.is_dry_run else ''}"
        target = f"{self.plural}/{self.subresource}" if self.subresource else self.plural
        name = self.name or self.body.get("metadata", {}).get("name", "")
        phase = self.body.get("status", {}).get("phase", "") if self.subresource == "status" else ""
        return Write(verb, target, _RUN_ID.sub("", name), phase=phase)


def parse(request: web.BaseRequest, raw: bytes) -> Call:
    match = _PATH.fullmatch(request.path)
    parts = [part for part in match["rest"].split("/") if part] if match else []
    return Call(
        method=request.method,
        plural=match["plural"] if match else "",
        name=parts[0] if parts else "",
        subresource=parts[1] if len(parts) > 1 else "",
        is_watch="watch" in request.query,
        is_dry_run="dryRun" in request.query,
        body=msgspec.json.decode(raw, type=Body) if raw and request.method in VERBS else {},
    )


class Numbering:
    """Gives each write its occurrence."""

    def __init__(self) -> None:
        self._seen: Counter[Write] = Counter()

    def number(self, write: Write) -> Write:
        self._seen[write] += 1
        return replace(write, occurrence=self._seen[write])
