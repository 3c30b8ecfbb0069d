import re
import sys

import pytest
from judged_runs import judged
from made_runs import made_group

from runnel.core.errors import ConfigError
from runnel.eval.aggregates import Interval
from runnel.report.collect import collect
from runnel.report.paper import _best, latex, write_paper
from runnel.report.verdicts import make_verdicts


def test_the_table_of_a_paper_is_whole_and_escaped(tmp_path):
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


def test_several_tasks_have_a_table_of_their_own(tmp_path):
    pytest.importorskip("matplotlib")
    for task in ("CartPole-v1", "Pendulum-v1"):
        made_group(tmp_path / "a", [-100.0, -110.0], task=task)
        made_group(tmp_path / "b", [-50.0, -55.0], task=task)
    write_paper(make_verdicts(collect([tmp_path / "a", tmp_path / "b"])), tmp_path / "paper")
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


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"runnel\[paper\]"):
        write_paper(judged(tmp_path), tmp_path / "paper")
