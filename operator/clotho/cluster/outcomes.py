"""What the API server can answer besides success, as types: each tells whether a retry can help."""

# ruff: noqa: N818 - named for the server's answer

from msgspec import Struct


class ApiError(Exception):
    """The request did not succeed; `code` is the HTTP status, 0 when no answer came."""

    def __init__(self, what: str, message: str, code: int = 0, reason: str = "") -> None:
        super().__init__(f"{what}: {message}" + (f" ({code} {reason})".rstrip() if code else ""))
        self.code = code
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """The object, its namespace or its kind is not there."""


class Gone(ApiError):
    """The resource version is too old; list again."""


class Conflict(ApiError):
    """Another client wrote in between, or a precondition no longer holds."""


class AlreadyExists(Conflict):
    """The name is taken; with names derived from the run that usually means: our own earlier write."""


class Invalid(ApiError):
    """The server will never take this object as it is."""


class Forbidden(ApiError):
    """Refused by role, quota or admission policy; an administrator may change that, so it is retried later."""


class Unauthorized(ApiError):
    """The token was not accepted."""


class NoCredentials(ApiError):
    """Nothing was sent: the token could not be read, or the credential plugin failed."""


class Undecodable(ApiError):
    """The request succeeded, but the answer is not what its kind promises."""


class Transient(ApiError):
    """No answer, a time-out or an error of the server: the same request may succeed a little later."""

    retry_after: float | None = None


class TooManyRequests(Transient):
    def __init__(self, what: str, message: str, code: int = 429, reason: str = "", retry_after: float = 1.0) -> None:
        super().__init__(what, message, code, reason)
        self.retry_after = retry_after


class Cause(Struct, frozen=True):
    """One of several problems of an invalid object."""

    field: str = ""
    message: str = ""


class StatusDetails(Struct, frozen=True, rename="camel"):
    retry_after_seconds: float | None = None
    causes: tuple[Cause, ...] = ()


class Status(Struct, frozen=True):
    """`v1.Status`, the body of every refusal."""

    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None


def from_answer(what: str, code: int, status: Status, retry_after: str | None) -> ApiError:
    reason, message = status.reason, _without_nil(status) or "no message"
    if code == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
        return kind(what, message, code, reason)
    if code == 429:
        return TooManyRequests(what, message, code, reason, _seconds(retry_after, status.details))
    if code >= 500:
        return Transient(what, message, code, reason)
    kinds: dict[int, type[ApiError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound, 410: Gone}
    return kinds.get(code, Invalid)(what, message, code, reason)


def _without_nil(status: Status) -> str:
    """The API server adds a cause of field `<nil>` when it skipped further rules: noise beside the real causes."""
    causes = status.details.causes if status.details else ()
    real = [cause for cause in causes if cause.field != "<nil>"]
    if not real or len(real) == len(causes):
        return status.message
    subject, _, _ = status.message.partition(" is invalid: ")
    return f"{subject} is invalid: {'; '.join(f'{cause.field}: {cause.message}' for cause in real)}"


def _seconds(header: str | None, details: StatusDetails | None) -> float:
    if header is not None and header.isdigit():
        return float(header)
    return details.retry_after_seconds or 1.0 if details else 1.0
