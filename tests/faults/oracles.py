"""What must hold after every case: pure functions over what was recorded; each returns its complaints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from faults.masking import State, differences
from faults.proxy import Recorded

ACCEPTED, CREATED = 200, 201
_TRACE = re.compile(r'Traceback|"exception"')
REPEATED_AT_MOST = 2  # times as many writes as the reference: more is a loop
SPARE_WRITES = 25


def equal_states(stage: str, expected: State, found: State) -> list[str]:
    return [f"{stage}: {line}" for line in differences(expected, found)]


def created(recorded: Sequence[Recorded]) -> Counter[str]:
    """How often each object was really made."""
    return Counter(
        f"{each.write.target} {each.write.name}"
        for each in recorded
        if each.code == CREATED and each.write.verb in ("create", "patch")
    )


def deleted(recorded: Sequence[Recorded]) -> Counter[str]:
    return Counter(
        f"{each.write.target} {each.write.name}"
        for each in recorded
        if each.write.verb == "delete" and each.code in (200, 202)
    )


def same_creates_and_deletes(reference: Sequence[Recorded], recorded: Sequence[Recorded]) -> list[str]:
    complaints = []
    for what, count in (("created", created), ("deleted", deleted)):
        expected, found = count(reference), count(recorded)
        complaints += [
            f"{what} {found[key]} times instead of {expected[key]}: {key}"
            for key in sorted({*expected, *found})
            if expected[key] != found[key]
        ]
    return complaints


def no_loop(reference: Sequence[Recorded], recorded: Sequence[Recorded]) -> list[str]:
    allowed = REPEATED_AT_MOST * len(reference) + SPARE_WRITES
    if len(recorded) <= allowed:
        return []
    most = Counter(f"{each.write.verb} {each.write.target} {each.write.name}" for each in recorded).most_common(3)
    return [f"{len(recorded)} writes, the reference needs {len(reference)}; most often: {most}"]


def no_traceback(log: str) -> list[str]:
    lines = log.splitlines()
    return [f"traceback in the log: {line[:2000]}" for line in lines if _TRACE.search(line)][:2]


def one_trainer(most_seen: int) -> list[str]:
    return [f"{most_seen} trainers were alive at the same time"] if most_seen > 1 else []


def steps_monotone(recorded: Sequence[Recorded]) -> list[str]:
    """In the statuses that the server accepted, the step never decreases within an attempt, nor the attempt itself."""
    complaints: list[str] = []
    last: dict[str, tuple[int, int]] = {}
    for each in recorded:
        if each.write.target != "trainingruns/status" or each.code != ACCEPTED:
            continue
        run, status = each.body["metadata"]["uid"], each.body["status"]
        before, now = last.get(run, (0, 0)), (status.get("attempt", 0), (status.get("progress") or {}).get("step", 0))
        if now < before:
            complaints.append(f"(attempt, step) went from {before} to {now}")
        last[run] = now
    return complaints


def claim_kept(uids: Sequence[str]) -> list[str]:
    return [f"the claim was replaced: {sorted(set(uids))}"] if len(set(uids)) > 1 else []
