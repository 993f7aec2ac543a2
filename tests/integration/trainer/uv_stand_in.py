"""SkyRL starts its engine with `uv run ... -m module`; this runs the module with the interpreter that is there."""

import subprocess
import sys

sys.exit(subprocess.call([sys.executable, *sys.argv[sys.argv.index("-m") :]]))
