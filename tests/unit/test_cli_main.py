"""The command as a whole: what is not a bug ends in a sentence."""

from __future__ import annotations

import errno

import pytest

from scmil import cli


def test_what_the_system_refuses_is_a_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/result.json")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "The system refuses: No space left on device: runs/result.json. What is finished is kept; start again when it is "
        "mended.\n"
    )
