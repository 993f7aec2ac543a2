"""A scored group on its way through: looked at and stamped, all else left as the bytes it was."""

from dataclasses import dataclass

import msgspec
from msgspec import Raw, Struct

from clotho_environment.atropos.versions import VersionMemory


class _Seen(Struct):
    masks: list[list[int]]
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Scored:
    fields: dict[str, Raw]
    scores: list[float]
    tokens: int
    version: int | None

    @classmethod
    def read(cls, raw: Raw, versions: VersionMemory) -> "Scored":
        seen = msgspec.json.decode(raw, type=_Seen)
        fields = msgspec.json.decode(raw, type=dict[str, Raw])
        return cls(fields, seen.scores, sum(map(len, seen.masks)), versions.oldest(seen.masks))

    def stamped(self, env_id: int | None) -> dict[str, Raw]:
        """Under the id that the server knows, and with the oldest policy that wrote in it, where that is known."""
        stamps = {"env_id": Raw(msgspec.json.encode(env_id))}
        if self.version is not None:
            said = msgspec.json.decode(self.fields.get("generation_params", Raw(b"null")), type=dict[str, Raw] | None)
            stamps["generation_params"] = Raw(msgspec.json.encode({"policy_version": self.version} | (said or {})))
        return self.fields | stamps
