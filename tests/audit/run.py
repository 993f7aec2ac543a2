"""`make audit`: dependencies, SBOM, secrets in the tree, fuzzers on each HTTP surface, escalation attempts, images.

What cannot be checked here is reported as NOT RUN with its reason, never as passed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "dev")]

from rig.trajectory_servers import ToolUnavailableError, install_apart  # noqa: E402

PIP_AUDIT = "2.10.1"
LOCKS = sorted(ROOT.glob("images/*/requirements.txt"))
PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ \\;]+)", re.MULTILINE)
SECRETS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{60,}",
    "AWS key": r"\bAKIA[0-9A-Z]{16}\b",
    "GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{36}\b",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{34}\b",
    "OpenAI key": r"\bsk-[A-Za-z0-9]{40,}\b",
    "Slack webhook": r"hooks\.slack\.com/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{24}",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}",
}
SURFACES = (
    "tests/integration/api_server/test_fuzz.py",
    "tests/integration/trainer/test_inference_fuzz.py",
    "tests/integration/operator/test_http.py",
    "tests/integration/operator/test_bad_input.py",
)


@dataclass(frozen=True)
class Finding:
    outcome: str  # passed, FAILED or NOT RUN
    detail: str = ""


def dependencies() -> Finding:
    """Known vulnerabilities of what the images contain, from PyPI's advisories."""
    try:
        program = install_apart("pip-audit", PIP_AUDIT).parent / "pip-audit"
    except ToolUnavailableError as error:
        return Finding("NOT RUN", f"pip-audit cannot be installed here: {error}")
    reports = []
    for lock in LOCKS:
        argv = [str(program), "--disable-pip", f"--requirement={lock}", "--format=json", "--progress-spinner=off"]
        try:
            done = _run(*argv, limit_seconds=90)
        except subprocess.TimeoutExpired as error:
            return Finding("NOT RUN", f"the advisory database did not answer within {error.timeout:.0f} s")
        if not done.stdout.strip():
            return Finding("NOT RUN", f"the advisory database cannot be reached: {_last_line(done.stderr)}")
        reports.append(json.loads(done.stdout))
    return judged(reports)


def judged(reports: Sequence[dict[str, Any]]) -> Finding:
    """From pip-audit's JSON, one document for each image. A package that it had to leave out is not one that passed."""
    packages = {(each["name"], each.get("version", "")): each for report in reports for each in report["dependencies"]}
    known = [
        f"{name} {version}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'no version'}"
        for (name, version), each in sorted(packages.items())
        for flaw in each.get("vulns", ())
    ]
    left_out = sorted(name for (name, _), each in packages.items() if "skip_reason" in each)
    if known:
        return Finding("FAILED", "\n".join(known))
    if left_out:
        some = ", ".join(left_out[:3]) + (", ..." if len(left_out) > 3 else "")
        count = f"{len(left_out)} of {len(packages)} packages"
        return Finding("NOT RUN", f"the index has no advisories for {count}: {some}")
    return Finding("passed", f"{len(packages)} packages of {len(reports)} images")


def sbom() -> Finding:
    """CycloneDX, one file for each image, from the versions that are locked with their hashes."""
    folder = ROOT / "dist" / "sbom"
    folder.mkdir(parents=True, exist_ok=True)
    for lock in LOCKS:
        components = [
            {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name.lower()}@{version}"}
            for name, version in PINNED.findall(lock.read_text())
        ]
        document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}
        (folder / f"{lock.parent.name}.cdx.json").write_text(json.dumps(document, indent=1) + "\n")
    return Finding("passed", f"{len(LOCKS)} files in {folder.relative_to(ROOT)}")


def secrets() -> Finding:
    found = [hit for path in _tracked() for hit in secrets_in(path)]
    return Finding("FAILED", "\n".join(found)) if found else Finding("passed", f"{len(SECRETS)} patterns, every file")


def secrets_in(path: Path) -> Iterator[str]:
    text = path.read_text(errors="ignore")
    for name, pattern in SECRETS.items():
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: looks like a {name}"


def fuzzers() -> Finding:
    return _tests(*SURFACES)


def escalation() -> Finding:
    return _tests("tests/integration/chart/test_escalation.py", "tests/integration/chart/test_rights.py")


def images() -> Finding:
    scanner = shutil.which("trivy") or shutil.which("grype")
    if scanner is None:
        return Finding("NOT RUN", "neither trivy nor grype is installed")
    return Finding("NOT RUN", f"{scanner} needs its vulnerability database, which is not in this repository")


CHECKS: dict[str, Callable[[], Finding]] = {
    "dependencies": dependencies,
    "sbom": sbom,
    "secrets": secrets,
    "fuzzers": fuzzers,
    "escalation": escalation,
    "images": images,
}


def _tests(*files: str) -> Finding:
    done = _run(sys.executable, "-m", "pytest", "-q", *files)
    return Finding("passed" if done.returncode == 0 else "FAILED", _last_line(done.stdout))


def _tracked() -> list[Path]:
    names = _run("git", "ls-files", "-z").stdout.split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def _run(*argv: str, limit_seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_seconds)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "no output"


def main(wanted: list[str]) -> int:
    has_failed = False
    for name in [name for name in CHECKS if not wanted or name in wanted]:
        print(f"{name:<14}", end="", flush=True)  # fuzzers take minutes
        finding = CHECKS[name]()
        print(f"{finding.outcome:<9} {finding.detail}", flush=True)
        has_failed |= finding.outcome == "FAILED"
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
