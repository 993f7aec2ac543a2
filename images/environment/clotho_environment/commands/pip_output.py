"""What pip's output means, in one sentence: its own words are pages of retries and warnings."""

import re
import sys
from typing import Final

_OUTPUT_LIMIT: Final = 2000  # characters of output that is not understood
_UNTRUSTED: Final = re.compile(r"repository located at (\S+) is not a trusted or secure host")
_WRONG_HASH: Final = re.compile(r"^\s+(\S+) from .*?^\s+Got\s+([0-9a-f]{64})", re.MULTILINE | re.DOTALL)
_BROKEN: Final = re.compile(r"after connection broken by (.+): /")
_CAUSE: Final = re.compile(r"\[Errno -?\d+\] ([^'\"]+)|(timed out|certificate verify failed[^'\"]*)")
_NO_MATCH: Final = re.compile(r"No matching distribution found for (\S+)")
_VERSIONS: Final = re.compile(r"\(from versions: ([^)]+)\)")
_ERROR: Final = re.compile(r"^ERROR: (.+)$", re.MULTILINE)


def explanation(output: str) -> str:
    """Why nothing was installed, and what to do; the end of the output where it is not understood."""
    if found := _UNTRUSTED.search(output):
        host = found[1]
        return (
            f"the package index at {host} has no HTTPS; use one that has, or set PIP_TRUSTED_HOST={host} beside "
            "PIP_INDEX_URL, in the template's init container packages"
        )
    if found := _WRONG_HASH.search(output):
        return (
            f"{found[1]} has another hash in the package index, sha256:{found[2]}; list that one if it is the wheel "
            "that you want"
        )
    if found := _BROKEN.search(output):
        cause = _CAUSE.search(found[1])
        why = (cause[1] or cause[2]).strip() if cause else found[1].strip("'\"")
        return f"the package index cannot be reached ({why}); egress must allow its address and port"
    if found := _NO_MATCH.search(output):
        versions = _VERSIONS.search(output)
        others = f"; it has {versions[1]}" if versions and versions[1] != "none" else ""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"the package index has no wheel of {found[1]} for Python {python}{others}"
    return "; ".join(_ERROR.findall(output)) or " ".join(output.split())[-_OUTPUT_LIMIT:]
