"""Why a request was not carried out. Raised anywhere, turned into one JSON answer at the edge."""

from collections.abc import Mapping

Location = tuple[str | int, ...]


class RefusalError(Exception):
    """Carries the status and the sentence a client gets; nothing was changed."""

    status = 400

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    @property
    def body(self) -> dict[str, object]:
        return {"detail": self.detail}

    @property
    def headers(self) -> Mapping[str, str]:
        return {}


class InvalidError(RefusalError):
    """A field is wrong; `location` leads to it the way FastAPI's answers do."""

    status = 422

    def __init__(self, location: Location, problem: str) -> None:
        super().__init__(f"{dotted(location)}: {problem}" if location else problem)
        self.location = location
        self.problem = problem

    @property
    def body(self) -> dict[str, object]:
        return {"detail": [{"loc": ["body", *self.location], "msg": self.detail, "type": "value_error"}]}


class UnknownError(RefusalError):
    status = 404


class ConflictError(RefusalError):
    status = 409


class TooLargeError(RefusalError):
    status = 413


class ForbiddenError(RefusalError):
    status = 403


class UnauthorizedError(RefusalError):
    status = 401

    @property
    def headers(self) -> Mapping[str, str]:
        return {"WWW-Authenticate": 'Basic realm="clotho"'}


class TimedOutError(RefusalError):
    status = 408


class FullError(RefusalError):
    """Back-pressure: newer clients retry after 429, older ones only after a 5xx."""

    def __init__(self, detail: str, *, status: int, retry_after: int) -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after = retry_after

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(self.retry_after)}


class StorageError(RefusalError):
    """The disk refused; the request may be tried again."""

    status = 503

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": "5"}


def dotted(location: Location) -> str:
    """`("scores", 3)` -> `scores[3]`"""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
