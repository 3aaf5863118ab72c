"""Ranking of the leaderboard's rows, and the page and table that show it.

A row is the dictionary that tools/leaderboard.py writes for a method. The functions here need rows
and the board's settings only, so the page can be made on any machine.
"""

import html
import math
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Student's 97.5 % quantiles for 1, 2, … degrees of freedom.
T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]
T975 += [2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]

# Relative excess over the requested density that does not count against a method.
SLACK = 0.05

# Method that others are compared with; without its row, the best one of each density.
REFERENCE = "priority"

# Colours that most people can distinguish (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#2A9DD6", "#7A3E9D"]
COLOURS += ["#A0522D", "#4B6F00", "#C2185B", "#3B4CC0"]
GREY = "#8a8a8a"


# The ranking.


@dataclass
class Standing:
    """Result of a method at a density, with means over the texts."""

    stem: str
    name: str
    cell: dict
    error: float
    read: float
    index: float
    ratio: tuple[float, float | None, float | None] | None = None
    front: bool = False

    @property
    def scans(self) -> bool:
        """True if a step computes the scores of all keys exactly, which saves no time."""
        return self.cell["scans"]


def key(density: float) -> str:
    """Returns the key of a density in a row's cells."""
    return f"{density:g}"


def rank(rows: list[dict], kinds: Sequence[str], density: float) -> list[Standing]:
    """Returns the methods that have a result on every text, sorted by their mean error."""
    standings = []
    for row in rows:
        cell = row["cells"].get(key(density))
        if cell is None or missing_kinds(cell, kinds):
            continue
        results = [cell["texts"][kind] for kind in kinds]
        error = statistics.fmean(result["error"] for result in results)
        read = statistics.fmean(result["read"] for result in results)
        index = statistics.fmean(result["index"] for result in results)
        standings.append(Standing(row["stem"], row["method"], cell, error, read, index))
    standings.sort(key=lambda standing: (standing.error, standing.stem))
    reference = find_reference(standings)
    for standing in standings:
        standing.front = is_on_front(standing, standings, density)
        if standing is not reference:
            standing.ratio = compare_errors(standing, reference, kinds)
    return standings


def missing_kinds(cell: dict, kinds: Sequence[str]) -> list[str]:
    return [kind for kind in kinds if kind not in cell["texts"]]


def find_reference(standings: list[Standing]) -> Standing | None:
    """Returns the method that others are compared with."""
    for standing in standings:
        if standing.stem == REFERENCE:
            return standing
    ranked = [standing for standing in standings if not standing.scans]
    return (ranked or standings or [None])[0]


def is_on_front(standing: Standing, others: list[Standing], density: float) -> bool:
    """Returns True if no other method beats this one.

    A method beats another if it has at most its error, its index and its excess over the density,
    and less of one of them. Methods that compute the scores of all keys do not take part.
    """

    def costs(standing: Standing) -> tuple[float, float, float]:
        return standing.error, standing.index, max(standing.read, (1 + SLACK) * density)

    def beats(other: Standing) -> bool:
        pairs = list(zip(costs(other), costs(standing)))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    return not standing.scans and not any(beats(other) for other in others if not other.scans)


def compare_errors(
    standing: Standing, reference: Standing, kinds: Sequence[str]
) -> tuple[float, float | None, float | None] | None:
    """Returns the ratio of two methods' errors, with a 95 % interval.

    The ratio is the geometric mean of the ratios on each text, and the interval is Student's for
    the mean of their logarithms, which are paired by text. A single text has no interval, and an
    error of 0 has no ratio.
    """
    ours = [standing.cell["texts"][kind]["error"] for kind in kinds]
    theirs = [reference.cell["texts"][kind]["error"] for kind in kinds]
    if min(ours + theirs) <= 0:
        return None
    logs = [math.log(a / b) for a, b in zip(ours, theirs)]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return math.exp(mean), None, None
    quantile = T975[min(len(logs) - 1, len(T975)) - 1]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def list_missing(rows: list[dict], kinds: Sequence[str], density: float) -> list[str]:
    """Returns a reason for each method that is not ranked at a density."""
    reasons = []
    for row in rows:
        cell = row["cells"].get(key(density))
        if cell is None:
            reason = row["missing"].get(key(density), "not measured")
        elif missing_kinds(cell, kinds):
            reason = f"no result on {', '.join(missing_kinds(cell, kinds))}"
        else:
            continue
        reasons.append(f"{row['method']} ({reason})")
    return reasons


