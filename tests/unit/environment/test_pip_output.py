"""pip's output as one sentence that names the cause and the remedy."""

import sys

import pytest

from clotho_environment.commands.pip_output import explanation

REFUSED = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by \
'NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection object at 0x7f652e060f10>: Failed to establish a \
new connection: [Errno 111] Connection refused')': /simple/roman/
ERROR: Could not find a version that satisfies the requirement roman==5.0 (from versions: none)
ERROR: No matching distribution found for roman==5.0
"""
TIMED_OUT = REFUSED.replace("[Errno 111] Connection refused", "Connection to index timed out. (connect timeout=15)")
UNTRUSTED = """\
WARNING: The repository located at index.example is not a trusted or secure host and is being ignored. If this \
repository is available via HTTPS we recommend you use HTTPS instead, otherwise you may silence this warning and allow \
it anyway with '--trusted-host index.example'.
ERROR: Could not find a version that satisfies the requirement roman==5.0 (from versions: none)
ERROR: No matching distribution found for roman==5.0
"""
HASHES = f"""\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions, \
please update the hashes. Otherwise, examine the package contents carefully; someone may have tampered with them.
    roman==5.0 from http://index.example/roman-5.0-py3-none-any.whl (from -r r.txt (line 1)):
        Expected sha256 {"0" * 64}
             Got        {"6e" * 32}
"""
ABSENT = """\
ERROR: Could not find a version that satisfies the requirement roman==5.0 (from versions: 4.1, 4.2)
ERROR: No matching distribution found for roman==5.0
"""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (REFUSED, "the package index cannot be reached (Connection refused); egress must allow its address and port"),
        (TIMED_OUT, "the package index cannot be reached (timed out); egress must allow its address and port"),
        (
            UNTRUSTED,
            "the package index at index.example has no HTTPS; use one that has, or set PIP_TRUSTED_HOST=index.example "
            "beside PIP_INDEX_URL, in the template's init container packages",
        ),
        (
            HASHES,
            f"roman==5.0 has another hash in the package index, sha256:{'6e' * 32}; list that one if it is the wheel "
            "that you want",
        ),
        (ABSENT, f"the package index has no wheel of roman==5.0 for Python {PYTHON}; it has 4.1, 4.2"),
        ("noise\nERROR: Invalid requirement: 'x y'\n", "Invalid requirement: 'x y'"),
        ("no space left\non device\n", "no space left on device"),
        ("", ""),
    ],
)
def test_output_is_explained(output: str, expected: str) -> None:
    assert explanation(output) == expected
