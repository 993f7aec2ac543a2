"""Messages for people, formed the same way everywhere."""


def sentence(text: str) -> str:
    """Capital letter and full stop, whatever the source looks like."""
    text = full_stop(text)
    return text[:1].upper() + text[1:]


def full_stop(text: str) -> str:
    """For words of others that stand as they are."""
    text = " ".join(text.split())
    return text if not text or text[-1] in ".!?" else f"{text}."


def uncapitalised(text: str) -> str:
    """For a sentence of ours inside another."""
    return text[:1].lower() + text[1:]


def counted(number: int, noun: str) -> str:
    """`1 model`, `2 models`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def not_valid(problem: str) -> str:
    return full_stop(f"The spec is not valid: {problem}")
