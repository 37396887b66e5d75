"""Draws a page with Bokeh; a program, too, for an environment of its own that has it.

The program reads what contents.py says as JSON, and writes the page: standard input and output.
"""

from __future__ import annotations

import html
import json
import string
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from bokeh.embed import components
from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    Legend,
    LegendItem,
    NumeralTickFormatter,
    Range1d,
    Span,
)
from bokeh.plotting import figure
from bokeh.resources import Resources
from bokeh.themes import Theme

from .template import PAGE

LANE_HEIGHT = 34  # pixels, as are the following
MEMORY_HEIGHT = 190
AXES = 130  # left of the figures
LEGEND = 185  # right of them
HALF = 0.4  # of a lane's height, that its events take
SHOWN = ("begin", "end", "took", "name", "why", "count")  # of an event, or of several as one
TOOLS = "xpan,xwheel_zoom,xbox_zoom,xzoom_in,xzoom_out,reset"
# Of Okabe and Ito: told apart by people who see colours differently, too.
COLOURS = {
    "computes": "#0072b2",
    "made again": "#cc79a7",
    "waits for a page-in": "#d55e00",
    "waits for a late page-in": "#e69f00",
    "waits for memory": "#8c510a",
    "waits for the host": "#777777",
    "in ahead": "#009e73",
    "in on demand": "#d55e00",
    "out by plan": "#56b4e9",
    "out for room": "#8c510a",
    "moved": "#777777",
    "read from disk": "#0072b2",
    "written to disk": "#e69f00",
    "dropped by plan": "#cc79a7",
    "dropped for room": "#8c510a",
    "parameter": "#0072b2",
    "gradient": "#e69f00",
    "optimizer": "#009e73",
    "activation": "#56b4e9",
    "workspace": "#cc79a7",
    "input": "#d55e00",
    "other": "#999999",
}
FONT = "system-ui, sans-serif"
THEME = Theme(
    json={
        "attrs": {
            "Axis": {
                "axis_label_text_font": FONT,
                "axis_label_text_font_style": "normal",
                "major_label_text_font": FONT,
                "minor_tick_line_color": None,
            },
            "Legend": {
                "border_line_color": None,
                "glyph_height": 14,
                "glyph_width": 14,
                "label_height": 14,
                "label_text_font": FONT,
                "label_text_font_size": "11px",
                "spacing": 2,
            },
            "Plot": {"outline_line_color": None},
        }
    }
)
TOOLTIP = (
    """<div class="tip"><b>@name</b> @took{0,0.000} ms, from @begin{0,0.000} ms<br>@why</div>"""
)


def draw(page: dict[str, Any]) -> str:
    """The page as HTML, from what contents.py says."""
    time = Range1d(0, page["ms"], bounds=(0, page["ms"]), min_interval=1e-3, name="time")
    figures = {"lanes": lanes(page, time)}
    for number, memory in enumerate(page["memory"]):
        figures[f"memory{number}"] = memory_figure(memory, time)
    figures["memory1"].xaxis.axis_label = "milliseconds from the beginning of the step"
    figures["memory1"].height += 20
    script, places = components(figures, theme=THEME)
    scripts = Resources(mode="inline", components=["bokeh"]).js_raw
    return string.Template(PAGE).substitute(
        title=html.escape(page["title"]),
        facts="".join(map(fact, page["facts"])),
        figures="\n".join(places.values()),
        tables="\n".join(map(table, page["tables"])),
        licence=licence(),
        events=json.dumps(all_events(page), separators=(",", ":")).replace("</", "<\\/"),
        library="\n".join(f"<script>{source}</script>" for source in scripts),
        script=script,
    )


def lanes(page: dict[str, Any], time: Range1d) -> figure:
    """What happened, a lane for each of what does it."""
    names = [lane for lane, _ in page["lanes"]]
    plot = plain_figure(time, LANE_HEIGHT * len(names) + 60)
    plot.y_range = Range1d(len(names) - 0.5, -0.5)
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(names))))
    plot.yaxis.major_label_overrides = dict(enumerate(names))
    plot.ygrid.visible = False
    items: dict[str, list[Any]] = {}
    for place, (lane, kinds) in enumerate(page["lanes"]):
        for kind, _ in kinds:
            items.setdefault(kind, []).append(events(plot, place, lane, kind))
    shown = [renderer for renderers in items.values() for renderer in renderers]
    hover = {"point_policy": "follow_mouse", **at_most(3)}
    plot.add_tools(HoverTool(renderers=shown, tooltips=TOOLTIP, **hover))
    for kind, renderers in items.items():
        # The legend takes its colours from what there is, so there is always something.
        nothing = {"left": [-1], "right": [-1], "top": [-1], "bottom": [-1]}
        renderers.append(plot.quad(source=ColumnDataSource(nothing), **style(kind)))
    legend(plot, items)
    return plot


def events(plot: figure, place: int, lane: str, kind: str) -> Any:
    """Where the page puts the events of one kind on a lane: as many as can be told apart."""
    columns: dict[str, list[Any]] = {name: [] for name in SHOWN}
    return plot.quad(
        left="begin",
        right="end",
        top=place - HALF,
        bottom=place + HALF,
        source=ColumnDataSource(columns, name=source_name(lane, kind)),
        **style(kind),
    )


