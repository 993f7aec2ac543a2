"""What the client raises: one exception, with the sentences of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clotho.authoring.draft import RefusedEditError
from clotho.cli.failure import Failure
from clotho.cli.session.connection import explain
from clotho.cluster.credentials import CredentialsError
from clotho.cluster.outcomes import ApiError
from clotho.workspace.objects import WrongStateError


class ClothoError(Exception):
    """Something was refused, is not there, or cannot be reached; the message contains what to do."""


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise ClothoError(str(explain(error))) from error
    except (Failure, RefusedEditError, WrongStateError, CredentialsError) as error:
        raise ClothoError(str(error)) from error
