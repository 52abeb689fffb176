"""A graph as SVG that stands alone: no font, script or file from anywhere; light and dark. Pure.

What comes first stands on the left. Lines that follow from others are left out; every box tells all its
reasons when pointed at, and to screen readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from gpustate.core.change import Disruption
from gpustate.formats.words import printable
from gpustate.graph.about import About, asked, told
from gpustate.graph.build import Edge, Graph
from gpustate.graph.layout import Layout, Point, layout
from gpustate.graph.order import order

_PAD = 20.0
_HIGH, _HIGHER = 34.0, 50.0
#: Width of a character of the two sizes of text that are used, a little more than fonts have.
_WIDE, _SMALL = 8.3, 6.7
_LONGEST = 34

#: The drawing's own colours; a page that has it inside gives its own for the variables.
COLOURS = """
.gs{--gs-bg:#fff;--gs-box:#f4f6f8;--gs-ink:#18212b;--gs-soft:#55606e;--gs-line:#7b8794;--gs-needs:#1f5fbf;--gs-behind:#8a4fbf}
@media (prefers-color-scheme:dark){.gs{--gs-bg:#0f141a;--gs-box:#1c2530;--gs-ink:#e4e9ef;--gs-soft:#9aa6b4;--gs-line:#77828f;--gs-needs:#7fb0ff;--gs-behind:#c79bf2}}
"""
STYLE = """
.gs text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--gs-ink)}
.gs .name{font-weight:600}.gs .small{font-size:11px;fill:var(--gs-soft)}
.gs .back{fill:var(--gs-bg)}.gs .box{fill:var(--gs-box);stroke:var(--gs-line)}
.gs .proof .box{stroke:var(--gs-needs);stroke-width:2}.gs .out .box{stroke-dasharray:4 3}.gs .out .name{fill:var(--gs-soft)}
.gs .line{fill:none;stroke-width:1.5;stroke:var(--gs-line)}.gs .after{stroke-dasharray:2 4}
.gs .needs{stroke:var(--gs-needs)}.gs .behind{stroke:var(--gs-behind);stroke-dasharray:7 4}
.gs .tip{fill:var(--gs-line)}.gs .tneeds{fill:var(--gs-needs)}.gs .tbehind{fill:var(--gs-behind)}
"""
#: Style for a page that has the drawing inside and colours of its own.
IN_PAGE = (
    ".gs{--gs-bg:var(--card);--gs-box:var(--code);--gs-ink:var(--ink);--gs-soft:var(--soft);"
    "--gs-line:var(--none);--gs-needs:var(--accent);--gs-behind:var(--drain)}" + STYLE
)
_CLASSES = {"needs": "needs", "known after": "behind", "after": "after", "before": "after"}
_LEGEND = (
    ("needs", "needs: a failure of the first keeps the second from being run"),
    ("behind", "known after: what the second does is seen when the first is done"),
    ("after", "after: order only"),
)


def as_svg(graph: Graph, about: Mapping[str, About] | None = None, *, alone: bool = True) -> str:
    """Draw a graph.

    Args:
        graph: what to draw.
        about: what is told of its states.
        alone: with its own style and background; a page that has the drawing inside brings these.
    """
    known = about or {}
    sizes = {name: _size(known.get(name, About(name))) for name in graph.nodes}
    made = layout(graph, sizes)
    width = max(made.width, 560.0) + 2 * _PAD
    height = made.height + 2 * _PAD + 22 + 18 * len(_LEGEND)
    lines = "".join(_line(edge, points) for edge, points in made.lines)
    boxes = "".join(
        _box(graph, known.get(name, About(name)), made.boxes[name], sizes[name])
        for name in order(graph)
    )
    style = f"<style>{COLOURS}{STYLE}</style>" if alone else ""
    back = f'<rect class="back" width="{width:.0f}" height="{height:.0f}"/>' if alone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gs" role="img" aria-labelledby="gs-title" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f'<title id="gs-title">Order of {len(graph.nodes)} states: {_text(", ".join(order(graph)))}</title>'
        f'{style}{back}<g transform="translate({_PAD:.0f} {_PAD:.0f})">{lines}{boxes}{_legend(made)}</g></svg>\n'
    )


def _text(value: str) -> str:
    return escape(printable(value.replace("\n", " ").replace("\t", " ")), quote=True)


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 3] + "..."


def _small(about: About) -> str:
    """The second line of a box."""
    if about.left_out:
        return f"not here: {about.left_out}"
    if about.only:
        return f"only where {about.only}"
    if about.place:
        return about.place.rsplit("/", 1)[-1]
    return f"may cost a {about.worst.word}" if about.worst > Disruption.RELOAD else ""


def _size(about: About) -> Point:
    name, small = _short(about.name), _short(_small(about))
    wide = max(len(name) * _WIDE, len(small) * _SMALL, 40.0) + 26
    return round(wide, 1), _HIGHER if small else _HIGH


def _box(graph: Graph, about: About, at: Point, size: Point) -> str:
    (x, y), (wide, high) = at, size
    small = _short(_small(about))
    marks = "state" + " proof" * about.proof + " out" * bool(about.left_out)
    said = [about.name, about.what, told(graph, about.name) or "waits for nothing", asked(about)]
    tip = _text(". ".join(part.rstrip(".") for part in said if part) + ".")
    second = f'<text class="small" x="{x + 13:.1f}" y="{y + 38:.1f}">{_text(small)}</text>'
    return (
        f'<g class="{marks}"><title>{tip}</title>'
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="8"/>'
        f'<text class="name" x="{x + 13:.1f}" y="{y + 22:.1f}">{_text(_short(about.name))}</text>'
        f"{second if small else ''}</g>"
    )


def _line(edge: Edge, points: list[Point]) -> str:
    """A curve through the points, level at each of them, with a tip at its end."""
    kind = _CLASSES[edge.why]
    (x, y), *rest = points
    path = f"M{x:.1f} {y:.1f}"
    end = rest[-1]
    for number, (nx, ny) in enumerate(rest):
        nx = nx - 8 if number == len(rest) - 1 else nx
        bend = (nx - x) / 2
        path += f"C{x + bend:.1f} {y:.1f} {nx - bend:.1f} {ny:.1f} {nx:.1f} {ny:.1f}"
        x, y = nx, ny
    tip = f"M{end[0]:.1f} {end[1]:.1f}l-9 -4.5v9z"
    mark = "tip" if kind == "after" else f"t{kind}"
    return f'<path class="line {kind}" d="{path}"/><path class="{mark}" d="{tip}"/>'


def _legend(made: Layout) -> str:
    y = made.height + 34
    parts: list[str] = []
    for kind, words in _LEGEND:
        mark = "tip" if kind == "after" else f"t{kind}"
        parts.append(
            f'<path class="line {kind}" d="M0 {y - 4:.1f}H30"/>'
            f'<path class="{mark}" d="M38 {y - 4:.1f}l-9 -4.5v9z"/>'
            f'<text class="small" x="46" y="{y:.1f}">{_text(words)}</text>'
        )
        y += 18
    return "".join(parts)