def at_most(count: int) -> dict[str, int]:
    """How many are told of that lie under the pointer; Bokeh 3.4 does not know that yet."""
    return {"limit": count} if "limit" in HoverTool.properties() else {}


def style(kind: str) -> dict[str, Any]:
    """How the events of a kind look."""
    colour = COLOURS[kind]
    return {"fill_color": colour, "line_color": colour, "line_width": 0.5, "fill_alpha": 0.8}


def source_name(lane: str, kind: str) -> str:
    """Of what holds the events that are shown of a kind on a lane."""
    return f"{lane}: {kind}"


def all_events(page: dict[str, Any]) -> dict[str, Any]:
    """Every event, for the page: each text once."""
    words: dict[str, int] = {}
    kinds = [
        {
            "source": source_name(lane, kind),
            "begin": columns["begin"],
            "end": columns["end"],
            "name": [words.setdefault(word, len(words)) for word in columns["name"]],
            "why": [words.setdefault(word, len(words)) for word in columns["why"]],
        }
        for lane, kinds in page["lanes"]
        for kind, columns in kinds
    ]
    return {"words": list(words), "kinds": kinds}


def memory_figure(memory: dict[str, Any], time: Range1d) -> figure:
    """What storages of each kind take, one on the other."""
    plot = plain_figure(time, MEMORY_HEIGHT)
    plot.yaxis.axis_label = f"{memory['title']}, GiB"
    times = [*memory["times"], time.end]
    kinds = {name: [*row, *row[-1:]] for name, row in memory["kinds"].items()}
    below = [0.0] * len(times)
    items = {}
    for name, row in kinds.items():
        above = [sum(pair) for pair in zip(below, row)]
        source = ColumnDataSource({"x": times, "below": below, "above": above})
        area = plot.varea_step(
            x="x",
            y1="below",
            y2="above",
            source=source,
            step_mode="after",
            fill_color=COLOURS[name],
            fill_alpha=0.85,
        )
        items[name] = [area]
        below = above
    top = max([1e-3, memory["limit"] or 0, *below])
    plot.y_range = Range1d(0, 1.08 * top)
    if memory["limit"]:
        limit = Span(
            location=memory["limit"], dimension="width", line_dash="dashed", line_width=1.5
        )
        plot.add_layout(limit)
    source = ColumnDataSource({"x": times, "sum": below, **kinds})
    line = plot.line("x", "sum", source=source, line_alpha=0)  # to be pointed at
    rows = [(name, f"@{{{name}}}{{0.00}} GiB") for name in kinds]
    tips = [("at", "$x{0,0.000} ms"), *rows, ("sum", "@sum{0.00} GiB")]
    hover = {"mode": "vline", "line_policy": "interp", **at_most(1)}
    plot.add_tools(HoverTool(renderers=[line], tooltips=tips, **hover))
    legend(plot, items)
    return plot


def plain_figure(time: Range1d, height: int) -> figure:
    """A figure over the step's time."""
    plot = figure(
        x_range=time,
        height=height,
        sizing_mode="stretch_width",
        tools=TOOLS,
        active_scroll="xwheel_zoom",
        toolbar_location=None,
        min_border_left=AXES,
        min_border_right=LEGEND,
        lod_threshold=None,  # few are drawn at a time
    )
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[0000]")
    return plot


def legend(plot: figure, items: dict[str, list[Any]]) -> None:
    """At the right, where nothing is drawn; a click hides what it names."""
    entries = [LegendItem(label=name, renderers=found) for name, found in items.items()]
    plot.add_layout(Legend(items=entries, click_policy="hide"), "right")


def fact(pair: tuple[str, str]) -> str:
    """A figure with what it is of."""
    name, value = map(html.escape, pair)
    return f"<div><dt>{name}</dt><dd>{value}</dd></div>"


def table(contents: dict[str, Any]) -> str:
    """A table whose rows show what they are about."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in contents["columns"])
    rows = "".join(
        f'<tr data-begin="{row["begin"]}" data-end="{row["end"]}">'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row["cells"])
        + f'<td><button type="button" aria-label="{show_label(row)}">show</button></td></tr>'
        for row in contents["rows"]
    )
    title = html.escape(contents["title"])
    return f"<h2>{title}</h2><table><thead><tr>{head}<th></th></tr></thead>{rows}</table>"


def show_label(row: dict[str, Any]) -> str:
    """What its button does, for those who do not see where it is."""
    return f"show {row['begin']:,.2f} to {row['end']:,.2f} ms"


def licence() -> str:
    """Of the library that is part of the page."""
    library = metadata.distribution("bokeh")
    for name in library.files or []:
        if name.name == "LICENSE.txt":
            text = Path(str(name.locate())).read_text(encoding="utf-8")
            return html.escape(f"Bokeh {library.version}\n\n{text}")
    raise SystemExit("Bokeh is installed without its licence")


if __name__ == "__main__":
    sys.stdout.write(draw(json.load(sys.stdin)))
