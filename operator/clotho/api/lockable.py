"""Which fields of a TrainingRun an administrator can lock: every setting, as the types have them."""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType, inspect

from clotho.api.training_run import TrainingRunSpec

# A run's shape and its author's hand on it, which are not settings.
_NOT_SETTINGS: Final = frozenset({"environments", "inline", "suspend", "stop"})
ENVIRONMENT_CONFIG: Final = "environmentConfig"
Path = tuple[str, ...]


class Leaf(Struct, frozen=True, kw_only=True):
    """One lockable field, by its names on the wire. Lists and free-form objects are locked as a whole."""

    path: Path
    default: Any  # UNSET: there is none
    optional: Path = ()  # the object around it that a run may leave out, if there is one,
    required: frozenset[str] = frozenset()  # and what that object cannot be without

    @property
    def name(self) -> str:
        return ".".join(self.path)


def _leaves(kind: inspect.StructType, path: Path, optional: Path, required: frozenset[str]) -> Iterator[Leaf]:
    for field in kind.fields:
        here = (*path, field.encode_name)
        inner, may_be_absent = _struct_inside(field.type)
        if not path and field.name in _NOT_SETTINGS:
            continue
        if inner is None:
            yield Leaf(path=here, default=_default(field), optional=optional, required=required)
        elif may_be_absent:
            yield from _leaves(inner, here, here, frozenset(f.encode_name for f in inner.fields if f.required))
        else:
            yield from _leaves(inner, here, optional, required)


def _struct_inside(kind: inspect.Type) -> tuple[inspect.StructType | None, bool]:
    """The object that a field holds, if it holds one, and whether it may be absent."""
    if isinstance(kind, inspect.Metadata):
        return _struct_inside(kind.type)
    if isinstance(kind, inspect.UnionType):
        (present,) = (each for each in kind.types if not isinstance(each, inspect.NoneType))
        return _struct_inside(present)[0], True
    return (kind if isinstance(kind, inspect.StructType) else None), False


def _default(field: inspect.Field) -> Any:
    if field.default_factory is not NODEFAULT:
        return msgspec.to_builtins(field.default_factory())
    return UNSET if field.default in (NODEFAULT, None) else msgspec.to_builtins(field.default)


def _partial(kind: type[Struct], name: str, without: frozenset[str] = frozenset(), **more: Any) -> type[Struct]:
    """The same settings, none of them required and none with a default."""
    fields = {
        field: _partial_hint(hint)
        for field, hint in get_type_hints(kind, include_extras=True).items()
        if field in kind.__struct_fields__ and field not in without
    }
    return msgspec.defstruct(
        name,
        [(field, Union[hint, UnsetType], UNSET) for field, hint in (fields | more).items()],  # noqa: UP007
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        rename="camel",
        namespace={"__doc__": kind.__doc__},
    )


def _partial_hint(hint: Any) -> Any:
    """Objects become partial ones; everything else stays as it is."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return Annotated[_partial_hint(inner), *notes]
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _partial(hint, f"Locked{hint.__name__}")
    return hint


LEAVES: Final = tuple(
    _leaves(cast(inspect.StructType, inspect.type_info(TrainingRunSpec)), (), optional=(), required=frozenset())
)
if TYPE_CHECKING:
    Locked = Struct
else:
    Locked = _partial(
        TrainingRunSpec,
        "Locked",
        without=_NOT_SETTINGS,
        environment_config=Annotated[
            dict[str, Any], Meta(description="Fields of every environment's config, in every run.")
        ],
    )
    Locked.__doc__ = (
        "A partial spec of a TrainingRun: its values apply to every run. A run may leave such a field out or repeat "
        "the value; anything else is refused."
    )


def value_at(tree: Mapping[str, Any], path: Path) -> Any:
    """UNSET where there is nothing: not there, or null."""
    found: Any = tree
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return UNSET if found is None else found
