"""An environment's requirements, installed by an init container: on the path of this process and its children."""

import os
import sys

from clotho_contract.names import PACKAGES_VARIABLE


def use_packages() -> None:
    """After everything else: the image's own packages come first."""
    folder = os.environ.get(PACKAGES_VARIABLE, "")
    if not folder or folder in sys.path:
        return
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), folder)))
