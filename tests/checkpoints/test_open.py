"""Whatever a path leads to: a checkpoint, or one line that says what is wrong."""

import os

import pytest

from goinfer.compiler import errors
from goinfer.compiler.checkpoints import open_checkpoint
from tests.checkpoints.gguf_forge import MODEL
from tests.checkpoints.safetensors_forge import file_of, folder, weights


def line(path, error):
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_gguf_file_by_its_content_not_its_name(tmp_path):
    assert open_checkpoint(str(MODEL.write(tmp_path / "model.bin"))).kind == "gguf"


def test_nothing_there(tmp_path):
    assert "no such file" in line(tmp_path / "gone.gguf", errors.NotACheckpointError)


def test_an_empty_file(tmp_path):
    (tmp_path / "m.gguf").touch()
    assert line(tmp_path / "m.gguf", errors.NotACheckpointError) == "m.gguf: not a GGUF file: it is empty"


def test_a_text_file_named_gguf(tmp_path):
    (tmp_path / "m.gguf").write_text("hello\nworld\n")
    assert "not a GGUF file" in line(tmp_path / "m.gguf", errors.NotACheckpointError)


def test_a_directory_without_config(tmp_path):
    assert "no config.json" in line(tmp_path, errors.NotACheckpointError)


def test_one_file_of_a_folder(tmp_path):
    path = folder(tmp_path / "m", {"model.safetensors": file_of(weights("w"))}) / "model.safetensors"
    assert "give the directory" in line(path, errors.NotACheckpointError)


def test_something_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in line(tmp_path / "pipe.gguf", errors.NotACheckpointError)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = MODEL.write(tmp_path / "m.gguf")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert "Permission denied" in line(path, errors.NotACheckpointError)


def test_names_that_would_break_the_line(tmp_path):
    path = tmp_path / "a\nb.gguf"
    path.write_bytes(b"GGUF")
    assert r"a\nb.gguf" in line(path, errors.CheckpointTruncatedError)


def test_a_message_is_one_short_printable_line():
    for kind in (errors.CheckpointError, errors.UnsupportedError):
        assert str(kind("a\nb\x1b[31m\u2028ü")) == r"a\nb\x1b[31m\u2028ü"
        assert str(kind("x" * 800)) == "x" * 800
        assert len(str(kind("\n" * 10**6))) < 900


def test_a_refusal_leaves_no_file_open(tmp_path):
    raw = MODEL.bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(raw[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        line(path, errors.TensorRangeError)
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing(tmp_path):
    checkpoint = open_checkpoint(MODEL.write(tmp_path / "m.gguf"))
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(errors.CheckpointReadError):
        checkpoint.read("output_norm.weight")
