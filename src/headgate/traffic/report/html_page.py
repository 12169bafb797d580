"""The frame of a report: one HTML file with its style inside, light and dark, for screens of any width.

The page loads nothing: no script, no font, no image. Its policy forbids all of that, so that text from a log
cannot bring any either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root{--paper:#fff;--ink:#1c2430;--soft:#5c6878;--edge:#d8dee6;--card:#f5f7fa;--passed:#2f6fb0;--delayed:#c98a00;
--refused:#c8321f;--first:#8aa0b8;--second:#5b8def;--third:#8e5bd0;--fourth:#0f8a6d;--fifth:#c8321f}
@media (prefers-color-scheme:dark){:root{--paper:#12161c;--ink:#e6eaf0;--soft:#9aa6b5;--edge:#2c3440;
--card:#1a2029;--passed:#5b9fe0;--delayed:#e0a83a;--refused:#f0705c;--first:#7f90a6;--second:#7aa5ff;--third:#b18cf0;
--fourth:#3fc3a0;--fifth:#f0705c}}
:root{color-scheme:light dark}
body{margin:0 auto;max-width:46rem;padding:1.2rem 1rem 3rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:.2rem 0}h2{font-size:1.15rem;margin:2rem 0 .4rem}
p{margin:.4rem 0}.soft,figcaption,.legend{color:var(--soft)}
.big{font-size:1.4rem;font-weight:600;background:var(--card);border:1px solid var(--edge);border-radius:.5rem;
padding:.7rem 1rem;overflow-wrap:anywhere}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:.8rem 0}
.cards div{background:var(--card);border:1px solid var(--edge);border-radius:.5rem;padding:.5rem .8rem}
.cards b{display:block;font-size:1.25rem}
figure{margin:1rem 0}svg{width:100%;height:auto;display:block}
svg text{font:13px system-ui,sans-serif;fill:var(--soft)}svg .label{fill:var(--ink);font-weight:600}
.dashed{stroke-dasharray:5 4}
@media (min-width:40rem){svg text{font-size:10px}}
.grid{stroke:var(--edge)}.line{fill:none!important;stroke-width:2}.mark{fill:var(--ink)}
.legend span{margin-right:1rem;white-space:nowrap}.legend i{display:inline-block;width:.8em;height:.8em;
margin-right:.35em;border-radius:2px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--edge);vertical-align:top}
th{color:var(--soft);font-weight:500}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td:first-child{overflow-wrap:anywhere;min-width:9rem}
pre{background:var(--card);border:1px solid var(--edge);border-radius:.5rem;padding:.8rem;white-space:pre-wrap;
overflow-wrap:anywhere;font-size:.85rem}
th.n{white-space:normal}
@media (max-width:30rem){svg text{font-size:16px}table{font-size:.8rem}th,td{padding-right:.45rem}
.n{white-space:normal}.n span{white-space:nowrap}td:first-child{min-width:7rem}pre{font-size:.75rem}}
"""
_COLORS = ("passed", "delayed", "refused", "first", "second", "third", "fourth", "fifth")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(title: str, body: Iterable[str]) -> str:
    """Returns a whole page; the parts of the body are HTML already."""
    colors = "".join(
        f"rect.{name}{{fill:var(--{name})}}i.{name}{{background:var(--{name})}}.line.{name}{{stroke:var(--{name})}}"
        for name in _COLORS
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title><style>{_STYLE}{colors}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, css_class: str = "") -> str:
    return f"<p class='{css_class}'>{escape(text)}</p>" if css_class else f"<p>{escape(text)}</p>"


def cards(values: Iterable[tuple[str, str]]) -> str:
    """Returns figures in boxes: value and what it is."""
    boxes = "".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for value, name in values)
    return f'<div class="cards">{boxes}</div>'


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], numbers_from: int = 1) -> str:
    """Returns a table; columns from `numbers_from` on are aligned on the right where they hold numbers."""
    head = "".join(
        f'<th class="n">{escape(title)}</th>' if column >= numbers_from else f"<th>{escape(title)}</th>"
        for column, title in enumerate(titles)
    )
    lines = []
    for row in rows:
        cells = "".join(
            f'<td class="n">{_unbroken(_cell(value))}</td>'
            if column >= numbers_from
            else f"<td>{_cell(value)}</td>"
            for column, value in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else escape(str(value))


def _unbroken(text: str) -> str:
    """Returns HTML that is broken at blanks only: a date has hyphens."""
    return " ".join(f"<span>{word}</span>" for word in text.split()) if " " in text else text
