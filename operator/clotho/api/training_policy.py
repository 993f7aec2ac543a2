"""TrainingPolicy: what an administrator decides for all runs of a namespace."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from clotho.api.lockable import Locked
from clotho.api.metadata import Metadata
from clotho.api.networks import Cidr
from clotho.api.reading import read
from clotho_contract.settings import PositiveInt, Settings

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
# Letters that need no quoting in a regular expression, but for the dot: the API server matches them with CEL.
Glob = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[-A-Za-z0-9._/:@*]+$")]
TemplateField = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[-A-Za-z0-9._/]+$")]
_GLOBS: Final = "`*` stands for any text, slashes included; end a registry or an organisation with a slash."


class Limits(Settings, frozen=True):
    """How much a run may ask for; what is absent is not limited."""

    gpus: Annotated[
        Count | None,
        Meta(
            description="Most GPUs of a run's trainer and inference replicas together. Templates may then ask for no "
            "devices of their own."
        ),
    ] = None
    replicas: Annotated[Count | None, Meta(description="Most pods of all environments of a run together.")] = None
    steps: Annotated[PositiveInt | None, Meta(description="Most training steps of a run.")] = None
    active_runs: Annotated[
        Count | None,
        Meta(description="Most active runs of the namespace; later ones are queued."),
    ] = None
    images: Annotated[
        Annotated[tuple[Glob, ...], Meta(max_length=64)] | None,
        Meta(description=f"Images that runs may name besides the operator's own. {_GLOBS}"),
    ] = None
    models: Annotated[
        Annotated[tuple[Glob, ...], Meta(max_length=64)] | None,
        Meta(description=f"Models that may be trained, by model.name. {_GLOBS}"),
    ] = None
    egress: Annotated[
        Annotated[tuple[Cidr, ...], Meta(max_length=64)] | None,
        Meta(
            description="Networks that environments may be given egress to; an empty list allows none. Private ones "
            "need runs.privateNetworks as well."
        ),
    ] = None


class Permissions(Settings, frozen=True):
    """What runs may do beyond the defaults; what is absent is not permitted."""

    template_fields: Annotated[
        Annotated[tuple[TemplateField, ...], Meta(max_length=64)] | None,
        Meta(
            description="Fields that pod templates may set besides the usual ones, such as spec.shareProcessNamespace, "
            "containers.volumeDevices or volumes.csi. Some are never permitted: service accounts, host namespaces, "
            "hostPath, and anything against the restricted Pod Security profile."
        ),
    ] = None


class TrainingPolicySpec(Settings, frozen=True):
    """Locked fields, limits and permissions of the namespace's runs. Of several policies the strictest applies."""

    locked: Locked = field(default_factory=Locked)
    limits: Limits = field(default_factory=Limits)
    permissions: Permissions = field(default_factory=Permissions)


class TrainingPolicy(Struct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: TrainingPolicySpec

    @property
    def locked(self) -> dict[str, Any]:
        """As a person would write it."""
        written: dict[str, Any] = msgspec.to_builtins(self.spec.locked)
        return written


class UnreadablePolicy(Struct, frozen=True, kw_only=True):
    """Its spec does not decode (the CRD was changed under it): nothing starts until somebody has seen to it."""

    metadata: Metadata
    problem: str


AnyPolicy = TrainingPolicy | UnreadablePolicy


def parse(body: Mapping[str, Any]) -> AnyPolicy:
    metadata, spec, _ = read(body, TrainingPolicySpec, dict)
    if isinstance(spec, str):
        return UnreadablePolicy(metadata=metadata, problem=spec)
    return TrainingPolicy(metadata=metadata, spec=spec)
