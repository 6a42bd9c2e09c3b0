"""A report as one HTML page that needs no other file: tables, sentences, embedded pictures."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence

from maxk.bench.report.sections import Section

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1, h2 { line-height: 1.2 }
.table { overflow-x: auto; margin: 0.8rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #8884; text-align: right }
th:first-child, td:first-child { text-align: left }
td b { color: #c0392b }
figure { margin: 1.5rem 0 }
img { max-width: 100%; background: white }
figcaption { font-size: 13px; opacity: 0.8 }
"""


def html_page(
    title: str, sections: Sequence[Section], pictures: Sequence[tuple[str, bytes]]
) -> str:
    r"""Returns the page.

    Args:
        title: Its heading.
        sections: Text in Markdown, of which tables, lists, paragraphs and bold are read.
        pictures: Captions and PNG files.

    Example:
        >>> section = Section("s", "| x |\n| --- |\n| a < b |", ())
        >>> "<td>a &lt; b</td>" in html_page("t", [section], [])
        True
    """
    body = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        body += [_block(block) for block in section.text.split("\n\n") if block.strip()]
    for caption, png in pictures:
        data = base64.b64encode(png).decode()
        text = html.escape(caption)
        body.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _block(block: str) -> str:
    lines = block.strip().split("\n")
    if all(line.startswith("|") for line in lines):
        return _table(lines)
    if all(line.startswith("- ") for line in lines):
        return "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _table(lines: Sequence[str]) -> str:
    head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    rows = ["<tr>" + "".join(f"<th>{_inline(cell)}</th>" for cell in head) + "</tr>"]
    rows += ["<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in line) + "</tr>"
             for line in body]  # fmt: skip
    return '<div class="table"><table>' + "".join(rows) + "</table></div>"


def _inline(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))
