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
            tar.extractall(path, filter="data")
        config = path / "tokenizer_config.json"
        if config.exists():
            config.write_text(json.dumps(for_every_reader(json.loads(config.read_bytes())), indent=2))
    except (tarfile.TarError, ValueError) as error:
        raise TokenizerError(f"/tokenizer.tar is not a sound archive: {error}") from error
    except OSError as error:
        raise TokenizerError(f"cannot write the tokenizer to {path}: {error}") from error


def for_every_reader(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers 5 saves, transformers 4 (which Atropos environments often need) cannot load as it is."""
    portable = dict(config)
    if portable.get("tokenizer_class") == "TokenizersBackend":
        portable["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(portable.get("extra_special_tokens"), list):
        portable["additional_special_tokens"] = portable.pop("extra_special_tokens")
    return portable
