import re

import pytest
from judged_runs import judged
from made_runs import made_group

from runnel.core.errors import ConfigError
from runnel.report.markdown import fence, md, verdicts_markdown, write_markdown

EVIL = "a|b <img src=x onerror=alert(1)> [x](http://y) `c` @me $z$ ![i](u)"


def test_the_markdown_of_a_comparison(tmp_path):
    text = verdicts_markdown(judged(tmp_path))
    assert text.startswith("### Comparison over seeds\n\n- b is better than a\\_1: IQM of return 6.5 against 2.5")
    assert "| a\\_1 | 1 | 4 | 2.5 (" in text
    assert "| b | ▁" in text
    assert "█ | 6.5 |" in text
    assert "<details><summary>notes</summary>" in text
    assert len(text.splitlines()) < 40


def test_a_line_for_each_run(tmp_path):
    runs = made_group(tmp_path, [10.0, 20.0], recipe="dqn")
    text = write_markdown(tmp_path / "r.md", runs=[run.path for run in runs]).read_text()
    assert "| dqn-CartPole-v1-2 | finished | 2 | 20 (19 to 21) | 1,000 |" in text
    assert text.count("▁") == 2
    with pytest.raises(ConfigError, match="cannot be written"):
        write_markdown(tmp_path / "no" / "r.md", runs=[runs[0].path])


def test_markdown_shows_text_as_it_is():
    shown = md(EVIL)
    assert "<" not in shown
    assert not re.search(r"(?<!\\)[|`\[\]$]", shown)
    assert "@" not in shown
    assert "://" not in shown
    assert md("# a\n- b") == "\\# a - b"
    assert md("1. one") == "1\\. one"
    assert md("runs 1 (2)") == "runs 1 (2)"


def test_nothing_closes_a_fence():
    assert fence("x\n```\n<b>\n````") == "`````\nx\n```\n<b>\n````\n`````\n"