# Numbers as text.


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def name_density(density: float) -> str:
    return f"{100 * density:g} %"


def show_error(error: float) -> str:
    return f"{error:.4f}"


def show_ratio(ratio: tuple[float, float | None, float | None] | None) -> str:
    if ratio is None:
        return "-"
    mean, low, high = ratio
    if low is None:
        return f"{mean:.2f}"
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def show_bytes(count: float) -> str:
    return f"{count:.0f}" if count >= 10 or count == 0 else f"{count:.1f}"


def is_off(standing: Standing, density: float) -> bool:
    """Returns True if a method reads another share than requested."""
    return abs(standing.read / density - 1) > SLACK


def show_read(standing: Standing, density: float) -> str:
    """Marks a share that differs from the requested one."""
    return percent(standing.read) + (" ▲" if is_off(standing, density) else "")


def show_time(time: dict | None) -> str:
    return "-" if time is None else f"{time['relative']:.2f}"


def show_score(ruler: dict | None) -> str:
    return "-" if ruler is None else f"{100 * ruler['score']:.1f}"


def show_promise(cell: dict) -> str:
    promise = cell["promise"]
    if promise is None:
        return "nothing"
    grounds = {"finite-sample": "proved", "exact": "proved", "asymptotic": "asymptotic"}
    violated, judged = cell["violations"]
    limit = " to ".join(f"{epsilon:.2g}" for epsilon in dict.fromkeys(promise["epsilon"]))
    return (
        f"error ≤ {limit} with probability {1 - promise['delta']:g}, "
        f"{grounds.get(promise['kind'], promise['kind'])}; {violated} of {judged} rows exceeded it"
    )


# Markdown.


def describe_settings(settings: dict, rows: list[dict]) -> str:
    """Describes the measurement in sentences, without line breaks."""
    kinds = list(settings["texts"])
    ruler = settings["ruler"]
    parts = [
        f"Settings were chosen on {join(settings['tuning']['texts'])} (layers "
        f"{settings['tuning']['layers']}, {settings['tuning']['queries']} queries), and measured "
        f"on {len(kinds)} other texts of {settings['tokens']:,} tokens: {join(kinds)} (layers "
        f"{settings['layers']}, {settings['queries']} queries).",
        f"Times are of one decode step with {settings['speed']['tokens']:,} tokens and "
        f"{count(settings['speed']['threads'], 'thread')}, relative to dense attention.",
        f"RULER: {count(len(ruler['tasks']), 'task')}, {count(ruler['cases'], 'case')} each, "
        f"{ruler['context']:,} tokens, at {join(map(name_density, ruler['densities']))}.",
    ]
    machines = sorted({row["machine"] for row in rows})
    versions = sorted({row["vattention"] for row in rows})
    parts.append(f"Measured with vattention {join(versions)} on {join(machines)}.")
    return " ".join([*parts, settings["note"]]).strip()


def join(words: Sequence[str]) -> str:
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def find_dense_score(rows: list[dict]) -> float | None:
    """Returns the score of dense attention, which is equal in all rows that were run together."""
    scores = [cell["ruler"]["dense"] for row in rows for cell in row["cells"].values()
              if cell["ruler"]]  # fmt: skip
    return statistics.fmean(scores) if scores else None


