"""An archive from the network becomes plain files inside its folder, or is refused."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from clotho_environment.pod.tokenizer import TokenizerError, unpack_tokenizer


def archive(*members: tarfile.TarInfo, **files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def test_files_and_folders_are_unpacked(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("templates")
    folder.type = tarfile.DIRTYPE
    given = archive(folder, templates__tool=b"{{ x }}", **{"tokenizer.json": b"{}"})
    unpack_tokenizer(given, tmp_path / "new")
    assert (tmp_path / "new" / "tokenizer.json").read_text() == "{}"
    assert (tmp_path / "new" / "templates" / "tool").read_text() == "{{ x }}"


def test_the_config_is_made_readable_for_older_libraries(tmp_path: Path) -> None:
    config = json.dumps({"tokenizer_class": "TokenizersBackend"}).encode()
    unpack_tokenizer(archive(**{"tokenizer_config.json": config}), tmp_path)
    read = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert read["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize(
    "given",
    [
        archive(**{"..__outside": b"x"}),
        archive(**{"__etc__outside": b"x"}),
        archive(link("inside", "/etc/passwd")),
        b"not an archive",
    ],
    ids=["parent", "absolute", "link", "garbage"],
)
def test_unsafe_and_invalid_archives_are_refused(tmp_path: Path, given: bytes) -> None:
    with pytest.raises(TokenizerError):
        unpack_tokenizer(given, tmp_path / "folder")
    assert not (tmp_path / "outside").exists()
