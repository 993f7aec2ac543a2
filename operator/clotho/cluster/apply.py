"""The one writer: carries out plans, and puts the server's answers into the caches before the next plan."""

import asyncio
import base64
import itertools
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.api.names import (
    API_VERSION,
    FIELD_MANAGER,
    TOKEN_DIGESTS_ANNOTATION,
    TOKEN_KEYS_ANNOTATION,
    TOKENS_ANNOTATION,
)
from clotho.cluster.cache import Key
from clotho.cluster.client import APPLY, MERGE, ApiClient
from clotho.cluster.kinds import RESOURCES, path_of
from clotho.cluster.outcomes import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Transient, Undecodable
from clotho.cluster.store import AnyOwner, Store, key_of
from clotho.plan.model import Action, Apply, Create, Delete, Manifest, ObjectKey, Refusal, Validate
from clotho.plan.ownership import is_owned_by, lost_marks, owner_in_words
from clotho.render.objects import ROLE_KEYS, are_as_recorded, token_digests
from clotho_contract.names import TOKEN_VARIABLE

log = logging.getLogger(__name__)
TOKEN_BYTES = 32
_NO_DRY_RUN = "does not support dry run"
Body = dict[str, Any]


class NotLeader(Exception):  # noqa: N818 - not a fault: another replica works
    """This replica may not write any more."""


class _Preconditions(Struct, frozen=True, rename="camel"):
    uid: str
    resource_version: str


