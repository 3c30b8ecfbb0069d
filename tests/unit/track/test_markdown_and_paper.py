import re
import sys

import pytest
from made_runs import made_group
from test_judge import tmp_path  # noqa: F401

from runnel.core.errors import ConfigError
from runnel.eval.aggregates import Interval
from runnel.report.collect import collect
from runnel.report.markdown import fence, judgement_markdown, md, write_markdown
from runnel.report.paper import _best, latex, write_paper
from runnel.report.verdicts import judge

EVIL = "a|b <img src=x onerror=alert(1)> [x](http://y) `c` @me $z$ ![i](u)"


def judged(root, **settings):
    made_group(root / "a_1", [1.0, 2.0, 3.0, 4.0], task="x_1 & 100%", **settings)
    made_group(root / "b", [5.0, 6.0, 7.0, 8.0], task="x_1 & 100%", **settings)
    return judge(collect([root / "a_1", root / "b"]))


def test_the_markdown_of_a_comparison(tmp_path):  # noqa: F811
    text = judgement_markdown(judged(tmp_path))
    assert text.startswith("### Comparison over seeds\n\n- b is better than a\\_1: IQM of return 6.5 against 2.5")
    assert "| a\\_1 | 1 | 4 | 2.5 (" in text
    assert "| b | ▁" in text
    assert "█ | 6.5 |" in text
    assert "<details><summary>notes</summary>" in text
    assert len(text.splitlines()) < 40


def test_a_line_for_each_run(tmp_path):  # noqa: F811
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


def test_the_table_of_a_paper_is_whole_and_escaped(tmp_path):  # noqa: F811
    pytest.importorskip("matplotlib")
    files = {path.name: path for path in write_paper(judged(tmp_path), tmp_path / "paper")}
    assert set(files) == {f"{n}.{k}" for n in ("efficiency", "profile", "intervals") for k in ("svg", "pdf")} | {"table.tex"}
    assert files["profile.pdf"].read_bytes().startswith(b"%PDF-")
    assert files["profile.svg"].read_text().rstrip().endswith("</svg>")
    table = files["table.tex"].read_text()
    rows = [line.strip() for line in table.splitlines() if line.rstrip().endswith(r"\\")]
    assert len(rows) == 3
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {4}
    assert rows[1].startswith(r"a\_1 & 4 & 2.5 {\scriptsize [")
    assert rows[2].startswith(r"b & 4 & \textbf{6.5} {\scriptsize [")
    assert r"Return on x\_1 \& 100\%," in table
    for name in ("table", "tabular"):
        assert table.count(rf"\begin{{{name}}}") == table.count(rf"\end{{{name}}}") == 1
    assert re.findall(r"\\(toprule|midrule|bottomrule)", table) == ["toprule", "midrule", "bottomrule"]
    assert table.count("{") - table.count(r"\{") == table.count("}") - table.count(r"\}")


def test_several_tasks_have_a_table_of_their_own(tmp_path):  # noqa: F811
    pytest.importorskip("matplotlib")
    for task in ("CartPole-v1", "Pendulum-v1"):
        made_group(tmp_path / "a", [-100.0, -110.0], task=task)
        made_group(tmp_path / "b", [-50.0, -55.0], task=task)
    write_paper(judge(collect([tmp_path / "a", tmp_path / "b"])), tmp_path / "paper")
    table = (tmp_path / "paper" / "tasks.tex").read_text()
    assert r"CartPole-v1 & \textbf{$-$105} {\scriptsize [$-$168.5, $-$41.47]} & \textbf{$-$52.5}" in table
    assert "Normalised score on 2 tasks" in (tmp_path / "paper" / "table.tex").read_text()


def test_latex_shows_text_as_it_is():
    assert latex("$a_b$ {#1} ~^\\ 50%&") == (r"\$a\_b\$ \{\#1\} \textasciitilde{}\textasciicircum{}\textbackslash{} 50\%\&")
    assert latex("naïve\nline – <x>") == "na?ve line -- \\textless{}x\\textgreater{}"


def test_bold_is_what_the_interval_of_reaches_the_best():
    cells = [Interval(5.0, 4.0, 6.0), Interval(4.0, 3.0, 5.0), Interval(3.0, 2.0, 4.0), None]
    assert _best(cells, less=False) == {0, 1}
    assert _best(cells, less=True) == {1, 2}
    assert _best([1.0], less=False) == set()


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"runnel\[paper\]"):
        write_paper(judged(tmp_path), tmp_path / "paper")
