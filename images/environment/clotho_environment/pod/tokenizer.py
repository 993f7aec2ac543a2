"""The policy's tokenizer as files in the pod, readable by old and new versions of transformers alike."""

import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clotho_contract.names import TOKENIZER_PATH, TOKENIZER_VARIABLE

SIZE_LIMIT: Final = 512 * 1024**2


class TokenizerError(Exception):
    """The archive cannot be used; asking for it again would give the same."""


def tokenizer_path() -> Path:
    return Path(os.environ.get(TOKENIZER_VARIABLE) or TOKENIZER_PATH)


def unpack_tokenizer(archive: bytes, path: Path) -> None:
    """Plain files only and nothing outside `path`: the archive comes over the network."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            if sum(member.size for member in tar) > SIZE_LIMIT:
                raise TokenizerError(f"the tokenizer is larger than {SIZE_LIMIT // 1024**2} MiB")
            path.mkdir(parents=True, exist_ok=True)
            for member in tar:
                _extract(tar, member, path)
        config = path / "tokenizer_config.json"
        if config.exists():
            config.write_text(json.dumps(for_every_reader(json.loads(config.read_bytes())), indent=2))
    except (tarfile.TarError, ValueError, RecursionError) as error:
        raise TokenizerError(f"/tokenizer.tar is not a sound archive: {error}") from error
    except OSError as error:
        raise TokenizerError(f"cannot write the tokenizer to {path}: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """tarfile's own filters are missing before Python 3.11.4, which Debian 12 does not have."""
    if member.isdir():
        return
    target = (path / member.name).resolve()
    content = tar.extractfile(member) if member.isfile() else None
    if content is None or not target.is_relative_to(path.resolve()):
        raise TokenizerError(f"/tokenizer.tar holds {member.name!r}, which is no plain file inside its folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.read())


def for_every_reader(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers 5 saves, transformers 4 (which Atropos environments often need) cannot load as it is."""
    portable = dict(config)
    if portable.get("tokenizer_class") == "TokenizersBackend":
        portable["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(portable.get("extra_special_tokens"), list):
        portable["additional_special_tokens"] = portable.pop("extra_special_tokens")
    return portable
