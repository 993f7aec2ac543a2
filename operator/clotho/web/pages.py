"""What each page is made of: where its parts come from, and the parts themselves, encoded. Reads mirrors only."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho.api.history import read_history
from clotho.api.metadata import Metadata
from clotho.cluster.client import Object
from clotho.cluster.outcomes import Forbidden, NotFound, Unauthorized
from clotho.plan.model import Kind
from clotho.render.names import history_name
from clotho.web.feed import Feed, Held, Source, config_map, events_of, of_kind
from clotho.web.untrusted import shown
from clotho.web.views.catalogue import environment_view, inference_test_view
from clotho.web.views.comparison import compared_settings
from clotho.web.views.run import history_parts, run_parts
from clotho.web.views.runs import queue_positions, run_row

Parts = dict[str, bytes]
MOST_COMPARED: Final = 12
SCOPE: Final = "scope"  # the part that explains what is not shown


class RunName(Struct, frozen=True):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Page(Struct, frozen=True):
    """`parts()` is the present state, cheap when little has changed. Where `is_outdated()`, other objects are needed:
    the page has to be opened again."""

    parts: Callable[[], Parts]
    is_outdated: Callable[[], bool] = lambda: False


class EncodedRows:
    """The encoded view of each object, made again only when the object has changed."""

    def __init__(self, view: Callable[[Object], Any]) -> None:
        self._view = view
        self._known: dict[tuple[str, str], tuple[str, bytes]] = {}

    def parts(self, objects: Mapping[tuple[str, str], Object]) -> Parts:
        known: dict[tuple[str, str], tuple[str, bytes]] = {}
        for key, body in objects.items():
            version = f"{body['metadata'].get('uid')}/{body['metadata'].get('resourceVersion')}"
            before = self._known.get(key)
            known[key] = before if before and before[0] == version else (version, encoded(self._view(body)))
        self._known = known
        return {f"{namespace}/{name}": row for (namespace, name), (_, row) in known.items()}


class Rows:
    """The rows of every kind, shared by all pages of a feed."""

    def __init__(self) -> None:
        self.of: Mapping[Kind, EncodedRows] = {
            "TrainingRun": EncodedRows(run_row),
            "Environment": EncodedRows(environment_view),
            "InferenceTest": EncodedRows(inference_test_view),
        }


@asynccontextmanager
async def table_page(feed: Feed, rows: Rows, kind: Kind, namespaces: Sequence[str] = ()) -> AsyncIterator[Page]:
    """A row for each object of a kind, by namespace and name."""
    sources = await feed.everywhere(kind, namespaces)
    async with feed.hold(*sources) as held:
        await held.ready()

        def parts() -> Parts:
            objects = held.objects()
            found = rows.of[kind].parts(objects)
            if kind == "TrainingRun" and (positions := queue_positions(objects.values())):
                found["queue"] = encoded(positions)
            return {**found, SCOPE: encoded(scope(held, sources))}

        yield Page(parts)


def scope(held: Held, sources: Sequence[Source]) -> Mapping[str, Any]:
    if not sources:
        return {"allNamespaces": False, "problem": "These credentials cannot list all namespaces: name those to show."}
    whole = "/namespaces/" not in sources[0].folder
    return {"allNamespaces": whole, "problem": explain(held) if not held.objects() or whole else ""}


def explain(held: Held) -> str:
    match held.problem:
        case None:
            return ""
        case Unauthorized():
            return "The cluster rejects this token: it has expired or belongs to another cluster."
        case Forbidden() as error:
            return f"Not permitted: {error.message}"
        case NotFound() as error if "requested resource" in error.message or "page not found" in error.message:
            return "Clotho is not installed in this cluster."
        case error:
            return f"The cluster does not answer: {error.message}"


@asynccontextmanager
async def run_page(feed: Feed, name: RunName) -> AsyncIterator[Page]:
    async with feed.hold(of_kind("TrainingRun", name.namespace, **{"metadata.name": name.name})) as runs:
        await runs.ready()
        metadata = _metadata(runs, name)
        kept = config_map(name.namespace, history_name(metadata))
        async with feed.hold(kept) as history, feed.hold(events_of(name.namespace, name.name)) as events:
            await history.ready()
            await events.ready()

            def parts() -> Parts:
                body = runs.objects().get((name.namespace, name.name))
                if body is None:
                    return {"missing": encoded(explain(runs) or f"There is no run {name}.")}
                about = [e for e in events.objects().values() if e["involvedObject"].get("uid") == metadata.uid]
                found = run_parts(body, read_history(_data(history)), about)
                unread = [explain(each) for each in (history, events) if isinstance(each.problem, Forbidden)]
                return {key: encoded(value) for key, value in {**found, "unread": unread}.items()}

            yield Page(parts, lambda: _metadata(runs, name).uid != metadata.uid)


@asynccontextmanager
async def comparison_page(feed: Feed, names: Sequence[RunName]) -> AsyncIterator[Page]:
    sources = [of_kind("TrainingRun", each.namespace, **{"metadata.name": each.name}) for each in names]
    async with feed.hold(*sources) as runs:
        await runs.ready()
        uids = [_metadata(runs, each).uid for each in names]
        kept = [config_map(each.namespace, history_name(_metadata(runs, each))) for each in names]
        async with feed.hold(*kept) as histories:
            await histories.ready()

            def parts() -> Parts:
                found, maps = runs.objects(), histories.objects()
                bodies = [found[each.namespace, each.name] for each in names if (each.namespace, each.name) in found]
                return {
                    **{str(_name(body)): encoded(_curves(body, maps)) for body in bodies},
                    "settings": encoded({"runs": [str(_name(body)) for body in bodies], **compared_settings(bodies)}),
                    "missing": encoded([str(each) for each in names if (each.namespace, each.name) not in found]),
                }

            yield Page(parts, lambda: uids != [_metadata(runs, each).uid for each in names])


def _curves(body: Object, maps: Mapping[tuple[str, str], Object]) -> Mapping[str, Any]:
    metadata = msgspec.convert(body["metadata"], Metadata)
    kept = maps.get((metadata.namespace, history_name(metadata)), {})
    parts = history_parts(body, read_history(kept.get("data") or {}))
    return {"run": run_row(body), "series": parts["series"], "evaluations": parts["evaluations"]}


def _name(body: Object) -> RunName:
    return RunName(body["metadata"].get("namespace", ""), body["metadata"]["name"])


def _metadata(runs: Held, name: RunName) -> Metadata:
    body = runs.objects().get((name.namespace, name.name))
    return msgspec.convert(body["metadata"], Metadata) if body else Metadata(name=name.name, namespace=name.namespace)


def _data(held: Held) -> Mapping[str, str]:
    return next((body.get("data") or {} for body in held.objects().values()), {})


def encoded(value: Any) -> bytes:
    """The one place where text of environments and policies turns into what a page may show."""
    return msgspec.json.encode(shown(msgspec.to_builtins(value)))


def joined(parts: Mapping[str, bytes], gone: Iterable[str] = ()) -> bytes:
    whole = {"parts": {key: msgspec.Raw(value) for key, value in parts.items()}, "gone": sorted(gone)}
    return msgspec.json.encode(whole)
