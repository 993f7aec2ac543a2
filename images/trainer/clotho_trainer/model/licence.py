"""The licence of a base model, as its own card names it."""

from pathlib import Path

import msgspec

from clotho_contract.settings import Model

_CARD = "README.md"


class _FrontMatter(msgspec.Struct):
    license: str | list[str] = ""


def base_licence(model: Model) -> str:
    """Empty where there is no card, or none can be fetched: a run does not need it."""
    card = Path(model.name, _CARD) if Path(model.name).is_dir() else _fetched(model)
    try:
        _, _, rest = card.read_text(errors="replace").partition("---\n") if card else ("", "", "")
        found = msgspec.yaml.decode(rest.partition("\n---")[0] or "{}", type=_FrontMatter).license
    except (OSError, msgspec.MsgspecError):
        return ""
    return found if isinstance(found, str) else ", ".join(found)


def _fetched(model: Model) -> Path | None:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model.name, _CARD, revision=model.revision))
    except Exception:  # networks and hubs fail in many ways
        return None
