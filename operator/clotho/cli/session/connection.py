"""Connects a command to the cluster, and explains the API server's errors."""

import argparse
import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from clotho.api import admission
from clotho.cli.failure import Exit, Failure
from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials, CredentialsError
from clotho.cluster.login import load_as_kubectl
from clotho.cluster.outcomes import ApiError, Forbidden, NoCredentials, NotFound, Transient, Unauthorized
from clotho.workspace.objects import Workspace

Answer = TypeVar("Answer")
Command = Callable[[argparse.Namespace, Workspace], Awaitable[Answer]]
TIMEOUT_SECONDS = 20.0
STREAMS = 256  # each watch behind the page is one
_NO_NAMESPACE = re.compile(r'namespaces "(.+)" not found')
_BY_POLICY = f"ValidatingAdmissionPolicy '{admission.NAME}'"  # as the API server names it


def run_connected(command: Command[Answer], options: argparse.Namespace) -> Answer:
    return asyncio.run(_connected(command, options))


async def _connected(command: Command[Answer], options: argparse.Namespace) -> Answer:
    try:
        credentials = _credentials(options)
        async with ApiClient(
            credentials, timeout_seconds=TIMEOUT_SECONDS, streams=STREAMS, user_agent="clotho"
        ) as client:
            return await command(options, Workspace(client, options.namespace or credentials.namespace))
    except CredentialsError as error:
        raise Failure(str(error), Exit.UNREACHABLE) from error
    except ApiError as error:
        raise explain(error, options.namespace) from error


def _credentials(options: argparse.Namespace) -> Credentials:
    try:
        return load_as_kubectl(options.kubeconfig, options.context)
    except (CredentialsError, UnicodeDecodeError) as error:
        reason = error.__cause__ if isinstance(error, CredentialsError) else error
        if not isinstance(reason, msgspec.MsgspecError | UnicodeDecodeError):
            raise
        file = options.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        message = f"{file} is not a kubeconfig: {' '.join(str(reason).split())}; name another with --kubeconfig"
        raise Failure(message, Exit.UNREACHABLE) from error


class NotInstalled(Failure):
    def __init__(self, where: str = "") -> None:
        """`where`: the namespace that the user named, as an option."""
        super().__init__(
            f"Clotho is not installed in this cluster, or only an older version: see `clotho check{where}`",
            Exit.NOT_FOUND,
        )


def no_namespace(name: str) -> Failure:
    return Failure(f"namespace {name!r} does not exist; `kubectl get namespaces` lists those that do", Exit.NOT_FOUND)


def explain(error: ApiError, namespace: str = "") -> Failure:
    """`namespace`: the one that the user named, for the suggested commands."""
    where = f" -n {namespace}" if namespace else ""
    match error:
        case Transient():
            return Failure(f"the cluster does not answer: {error.message}", Exit.UNREACHABLE)
        case NoCredentials():
            return Failure(error.message, Exit.UNREACHABLE)
        case Unauthorized():
            return Failure(
                "the cluster rejects these credentials; log in again, or use another --context", Exit.REFUSED
            )
        case Forbidden() if _BY_POLICY in error.message:
            reason = error.message.partition("denied request: ")[2] or error.message
            return Failure(f"{reason}; `clotho policy explain{where}` shows what is locked and limited", Exit.REFUSED)
        case Forbidden():
            return Failure(f"{error.message}; `clotho check{where}` lists the missing permissions", Exit.REFUSED)
        case NotFound() if "requested resource" in error.message or "page not found" in error.message:
            return NotInstalled(where)
        case NotFound() if found := _NO_NAMESPACE.match(error.message):
            return no_namespace(found[1])
        case NotFound():
            return Failure(error.message, Exit.NOT_FOUND)
    return Failure(error.message, Exit.REFUSED)