def make_markdown(rows: list[dict], settings: dict) -> str:
    """Returns the table of docs/methods.md: a line for each method, errors at each density."""
    kinds, densities = list(settings["texts"]), settings["densities"]
    main = find_main_density(settings)
    found = {
        density: {standing.stem: standing for standing in rank(rows, kinds, density)}
        for density in densities
    }
    dense = find_dense_score(rows)
    intro = [
        describe_settings(settings, rows),
        "Errors are means over the texts, sorted by those at "
        f"{name_density(main)}, at which time and RULER are measured, too. **Bold**: on the front "
        "at this density. *Italic*: computes the scores of all keys, and does not take part in the "
        "front. †: promises a bounded error. ▲: reads another share than requested. Times and "
        "RULER scores are those of the settings chosen on other texts, at the share that these "
        "read there; a timed step reads all tokens where that costs less.",
    ]
    if dense is not None:
        intro.append(f"Dense attention has a RULER score of {100 * dense:.1f} %.")
    heads = ["method (index, bytes)", *map(name_density, densities), "time", "RULER, %"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    order = sorted(rows, key=lambda row: get_error(found[main].get(row["stem"])))
    for row in order:
        standings = [found[density].get(row["stem"]) for density in densities]
        if any(standings):
            lines.append(write_line(standings, found[main].get(row["stem"]), densities))
    blocks = [textwrap.fill(text, 100, break_on_hyphens=False) for text in intro]
    return "\n\n".join([*blocks, "\n".join(lines)]) + "\n"


def find_main_density(settings: dict) -> float:
    """Returns the first density of RULER, or else the middle one."""
    densities = settings["densities"]
    chosen = [density for density in settings["ruler"]["densities"] if density in densities]
    return (chosen or [densities[len(densities) // 2]])[0]


def get_error(standing: Standing | None) -> float:
    """Returns the error by which methods are sorted; infinity for a missing result."""
    return math.inf if standing is None else standing.error


def write_line(standings: list, main: Standing | None, densities: Sequence[float]) -> str:
    """Returns the line of a method. `standings` has its result at each density, or `None`."""
    first = next(standing for standing in [main, *standings] if standing)
    cells = [f"{mark_name(first)} ({show_bytes(first.index)})"]
    for standing, density in zip(standings, densities):
        if standing is None:
            cells.append("-")
            continue
        error = show_error(standing.error)
        error = f"**{error}**" if standing.front else error
        cells.append(error + (" ▲" if is_off(standing, density) else ""))
    time, ruler = (main.cell["time"], main.cell["ruler"]) if main else (None, None)
    cells += [add_part(show_time(time), time), add_part(show_score(ruler), ruler)]
    return f"| {' | '.join(cells)} |"


def name_reference(table: list[Standing]) -> str:
    """Returns the reference of ratios, for the head of a column."""
    reference = find_reference(table)
    return reference.name if reference else "the best"


def mark_name(standing: Standing) -> str:
    name = f"*{standing.name}*" if standing.scans else standing.name
    return name + (" †" if standing.cell["promise"] else "")


# Plots.


@dataclass
class Scale:
    """Map from values to pixels: linear in `warp` of the value."""

    low: float
    high: float
    start: float
    end: float
    warp: Callable[[float], float] = math.log

    def place(self, value: float) -> float:
        low, high = self.warp(self.low), self.warp(self.high)
        share = (self.warp(value) - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)


def find_ticks(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 times powers of ten from `low` to `high`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def spread(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Moves ascending places so that neighbours have a distance of at least `gap`."""
    moved = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, low))
    if moved and moved[-1] > high:
        moved[-1] = high
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    return moved


def write_text(x: float, y: float, text: str, anchor: str = "start", **style: str) -> str:
    more = "".join(f' {name}="{value}"' for name, value in style.items())
    escaped = html.escape(text)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escaped}</text>'


def draw_axes(x: Scale, y: Scale, x_ticks: list, y_ticks: list, titles: tuple[str, str]) -> list:
    """Draws grid lines, labels of ticks (value, text), and the titles of both axes."""
    parts = []
    for value, label in x_ticks:
        at = x.place(value)
        parts.append(f'<path d="M{at} {y.start}V{y.end}" class="grid"/>')
        parts.append(write_text(at, y.start + 16, label, "middle"))
    for value, label in y_ticks:
        at = y.place(value)
        parts.append(f'<path d="M{x.start} {at}H{x.end}" class="grid"/>')
        parts.append(write_text(x.start - 6, at + 4, label, "end"))
    middle = (x.start + x.end) / 2
    parts.append(write_text(middle, y.start + 36, titles[0], "middle"))
    parts.append(write_text(x.start - 46, y.end - 12, titles[1]))
    return parts


def wrap_svg(parts: list[str], width: float, height: float, title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
    )
    return "\n".join([head, f"<title>{html.escape(title)}</title>", *parts, "</svg>"])


def choose_colours(tables: dict[float, list[Standing]]) -> dict[str, str]:
    """Returns the colours of the methods on any front, by their stems."""
    stems = [standing.stem for table in tables.values() for standing in table if standing.front]
    stems = list(dict.fromkeys(stems))
    return {stem: COLOURS[i % len(COLOURS)] for i, stem in enumerate(stems)}


def find_range(values: list[float]) -> tuple[float, float]:
    """Returns positive limits around positive values."""
    values = [value for value in values if value > 0] or [1.0]
    return min(values) / 1.25, max(values) * 1.25


def plot_curves(tables: dict[float, list[Standing]], colours: dict[str, str]) -> str:
    """Draws the error of each method against the share that it reads."""
    curves: dict[str, list[Standing]] = {}
    for table in tables.values():
        for standing in table:
            curves.setdefault(standing.stem, []).append(standing)
    points = [standing for curve in curves.values() for standing in curve if standing.error > 0]
    if not points:
        return ""
    height = max(460, 15 * len(curves) + 110)
    x = Scale(*find_range([point.read for point in points]), 64, 640)
    y = Scale(*find_range([point.error for point in points]), height - 50, 40)
    x_ticks = [(tick, name_density(tick)) for tick in find_ticks(x.low, x.high)]
    y_ticks = [(tick, f"{tick:g}") for tick in find_ticks(y.low, y.high)]
    titles = ("tokens read, mean over the texts", "relative error of the output, mean")
    parts = draw_axes(x, y, x_ticks, y_ticks, titles)
    ends = []
    for stem, curve in sorted(curves.items(), key=lambda entry: entry[0] in colours):
        curve = [standing for standing in curve if standing.error > 0]
        if not curve:
            continue
        colour = colours.get(stem, GREY)
        width = 2.5 if stem in colours else 1.2
        dash = ' stroke-dasharray="6 4"' if curve[0].scans else ""
        places = [(x.place(standing.read), y.place(standing.error)) for standing in curve]
        line = " ".join(f"{a},{b}" for a, b in places)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}"{dash}/>'
        )
        parts += [draw_point(place, colour, True) for place in places]
        ends.append((places[-1], curve[-1].name, colour))
    ends.sort(key=lambda end: end[0][1])
    labels = spread([end[0][1] for end in ends], 14, y.end, y.start)
    for ((a, b), name, colour), label in zip(ends, labels):
        parts.append(f'<path d="M{a + 5} {b}L{x.end + 18} {label:.1f}" class="leader"/>')
        weight = {"font-weight": "bold"} if colour != GREY else {}
        fill = colour if colour != GREY else "#555555"
        parts.append(write_text(x.end + 22, label + 4, name, fill=fill, **weight))
    return wrap_svg(parts, 880, height, "Error against the share of the tokens that is read")


def draw_point(place: tuple[float, float], colour: str, filled: bool) -> str:
    fill = colour if filled else "white"
    return (
        f'<circle cx="{place[0]}" cy="{place[1]}" r="4" fill="{fill}" '
        f'stroke="{colour}" stroke-width="1.5"/>'
    )


def plot_indexes(table: list[Standing], colours: dict[str, str], density: float) -> str:
    """Draws the error of each method against the size of its index, at one density."""
    table = [standing for standing in table if standing.error > 0]
    if not table:
        return ""
    top = max(standing.index for standing in table)
    x = Scale(0, max(top, 1) * 1.1, 64, 720, lambda index: math.log(index + 2))
    y = Scale(*find_range([standing.error for standing in table]), 430, 40)
    sizes = [0, *(2**i for i in range(1, 20))]
    x_ticks = [(size, str(size)) for size in sizes if size <= x.high]
    y_ticks = [(tick, f"{tick:g}") for tick in find_ticks(y.low, y.high)]
    titles = ("index, bytes per token and KV head", "relative error of the output, mean")
    parts = draw_axes(x, y, x_ticks, y_ticks, titles)
    taken = [
        (x.place(s.index) - 5, y.place(s.error) - 5, x.place(s.index) + 5, y.place(s.error) + 5)
        for s in table
    ]
    for standing in table:
        at = (x.place(standing.index), y.place(standing.error))
        colour = colours.get(standing.stem, GREY) if standing.front else GREY
        parts.append(draw_point(at, colour, standing.front))
        box = find_room(at, 6.4 * len(standing.name) + 4, taken, x.start)
        taken.append(box)
        weight = {"font-weight": "bold"} if standing.front else {}
        style = {"font-style": "italic"} if standing.scans else {}
        label = (box[0] + 2, box[3] - 3)
        if abs(label[1] - at[1]) > 16:
            parts.append(
                f'<path d="M{at[0]} {at[1]}L{label[0]:.1f} {label[1]:.1f}" class="leader"/>'
            )
        fill = colour if standing.front else "#555555"
        parts.append(write_text(*label, standing.name, fill=fill, **weight, **style))
    return wrap_svg(parts, 920, 480, f"Error against index at {name_density(density)}")


def find_room(at: tuple[float, float], width: float, taken: list, left: float = 0) -> tuple:
    """Returns a free box for a label near a point: left, top, right and bottom.

    `left` is the left end of the plot.
    """
    height = 14
    boxes = []
    for distance in range(0, 120, 7):
        for drop in (distance, -distance):
            top = at[1] - height / 2 + drop
            boxes.append((at[0] + 8, top, at[0] + 8 + width, top + height))
            if at[0] - 8 - width > left:
                boxes.append((at[0] - 8 - width, top, at[0] - 8, top + height))
    return next((box for box in boxes if not any(overlap(box, other) for other in taken)), boxes[0])


def overlap(a: tuple, b: tuple) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# The page.

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 1800px; margin: 2em auto; padding: 0 1em; }
p, ul { max-width: 60em; }
svg { font: 12px sans-serif; max-width: 100%; height: auto; }
.grid { stroke: #e4e4e4; fill: none; } .leader { stroke: #c4c4c4; fill: none; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 12px; margin: 1em 0; }
th, td { padding: 3px 7px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; }
th { border-bottom: 2px solid #444; cursor: pointer; vertical-align: bottom; }
th[aria-sort=ascending]::after { content: " ▲"; } th[aria-sort=descending]::after { content: " ▼"; }
tr:nth-child(even) td { background: #f6f6f6; }
tr.front td:first-child { font-weight: bold; } tr.scans td:first-child { font-style: italic; }
.missing { color: #555; font-size: 13px; }
"""

SCRIPT = """
for (const head of document.querySelectorAll("th")) {
  head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    const value = row => {
      const cell = row.cells[head.cellIndex];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const order = (a, b) => (typeof a === "number" && typeof b === "number")
      ? a - b : String(a).localeCompare(String(b));
    const isMissing = row => row.cells[head.cellIndex].textContent === "-";
    const rows = [...body.rows].sort((a, b) => isMissing(a) - isMissing(b)
      || (down ? -1 : 1) * order(value(a), value(b)));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
"""


def make_page(rows: list[dict], settings: dict) -> str:
    """Returns the page as HTML that needs no other file."""
    kinds = list(settings["texts"])
    tables = {density: rank(rows, kinds, density) for density in settings["densities"]}
    colours = choose_colours(tables)
    dense = find_dense_score(rows)
    body = [
        "<h1>Sparse attention at equal density</h1>",
        f"<p>{html.escape(describe_settings(settings, rows))}</p>",
        explain(dense),
        "<h2>Error against density</h2>",
        "<p>Coloured methods are on the front of at least one density. Dashed methods compute the "
        "scores of all keys at each step.</p>",
        f'<div class="wide">{plot_curves(tables, colours)}</div>',
    ]
    for density, table in tables.items():
        missing = list_missing(rows, kinds, density)
        body += [
            f"<h2>Methods that read {name_density(density)} of the tokens</h2>",
            f'<div class="wide">{plot_indexes(table, colours, density)}</div>',
            f'<div class="wide">{make_table(table, density, kinds)}</div>',
        ]
        if missing:
            body.append(f'<p class="missing">Missing: {html.escape("; ".join(missing))}.</p>')
    body += [
        "<h2>Add a row</h2>",
        "<p>Write a pipeline file, or a grid of its settings, and run <code>python3 "
        "tools/leaderboard.py mine.toml</code>. Methods of a plug-in crate need its own command: "
        "<code>--vattention my-crate/target/release/vattention</code>. The command measures the "
        "row, writes it to <code>docs/leaderboard/rows</code>, and makes this page.</p>",
        "<h2>Measure all rows again</h2>",
        "<p><code>just leaderboard</code></p>",
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"/><title>Sparse attention at equal density</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<style>{STYLE}</style></head>",
            "<body>",
            *body,
            f"<script>{SCRIPT}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def explain(dense: float | None) -> str:
    """Returns the meaning of the columns, as a list in HTML."""
    entries = {
        "error": "|out - exact| / |exact|: mean over query heads, queries and layers, then over "
        "the texts. Tables are sorted by it.",
        "relative": "geometric mean over the texts of the ratio of both errors, "
        "with Student's 95 % interval, paired by text. An interval that contains 1 shows no "
        f"difference. The other method is {REFERENCE}, or the best where that is missing.",
        "read": "share of the visible tokens that the query heads of a KV head read together. "
        "Where the chosen settings read another share of a text, the size, mass, threshold or "
        "epsilon was searched again on this text, by the density alone. ▲ marks methods that still "
        f"read over {100 * SLACK:g} % more or less than requested.",
        "index": "bytes per token and KV head that a method stores beside keys and values.",
        "time": "time of a decode step, relative to dense attention, with the settings that were "
        "chosen on other texts, and the share that these read. A step reads all tokens where that "
        "costs less. Below 1 is faster.",
        "RULER": "mean score of the answers, the share that was read, and the difference to dense "
        "attention in the same cases with a 95 % interval"
        + (f"; dense attention has {100 * dense:.1f} %." if dense is not None else "."),
        "front": "bold methods. No other method has at most their error, their index and their "
        f"reads (beyond {100 * SLACK:g} % too many), and less of one of them. Methods in "
        "italics compute the scores of all keys at each step; they are references, and do not "
        "take part.",
        "-": "not measured, or not possible; a missing number is never estimated.",
    }
    items = [f"<li><b>{html.escape(name)}</b>: {html.escape(text)}</li>"
             for name, text in entries.items()]  # fmt: skip
    return f"<ul>{''.join(items)}</ul>"


def make_table(table: list[Standing], density: float, kinds: Sequence[str]) -> str:
    """Returns the table of one density in HTML."""
    heads = ["method", "error", f"relative to {name_reference(table)} (95 %)", "read", *kinds]
    heads += ["index, bytes", "time", "read", "RULER, %", "read", "to dense (95 %)"]
    heads += ["promise", "settings"]
    lines = [f"<th>{html.escape(head)}</th>" for head in heads]
    lines = ["<table>", f"<thead><tr>{''.join(lines)}</tr></thead>", "<tbody>"]
    for standing in table:
        cell, ruler = standing.cell, standing.cell["ruler"]
        classes = " ".join(name for name in ("front", "scans") if getattr(standing, name))
        cells = [
            f"<td>{html.escape(standing.name)}</td>",
            write_cell(show_error(standing.error), standing.error),
            write_cell(show_ratio(standing.ratio), (standing.ratio or [None])[0]),
            write_cell(show_read(standing, density), standing.read),
        ]
        for kind in kinds:
            error = cell["texts"][kind]["error"]
            cells.append(write_cell(show_error(error), error))
        cells += [
            write_cell(show_bytes(standing.index), standing.index),
            write_cell(show_time(cell["time"]), cell["time"] and cell["time"]["relative"]),
            write_cell(show_part(cell["time"]), cell["time"] and cell["time"]["read"]),
            write_cell(show_score(ruler), ruler and ruler["score"]),
            write_cell(show_part(ruler), ruler and ruler["read"]),
            write_cell(show_difference(ruler), ruler and ruler["difference"]),
            f'<td class="text">{html.escape(show_promise(cell))}</td>',
            f'<td class="text">{html.escape(cell["settings"])}</td>',
        ]
        lines.append(f'<tr class="{classes}">{"".join(cells)}</tr>')
    return "\n".join([*lines, "</tbody>", "</table>"])


def show_part(measured: dict | None) -> str:
    """Formats the share that was read in a measurement of time or answers."""
    return "-" if measured is None or measured["read"] is None else percent(measured["read"])


def add_part(text: str, measured: dict | None) -> str:
    """Appends the share that was read, which no search corrects for times and answers."""
    return f"{text} at {show_part(measured)}" if measured else text


def show_difference(ruler: dict | None) -> str:
    if ruler is None:
        return "-"
    points = [100 * ruler[name] for name in ("difference", "low", "high")]
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*points)


def write_cell(text: str, value: float | None) -> str:
    number = "" if value is None else f' data-value="{value:.6g}"'
    return f"<td{number}>{html.escape(text)}</td>"
