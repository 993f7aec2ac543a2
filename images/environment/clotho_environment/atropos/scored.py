"""A scored group on its way through the gateway: read in part and stamped, all else left as the bytes it was."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from clotho_contract.untrusted import decode
from clotho_environment.atropos.versions import VersionMemory

Token = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Seen(Struct):
    masks: list[list[Token]]
    scores: list[float]
    generation_params: dict[str, Raw] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    fields: dict[str, Raw]
    generation_params: dict[str, Raw]
    scores: list[float]
    tokens: int
    version: int | None

    @classmethod
    def read(cls, raw: bytes | Raw, versions: VersionMemory) -> "Scored":
        seen: _Seen = decode(raw, _Seen)
        return cls(
            fields=decode(raw, dict[str, Raw]),
            generation_params=seen.generation_params or {},
            scores=seen.scores,
            tokens=sum(map(len, seen.masks)),
            version=versions.oldest(seen.masks),
        )

    def stamped(self, env_id: int | None) -> dict[str, Raw]:
        """Under the newest id of the environment, and with the oldest policy that wrote in it, where that is known."""
        stamps = {"env_id": Raw(msgspec.json.encode(env_id))}
        if self.version is not None:
            parameters = {"policy_version": self.version} | self.generation_params
            stamps["generation_params"] = Raw(msgspec.json.encode(parameters))
        return self.fields | stamps
