"""A package of one module, as a wheel, and an environment that imports it."""

import io
import zipfile
from typing import Final

NAME: Final = "clotho_test_greeting"
WHEEL: Final = f"{NAME}-1.0-py3-none-any.whl"
ENVIRONMENT: Final = f"""
import {NAME}
from clotho_environment.builtin.letters import Letters

class Mine(Letters):
    pass

Mine.__doc__ = {NAME}.WORDS
"""
_FILES: Final = {
    f"{NAME}.py": "WORDS = 'from the package'\n",
    f"{NAME}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
    f"{NAME}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{NAME}-1.0.dist-info/RECORD": "",
}


def wheel_contents() -> bytes:
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w") as archive:
        for name, text in _FILES.items():
            archive.writestr(name, text)
    return contents.getvalue()
