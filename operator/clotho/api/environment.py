"""Environment: an entry of the catalogue. What its author writes, and what it describes itself as."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct, field

from clotho.api.metadata import Metadata
from clotho.api.names import ENVIRONMENT_KIND, OwnerKind
from clotho.api.reading import read
from clotho.api.rules import NAME_RULE, Rule
from clotho.api.status import Condition, Conditions, ConditionType, StatusPart
from clotho.api.training_run import EnvironmentNeeds, PodTemplate, SecretVariables
from clotho_contract.description import MAX_FIELDS, ConfigField


class CatalogueSpec(EnvironmentNeeds, frozen=True):
    """An environment that runs can use by its name."""

    description: Annotated[
        str,
        Meta(
            max_length=500,
            description="What `clotho env list` shows; empty takes the class's documentation.",
        ),
    ] = ""
    secret_name: SecretVariables = ""
    config: Annotated[
        dict[str, Any], Meta(description="Settings for every run that uses it; a run's own settings override them.")
    ] = field(default_factory=dict)
    template: PodTemplate = field(default_factory=dict)


class Described(StatusPart, frozen=True):
    """What the fields below were read from; the environment is described again when it differs."""

    image: Annotated[str, Meta(description="The image that was imported from.")]
    entry: Annotated[str, Meta(description="The entry that was imported.")]
    files: Annotated[str, Meta(description="Hash of the ConfigMap's contents.")] = ""
    needs: Annotated[str, Meta(description="Hash of the requirements and of the egress to their index.")] = ""
    time: Annotated[datetime | None, Meta(description="When.")] = None


class EnvironmentStatus(StatusPart, frozen=True):
    """Derived by the operator; never edited by people."""

    observed_generation: Annotated[int, Meta(description="The generation of spec that this status is about.")] = -1
    message: Annotated[str, Meta(description="One sentence for people.")] = ""
    conditions: Conditions = ()
    described: Described | None = None
    name: Annotated[str, Meta(description="The environment's own name.")] = ""
    class_name: Annotated[str, Meta(description="Its class.")] = ""
    description: Annotated[str, Meta(description="The first line of the class's documentation.")] = ""
    fields: Annotated[
        tuple[ConfigField, ...], Meta(max_length=MAX_FIELDS, description="What can be set in `config`.")
    ] = ()
    omitted_fields: Annotated[int, Meta(description="Fields that did not fit in here.")] = 0

    def condition(self, kind: ConditionType) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)


class Environment(Struct, frozen=True, kw_only=True):
    kind: ClassVar[OwnerKind] = ENVIRONMENT_KIND
    metadata: Metadata
    spec: CatalogueSpec
    status: EnvironmentStatus = field(default_factory=EnvironmentStatus)

    @property
    def entry(self) -> str:
        return self.spec.entry or self.metadata.name

    @property
    def is_described(self) -> bool:
        ready = self.status.condition("Ready")
        return self._status_is_current and ready is not None and ready.status == "True"

    @property
    def stall_message(self) -> str:
        """Empty unless the present spec does not work."""
        stalled = self.status.condition("Stalled")
        return stalled.message if stalled is not None and self._status_is_current else ""

    @property
    def _status_is_current(self) -> bool:
        return self.status.observed_generation == self.metadata.generation


class UnreadableEnvironment(Struct, frozen=True, kw_only=True):
    """Its spec does not decode (the CRD was changed under it); its status can still report it."""

    kind: ClassVar[OwnerKind] = ENVIRONMENT_KIND
    metadata: Metadata
    problem: str
    status: EnvironmentStatus = field(default_factory=EnvironmentStatus)


AnyEnvironment = Environment | UnreadableEnvironment


def parse(body: Mapping[str, Any]) -> AnyEnvironment:
    metadata, spec, status = read(body, CatalogueSpec, EnvironmentStatus)
    if isinstance(spec, str):
        return UnreadableEnvironment(metadata=metadata, problem=spec, status=status)
    return Environment(metadata=metadata, spec=spec, status=status)


RULES: Final[dict[str, tuple[Rule, ...]]] = {"": (NAME_RULE,)}
