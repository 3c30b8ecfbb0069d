"""The parts of a report's page: escaped HTML and the style sheet. Nothing here knows about runs.

Text enters only through `text()` and the functions below, which escape it. The page also forbids scripts and every network
request by a content security policy. So a model's completion can only be read, and cannot run anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from runnel.report.plots import DARK, STYLE

CSS = (
    """
:root{--ink:#1f2328;--soft:#5b6570;--line:#dfe3e8;--paper:#fff;--wash:#f6f8fa;--accent:#0b6e99;--good:#2b7a3f;--bad:#c0362c;
--warn:#8a6100;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#d7dce2;--soft:#8d97a3;--line:#2a3038;--paper:#14171b;--wash:#1b1f25;
--accent:#58b4dd;--good:#6cc283;--bad:#f0776c;--warn:#dcb04a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1080px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:17px;margin:44px 0 14px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:14px;margin:22px 0 8px}
p{margin:0 0 10px}.soft{color:var(--soft)}.small{font-size:13px}
a{color:var(--accent)}
.status{display:inline-block;font-size:13px;font-weight:600;padding:1px 9px;border-radius:20px;border:1px solid currentColor;
vertical-align:3px;margin-left:8px}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.facts{display:flex;flex-wrap:wrap;gap:14px 40px;margin:24px 0 6px}
.fact{min-width:92px}.fact b{display:block;font-size:21px;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}
.fact.lead{flex-basis:100%}.fact.lead b{font-size:40px;line-height:1.1;color:var(--accent)}
.fact span{font-size:13px;color:var(--soft)}
.verdict{font-size:18px;line-height:1.45;margin:16px 0;max-width:72ch}
.notice{border-left:3px solid var(--warn);background:var(--wash);padding:8px 14px;margin:14px 0;border-radius:0 6px 6px 0}
.notice.bad{border-color:var(--bad)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(330px,100%),1fr));gap:22px 26px}
figure{margin:0 0 18px;min-width:0}.grid figure{margin:0}figure svg{display:block;width:100%;height:auto}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:13px}
th,td{padding:6px 18px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
th,td .good,td .warn{white-space:nowrap}th.n,td.n{text-align:right;white-space:nowrap}
.stack{display:flex;height:20px;border-radius:4px;overflow:hidden;background:var(--wash)}
.stack i{display:block;min-width:1px;box-shadow:inset -1px 0 var(--paper)}
.worker.chart{font-size:14px}
.worker{display:grid;grid-template-columns:minmax(90px,150px) 1fr;gap:2px 14px;align-items:center;margin:0 0 14px}
.keys{grid-column:2;font-size:13px;color:var(--soft);display:flex;flex-wrap:wrap;gap:2px 16px}
.keys i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:6px}
.sample{border:1px solid var(--line);border-radius:8px;padding:10px 14px;margin:0 0 10px}
.sample pre{margin:2px 0 8px}.sample .reward{float:right;font-weight:600;font-variant-numeric:tabular-nums}
pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
pre.box{background:var(--wash);border-radius:8px;padding:12px 14px}pre.wide{white-space:pre;overflow-x:auto}
details{margin:6px 0}summary{cursor:pointer;color:var(--ink)}details>*:not(summary){margin-left:18px}
details.plain>*:not(summary){margin-left:0;margin-top:14px}
dl{display:grid;grid-template-columns:minmax(110px,max-content) 1fr;gap:3px 20px;margin:0 0 6px;font-size:14px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
footer{margin-top:52px;color:var(--soft);font-size:13px}
figure.narrow{display:none}
@media(max-width:560px){figure.wide{display:none}figure.narrow{display:block}
main{padding:22px 16px 44px}h1{font-size:21px}.worker{grid-template-columns:1fr}.keys{grid-column:1}
.facts{gap:12px 26px}}
@media print{details:not([open])>*{display:block}}
"""
    + STYLE
    + "@media(prefers-color-scheme:dark){"
    + DARK
    + "}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def text(value: object) -> str:
    """Escape a value: the text is safe between tags and inside an attribute."""
    return escape(str(value), quote=True)


def page(title: str, body: Iterable[str]) -> str:
    """A whole document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{CSS}</style></head><body><main>\n" + "\n".join(body) + "\n</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A part of the page with a heading; an empty text if the part is empty."""
    content = "".join(parts)
    return f"<section><h2>{text(title)}</h2>{content}</section>" if content else ""


def fact(value: str, label: str, *, lead: bool = False) -> str:
    """A number at the top of the page."""
    return f'<div class="fact{" lead" if lead else ""}"><b>{text(value)}</b><span>{text(label)}</span></div>'


def figure(svg: str, kind: str = "") -> str:
    """A chart. `svg` is markup and must come from `plots`. `kind` is `wide` or `narrow` for a chart that is shown only on such
    screens."""
    return f'<figure class="{kind}">{svg}</figure>' if kind else f"<figure>{svg}</figure>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table. Cells are markup, so pass texts through `text` first. `numbers` are the columns to align right."""

    def cells(row: Sequence[str], tag: str) -> str:
        classes = ['class="n"' if i in numbers else "" for i in range(len(row))]
        return "".join(f"<{tag} {name}>{cell}</{tag}>" for name, cell in zip(classes, row, strict=True))

    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    top = cells([text(h) for h in head], "th")
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def notices(lines: Sequence[str], *, bad: bool = False) -> str:
    """Sentences in a coloured box."""
    if not lines:
        return ""
    return f'<div class="notice{" bad" if bad else ""}">' + "".join(f"<p>{text(line)}</p>" for line in lines) + "</div>"


def definitions(items: Mapping[str, object]) -> str:
    """A list of names and values."""
    return "<dl>" + "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in items.items()) + "</dl>" if items else ""


def tree(data: Mapping[str, object]) -> str:
    """Nested data: plain values first, then each table under its name."""
    plain = {k: _value(v) for k, v in data.items() if not (isinstance(v, Mapping) and v)}
    nested = [(k, v) for k, v in data.items() if isinstance(v, Mapping) and v]
    return definitions(plain) + "".join(f"<details open><summary>{text(k)}</summary>{tree(v)}</details>" for k, v in nested)


def fold(title: str, content: str, *, opened: bool = False) -> str:
    """Content that the reader can fold and unfold."""
    state = " open" if opened else ""
    return f'<details class="plain"{state}><summary>{text(title)}</summary>{content}</details>' if content else ""


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_value(v) for v in value) or "none"
    if value is None or value == {}:
        return "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
