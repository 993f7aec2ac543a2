"""Messages for people, formed the same way everywhere."""


def sentence(text: str) -> str:
    """Capital letter and full stop, whatever the source looks like."""
    text = " ".join(text.split())
    return text if not text else text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def uncapitalised(text: str) -> str:
    """For a sentence of ours inside another."""
    return text[:1].lower() + text[1:]