class _DeleteOptions(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    preconditions: _Preconditions
    grace_period_seconds: int | None = None
    propagation_policy: str = "Background"
    kind: str = "DeleteOptions"
    api_version: str = "v1"


class Writer:
    """`may_write` is called before every single request."""

    def __init__(self, client: ApiClient, store: Store, may_write: Callable[[], bool]) -> None:
        self._client, self._store, self._may_write = client, store, may_write
        self._refused: dict[Key, tuple[str, int, dict[ObjectKey, Refusal]]] = {}  # with uid and generation
        self._validated: dict[Key, tuple[str, int]] = {}  # uid and generation
        self._unknown: dict[Key, set[ObjectKey]] = {}  # writes that got no answer: read back before the next plan

    async def carry_out(self, owner: AnyOwner, actions: Iterable[Action]) -> None:
        """In order, but neighbours that do not need each other go out together: objects, then the pods that need them.

        A failure is raised once the requests beside it are answered, and ends it: no pod without its network policy.
        """
        actions = tuple(actions)
        for _, group in itertools.groupby(actions, lambda action: (type(action) is Delete, action.key.kind == "Pod")):
            outcomes = await asyncio.gather(*(self._do(owner, action) for action in group), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
        if any(isinstance(action, Validate) for action in actions):
            self._validated[key_of(owner)] = (owner.metadata.uid, owner.metadata.generation)

    def has_validated(self, owner: AnyOwner) -> bool:
        """Whether the server accepted the pods of this generation in a dry run."""
        return self._validated.get(key_of(owner)) == (owner.metadata.uid, owner.metadata.generation)

    def refusals(self, owner: AnyOwner) -> dict[ObjectKey, Refusal]:
        """What the server would not take; forgotten when the spec changes."""
        uid, generation, refused = self._refused.get(key_of(owner), ("", 0, {}))
        return dict(refused) if (uid, generation) == (owner.metadata.uid, owner.metadata.generation) else {}

    def forget(self, key: Key) -> None:
        self._refused.pop(key, None)
        self._validated.pop(key, None)
        self._unknown.pop(key, None)

    async def write_status(self, owner: AnyOwner, status: Struct) -> AnyOwner:
        """Replaces the whole status; a conflict refreshes the cache, so that the next reconcile has the newer state."""
        self._check()
        metadata, kind = owner.metadata, owner.kind
        path = RESOURCES[kind].path(metadata.namespace, metadata.name)
        body = {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
            "status": status,
        }
        try:
            answer = await self._client.replace(f"{path}/status", body, Body, fieldManager=FIELD_MANAGER)
        except Conflict:
            await self.refresh(metadata.namespace, ObjectKey(kind, metadata.name))
            raise
        written = self._store.take_in(kind, answer)
        if written is None:
            raise Undecodable(f"update {path}/status", "the answer cannot be decoded")
        return cast(AnyOwner, written)

    async def check_is_current(self, owner: AnyOwner) -> None:
        """Raises a conflict where the owner is not as it was planned with; the cache has the newer one then."""
        metadata, kind = owner.metadata, owner.kind
        action = f"get {kind} {metadata.name}"
        found = await self.refresh(metadata.namespace, ObjectKey(kind, metadata.name))
        if found is None:
            raise Conflict(action, "it is gone", 409)
        if found["metadata"]["resourceVersion"] != metadata.resource_version:
            raise Conflict(action, "it has changed since it was planned", 409)

    async def settle(self, key: Key) -> None:
        """Find out how writes ended whose answer was lost; raises when that cannot be known yet."""
        for item in tuple(self._unknown.get(key, ())):
            await self.refresh(key.namespace, item)
            self._unknown[key].discard(item)
        self._unknown.pop(key, None)

    async def refresh(self, namespace: str, item: ObjectKey) -> Body | None:
        """Read one object into its cache; None when it is not there."""
        known = self._store.cache(item.kind).get(namespace, item.name)
        try:
            body = await self._client.get(path_of(namespace, item), Body)
        except NotFound:
            if known is not None:
                self._store.forget(item.kind, known.metadata, math.inf)  # what a watch still reports is older
            return None
        self._store.take_in(item.kind, body)
        return body

    async def _do(self, owner: AnyOwner, action: Action) -> None:
        self._check()
        namespace = owner.metadata.namespace
        self._clear_refusal(owner, action.key)
        try:
            match action:
                case Create():
                    await self._create(owner, action)
                case Apply():
                    await self._apply(owner, action)
                case Validate():
                    await self._validate(namespace, action)
                case Delete():
                    await self._delete(namespace, action)
        except (Invalid, Forbidden) as error:
            self._note_refusal(
                owner, action.key, Refusal(message=error.message, is_permanent=isinstance(error, Invalid))
            )
            raise
        except Transient as error:
            if error.code == 0:
                self._unknown.setdefault(key_of(owner), set()).add(action.key)
            raise

    def _note_refusal(self, owner: AnyOwner, key: ObjectKey, refusal: Refusal) -> None:
        self._keep_refusals(owner, {**self.refusals(owner), key: refusal})

    def _clear_refusal(self, owner: AnyOwner, key: ObjectKey) -> None:
        self._keep_refusals(owner, {known: refusal for known, refusal in self.refusals(owner).items() if known != key})

    def _keep_refusals(self, owner: AnyOwner, refused: dict[ObjectKey, Refusal]) -> None:
        metadata = owner.metadata
        if refused:
            self._refused[key_of(owner)] = (metadata.uid, metadata.generation, refused)
        else:
            self._refused.pop(key_of(owner), None)

    async def _create(self, owner: AnyOwner, action: Create) -> None:
        namespace, key = owner.metadata.namespace, action.key
        if self._store.cache(key.kind).get(namespace, key.name) is not None and (found := await self._own(owner, key)):
            await self._adopt(namespace, action, found)
            return
        folder = RESOURCES[key.kind].folder(namespace)
        try:
            answer = await self._client.create(folder, _with_tokens(action), Body, fieldManager=FIELD_MANAGER)
        except (AlreadyExists, Forbidden):  # a quota may count the object that exists already
            found = await self._own(owner, key)
            if found is None:
                raise
            await self._adopt(namespace, action, found)
            return
        self._store.take_in(key.kind, answer)

    async def _apply(self, owner: AnyOwner, action: Apply) -> None:
        """Forced only on what is known as the owner's: the name may be taken by an object of another owner."""
        namespace = owner.metadata.namespace
        path = path_of(namespace, action.key)
        if action.random_keys:
            await self._add_missing_tokens(path, action.random_keys)
        target = f"{path}/{action.subresource}" if action.subresource else path

        async def send(**force: str) -> Body:
            return await self._client.patch(target, action.manifest, Body, APPLY, fieldManager=FIELD_MANAGER, **force)

        known = self._store.cache(action.key.kind).get(namespace, action.key.name)
        try:
            if known is not None and not is_owned_by(known.metadata, owner.metadata):
                await self._own(owner, action.key)
            answer = await send(**({"force": "true"} if known is not None else {}))
        except Conflict:
            if known is not None or await self._own(owner, action.key) is None:
                raise
            answer = await send(force="true")
        self._store.take_in(action.key.kind, answer)

    async def _own(self, owner: AnyOwner, key: ObjectKey) -> Body | None:
        """The owner's object of that name; None where it is gone again. One of another owner is a refusal."""
        found = await self.refresh(owner.metadata.namespace, key)
        if found is None:
            return None
        metadata = msgspec.convert(found["metadata"], Metadata)
        if is_owned_by(metadata, owner.metadata):
            return found
        problem = f"it exists and {owner_in_words(metadata)}; delete it, then it is created"
        self._note_refusal(owner, key, Refusal(message=problem, is_permanent=False))
        raise AlreadyExists(f"write {key.kind} {key.name}", problem, 409)

    async def _adopt(self, namespace: str, action: Create, found: Body) -> None:
        """Put back the labels and the owner, by which watches, caches and policies find it."""
        change = lost_marks(found["metadata"], action.manifest["metadata"])
        if not change:
            return
        kind, name = action.key.kind, action.key.name
        log.warning("%s %s lost %s, which are put back", kind, name, " and ".join(change))
        guarded = {"metadata": {"uid": found["metadata"]["uid"], **change}}
        path = path_of(namespace, action.key)
        answer = await self._client.patch(path, guarded, Body, MERGE, fieldManager=FIELD_MANAGER)
        if (item := self._store.take_in(kind, answer)) is not None:
            self._store.announce(kind, item.metadata)

    async def _validate(self, namespace: str, action: Validate) -> None:
        folder, options = RESOURCES[action.key.kind].folder(namespace), {"dryRun": "All", "fieldValidation": "Strict"}
        try:
            await self._client.create(folder, action.manifest, Body, fieldManager=FIELD_MANAGER, **options)
        except Invalid as error:
            if _NO_DRY_RUN not in error.message:  # a webhook's; the pod is refused or accepted when it is made
                raise

    async def _add_missing_tokens(self, path: str, keys: Sequence[str]) -> None:
        """A merge patch, because a later apply without them would remove keys that were applied."""
        found = await self._client.get(path, Body)
        data, annotations = found.get("data") or {}, found["metadata"].get("annotations") or {}
        missing = _missing_tokens(data, keys)
        is_edited = not are_as_recorded(data, annotations.get(TOKEN_DIGESTS_ANNOTATION, ""))
        if not missing and not is_edited:
            return
        changed = {TOKEN_DIGESTS_ANNOTATION: token_digests({**data, **missing})}
        if is_edited or _were_removed(missing, found):
            changed[TOKENS_ANNOTATION] = secrets.token_hex(4)
        change = {"data": missing, "metadata": {"annotations": changed}}
        await self._client.patch(path, change, Body, MERGE, fieldManager=FIELD_MANAGER)

    async def _delete(self, namespace: str, action: Delete) -> None:
        options = _DeleteOptions(
            preconditions=_Preconditions(action.uid, action.resource_version),
            grace_period_seconds=action.grace_seconds,
        )
        log.info("deleting %s %s", action.key.kind, action.key.name, extra={"namespace": namespace})
        try:
            answer = await self._client.delete(path_of(namespace, action.key), options, Body)
        except NotFound:
            await self.refresh(namespace, action.key)
            return
        except Conflict:
            await self.refresh(namespace, action.key)
            raise
        if answer.get("kind") == action.key.kind:
            self._store.take_in(action.key.kind, answer)
        elif (known := self._store.cache(action.key.kind).get(namespace, action.key.name)) is not None:
            self._store.cache(action.key.kind).remove(known.metadata)

    def _check(self) -> None:
        if not self._may_write():
            raise NotLeader("the lease is not held")


def _with_tokens(action: Create) -> Manifest:
    if not action.random_keys:
        return action.manifest
    manifest = action.manifest
    data = {**manifest["data"], **_missing_tokens(manifest["data"], action.random_keys)}
    metadata: Manifest = manifest["metadata"]
    annotations = metadata.get("annotations", {}) | {TOKEN_DIGESTS_ANNOTATION: token_digests(data)}
    return {**manifest, "metadata": metadata | {"annotations": annotations}, "data": data}


def _missing_tokens(data: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """In a Secret with one token for all roles, that one: the pods that are running have no other."""
    shared = dict.fromkeys(ROLE_KEYS, data.get(TOKEN_VARIABLE))
    return {key: shared.get(key) or _fresh_token() for key in keys if not data.get(key)}


def _were_removed(missing: Iterable[str], secret: Body) -> bool:
    """Then pods have tokens that count no longer. Keys that a new version of the operator adds are in no pod yet."""
    made = (secret["metadata"].get("annotations") or {}).get(TOKEN_KEYS_ANNOTATION, "").split(",")
    return any(key in made or key in (secret.get("data") or {}) for key in missing)


def _fresh_token() -> str:
    return base64.b64encode(secrets.token_urlsafe(TOKEN_BYTES).encode()).decode()
