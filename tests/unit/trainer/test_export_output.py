"""Artifacts are written atomically and not made twice."""

from pathlib import Path

import pytest

from clotho_trainer.export.output import Output
from clotho_trainer.failures import TrainerError


def write_file(path: Path) -> None:
    path.write_text("weights")


def write_folder(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_text("weights")


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_and_folders_get_their_final_names_once_complete(tmp_path: Path) -> None:
    output = Output(tmp_path / "deep" / "out", "source")
    made = output.write("model.gguf", write_file)
    assert [(file.path, file.bytes, len(file.sha256)) for file in made] == [("model.gguf", 7, 64)]
    output.write("safetensors", write_folder)
    assert [file.path for file in output.files_of("safetensors")] == [
        "safetensors/config.json",
        "safetensors/model.safetensors",
    ]
    assert visible(output.folder) == ["manifest.json", "model.gguf", "safetensors"]


def test_interrupted_artifacts_are_hidden_and_cleaned_up(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.write_text("wei")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Output(tmp_path, "source").write("model.gguf", half)
    assert not (tmp_path / "model.gguf").exists()
    again = Output(tmp_path, "source")
    assert visible(tmp_path) == []
    assert not again.holds("model.gguf")


def test_an_artifact_is_reused_only_if_source_and_content_match(tmp_path: Path) -> None:
    Output(tmp_path, "source").write("model.gguf", write_file)
    assert Output(tmp_path, "source").holds("model.gguf")
    assert not Output(tmp_path, "another source").holds("model.gguf")
    assert not Output(tmp_path, "source").holds("safetensors")
    (tmp_path / "model.gguf").write_text("wrights")
    assert not Output(tmp_path, "source").holds("model.gguf")
    (tmp_path / "model.gguf").unlink()
    assert not Output(tmp_path, "source").holds("model.gguf")


def test_a_damaged_manifest_counts_as_missing(tmp_path: Path) -> None:
    Output(tmp_path, "source").write("model.gguf", write_file)
    (tmp_path / "manifest.json").write_text("{")
    assert not Output(tmp_path, "source").holds("model.gguf")


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"needs 1000000000.0 GB .* raise storage.size"):
        Output(tmp_path, "source").require_space(10**18)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match=f"cannot write into {tmp_path / 'file'}"):
        Output(tmp_path / "file", "source")
