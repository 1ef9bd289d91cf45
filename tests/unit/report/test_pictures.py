"""Pictures in a run directory are embedded in its page; other files are not."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from scmil.errors import DataError
from scmil.report.pictures import section

JPEG = b"\xff\xd8\xff\xe0 a picture"


def put(run: Path, file: str, caption: str = "a caption") -> None:
    folder = run / "pictures"
    folder.mkdir(exist_ok=True)
    (folder / "heat.jpg").write_bytes(JPEG)
    rows = [{"words": "what is shown", "pictures": [{"file": file, "caption": caption}]}]
    (folder / "pictures.json").write_text(json.dumps(rows))


def test_a_run_without_pictures_has_no_such_section(tmp_path: Path) -> None:
    assert section(tmp_path) is None


def test_a_picture_is_inside_the_page_with_its_caption(tmp_path: Path) -> None:
    put(tmp_path, "heat.jpg", "tumour <b>")
    markup = section(tmp_path)
    assert markup is not None
    assert base64.b64encode(JPEG).decode() in markup
    assert "tumour &lt;b&gt;" in markup


@pytest.mark.parametrize("file", ["../experiment.json", "/etc/passwd", "script.svg"])
def test_no_other_file_is_shown(tmp_path: Path, file: str) -> None:
    put(tmp_path, file)
    with pytest.raises(DataError, match="is not a JPEG or PNG file in this folder"):
        section(tmp_path)


def test_a_damaged_list_and_a_missing_picture_are_errors(tmp_path: Path) -> None:
    put(tmp_path, "gone.jpg")
    with pytest.raises(DataError, match=r"Cannot read .*pictures.json"):
        section(tmp_path)
    (tmp_path / "pictures" / "pictures.json").write_text("{")
    with pytest.raises(DataError, match=r"Cannot read .*pictures.json"):
        section(tmp_path)


def test_a_link_out_of_the_run_is_not_followed(tmp_path: Path) -> None:
    run, secret = tmp_path / "run", tmp_path / "secret.jpg"
    run.mkdir()
    secret.write_bytes(b"a private picture")
    put(run, "link.jpg")
    (run / "pictures" / "link.jpg").symlink_to(secret)
    with pytest.raises(
        DataError, match=r"link\.jpg is a link to a file outside of .*run, which is not shown"
    ):
        section(run)


def test_a_folder_of_pictures_that_is_a_link_out_of_the_run_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    put(tmp_path / "outside", "heat.jpg")
    (tmp_path / "run" / "pictures").symlink_to(tmp_path / "outside" / "pictures")
    with pytest.raises(DataError, match="is a link to a file outside of"):
        section(tmp_path / "run")


def test_a_link_within_the_run_is_shown(tmp_path: Path) -> None:
    put(tmp_path, "link.jpg")
    (tmp_path / "pictures" / "link.jpg").symlink_to("heat.jpg")
    assert base64.b64encode(JPEG).decode() in str(section(tmp_path))


def test_a_pipe_among_the_pictures_does_not_block(tmp_path: Path) -> None:
    put(tmp_path, "pipe.jpg")
    os.mkfifo(tmp_path / "pictures" / "pipe.jpg")
    with pytest.raises(DataError, match="Cannot read"):
        section(tmp_path)
