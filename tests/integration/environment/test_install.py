"""Requirements, installed by the real pip from an index on loopback: wheels with the listed hash, and nothing else."""

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.environment.commands import SOURCES, command
from rig.greeting_package import ENVIRONMENT, NAME, WHEEL, wheel_contents


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    folder = tmp_path / "index" / NAME.replace("_", "-")
    folder.mkdir(parents=True)
    path = folder / WHEEL
    path.write_bytes(wheel_contents())
    (folder / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    return path


@pytest.fixture
def index(wheel: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(wheel.parents[1]))  # type: ignore[arg-type]

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def digest_of(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def remove(wheel: Path) -> None:
    wheel.unlink()


def variables(tmp_path: Path, index: str, digest: str) -> dict[str, str]:
    (tmp_path / "packages").mkdir(exist_ok=True)
    return {
        "CLOTHO_PACKAGES": str(tmp_path / "packages" / "list-1"),
        "CLOTHO_REQUIREMENTS": f"{NAME}==1.0 --hash=sha256:{digest}",
        "PIP_INDEX_URL": index,
        "PIP_CONFIG_FILE": "/dev/null",
        "PYTHONPATH": os.pathsep.join(map(str, [without_pip(tmp_path), *SOURCES])),
    }


def without_pip(tmp_path: Path) -> Path:
    """As in an image whose Python has none."""
    folder = tmp_path / "shadow"
    (folder / "pip").mkdir(parents=True, exist_ok=True)
    (folder / "pip" / "__init__.py").write_text("raise ModuleNotFoundError('No module named pip')")
    return folder


async def test_packages_are_installed_once_and_the_environment_imports_them(
    tmp_path: Path, wheel: Path, index: str
) -> None:
    given = variables(tmp_path, index, digest_of(wheel))
    (tmp_path / "mine.py").write_text(ENVIRONMENT)
    async with command(tmp_path, "install", variables=given) as first:
        assert await first.wait() == 0, first.log
    assert (tmp_path / "packages" / "list-1" / f"{NAME}.py").is_file()
    assert [each.name for each in (tmp_path / "packages").iterdir()] == ["list-1"], "nothing is left beside it"
    remove(wheel)
    async with command(tmp_path, "install", variables=given) as second:
        assert await second.wait() == 0, "the index is not asked again"
    assert "already" in second.termination_message["message"]
    async with command(tmp_path, "describe", "--entry", str(tmp_path / "mine.py"), variables=given) as describing:
        assert await describing.wait() == 0, describing.log
    assert b"from the package" in describing.output


async def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, wheel: Path, index: str) -> None:
    async with command(tmp_path, "install", variables=variables(tmp_path, index, "0" * 64)) as running:
        assert await running.wait() == 1
    words = running.termination_message
    assert words["reason"] == "EnvironmentFailed"
    assert "the requirements cannot be installed" in words["message"]
    assert f"{NAME}==1.0 has another hash in the package index, sha256:{digest_of(wheel)}" in words["message"]
    assert list((tmp_path / "packages").iterdir()) == []
