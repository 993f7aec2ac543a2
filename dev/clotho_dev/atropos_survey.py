"""Discovers and describes a checkout of Atropos' environments, and explains each one that cannot be described.

python -m clotho_dev.atropos_survey CHECKOUT --python INTERPRETER_WITH_ATROPOSLIB
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from clotho.cli.files.discovery import discover
from clotho_dev import REPOSITORY

INTROSPECT: Final = REPOSITORY / "images/environment/clotho_environment/atropos/introspect.py"
FORKED: Final = Path(__file__).with_name("describe_forked.py")
REASONS: Final = (
    (r"No module named '(?P<what>[\w.]+)'", "package not installed"),
    (r"cannot import name '(?P<what>\w+)'|has no attribute '(?P<what2>\w+)'", "another version of a package needed"),
    (r"attempted relative import", "part of a package, not a program"),
    (r"Offline|LocalEntryNotFound|ConnectionError|Max retries|Couldn't (reach|find)|resolve host", "needs a hub"),
    (r"api_key|API_KEY|TOKEN|credential", "needs a key"),
    (r"FileNotFoundError|No such file", "needs a file that is not there"),
    (r"no subclass of BaseEnv", "no environment without its optional imports"),
)
UNEXPLAINED: Final = "unexplained"


def reason_for(error: str) -> str:
    for pattern, reason in REASONS:
        if found := re.search(pattern, error):
            named = next((value for value in found.groupdict().values() if value), "")
            return f"{reason}: {named}" if named else reason
    return UNEXPLAINED


def describe_all(python: str, checkout: Path, files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    variables = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "PYTHONPATH": str(checkout),
    }
    with tempfile.TemporaryDirectory(prefix="atropos-survey-") as folder:
        command = [python, str(FORKED), str(INTROSPECT), folder, *map(str, files)]
        with subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, cwd=folder) as running:
            for line in running.stdout or ():
                yield json.loads(line)
    if running.returncode:
        raise SystemExit(f"{python} ended with code {running.returncode}; it needs atroposlib (--python INTERPRETER)")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/NousResearch/atropos")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with atroposlib")
    parser.add_argument("--only", default="", metavar="FOLDER", help="below environments/ (default: all)")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    found = discover([checkout / "environments" / options.only])
    classes = {each.path: each.class_name for each in found.environments if each.is_run}
    print(f"{found.files_read} files read, {len(found.problems)} unreadable")
    print(f"{len(found.environments)} environment classes in {len(classes)} files\n")
    results: Counter[str] = Counter()
    ours = 0
    for each in describe_all(options.python, checkout, list(classes)):
        path, error = Path(each["file"]), each["described"].get("error", "")
        is_same_class = not error and each["described"]["className"] == classes[path]
        result = "described" if is_same_class else reason_for(error) if error else "another class was described"
        fails_alone = "error" in each["started"]
        if not is_same_class and not fails_alone:
            ours += 1
            result += " (starts without Clotho: ours)"
        results[re.sub(r": .*", "", result)] += 1
        print(f"{path.relative_to(checkout / 'environments')!s:75} {result}")
        if result.startswith(UNEXPLAINED):
            print(f"    {error[:200]}")
    print()
    for result, count in results.most_common():
        print(f"{count:4}  {result}")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
