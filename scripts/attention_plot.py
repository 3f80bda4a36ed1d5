"""KL against keys read as plain SVG, both axes logarithmic, a curve for each method.

scripts/compare-attention draws with it. Alone it draws a table that was made before:

  python3 scripts/attention_plot.py OUT/compare-2048.csv "gpt2, windows of 2048 tokens" > plot.svg
"""

import csv
import math
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 480  # wider where a name is long
LEFT, RIGHT, TOP, BOTTOM = 76, 690, 58, 420  # the frame; names stand to the right of it

# The colours of the report, in light and in dark.
STYLE = """
  svg { --paper: #ffffff; --ink: #18222b; --muted: #55626e; --faint: #e3e8ec;
        --c0: #0b6a94; --c1: #5b6470; --c2: #c25700; --c3: #007a5a; --c4: #a1428a; --c5: #828e99; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #11171c; --ink: #e4eaef; --muted: #9cabb8; --faint: #2a343d;
          --c0: #67c1e6; --c1: #b4bfc9; --c2: #f0924f; --c3: #4bc79b; --c4: #e08fcb; --c5: #7d8a96; }
  }
  text { font: 13px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: var(--muted); }
  .strong { fill: var(--ink); }
  .title { fill: var(--ink); font-size: 16px; font-weight: 600; }
  .grid { stroke: var(--faint); }
  .curve { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
  .mark { fill: var(--c); stroke: var(--paper); }
  .hollow .mark { fill: var(--paper); stroke: var(--c); stroke-width: 2; }
  .hollow .curve { stroke-dasharray: 5 4; }
  .error { stroke: var(--c); stroke-width: 1.4; }
"""

# Colour, form of the mark, and whether it is hollow and its curve dashed.
STYLES = {
    "refine": (3, "diamond", False),
    "refine, strict": (3, "circle", True),
    "keys": (0, "circle", False),
    "window": (1, "square", False),
    "quest": (2, "triangle", False),
    "pooled": (4, "square", False),
    "oracle": (5, "diamond", False),
}
FORMS = ("circle", "square", "triangle", "diamond")
OTHERS = [(colour, form, hollow) for hollow in (False, True) for form in FORMS
          for colour in (0, 2, 3, 4, 1, 5)]


class Axis:
    """A logarithmic scale from numbers to pixels."""

    def __init__(self, low, high, begin, end):
        self.low, self.high, self.begin, self.end = low, high, begin, end

    def __call__(self, value):
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self):
        decades = math.log10(self.high / self.low)
        factors = (1,) if decades > 3 else (1, 3) if decades > 1.5 else (1, 2, 5)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [float(f"{factor}e{power}") for power in powers for factor in factors]
        return [v for v in values if self.low <= v <= self.high]


def text(x, y, words, kind="", anchor="start"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def mark(form, x, y, size=4.5):
    shapes = {
        "circle": f'<circle class="mark" cx="{x}" cy="{y}" r="{size}"/>',
        "square": f'<rect class="mark" x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size}" '
                  f'height="{2 * size}"/>',
        "triangle": f'<path class="mark" d="M{x:.1f} {y - 1.3 * size:.1f}l{1.25 * size:.1f} '
                    f'{2.2 * size:.1f}h{-2.5 * size:.1f}z"/>',
        "diamond": f'<path class="mark" d="M{x:.1f} {y - 1.4 * size:.1f}l{1.4 * size:.1f} '
                   f'{1.4 * size:.1f}l{-1.4 * size:.1f} {1.4 * size:.1f}l{-1.4 * size:.1f} '
                   f'{-1.4 * size:.1f}z"/>'}
    return shapes[form]


def curve(points, style, x_axis, y_axis):
    """points: (keys read, KL, its standard error, setting), in order."""
    colour, form, hollow = style
    at = [(x_axis(keys), y_axis(kl)) for keys, kl, _, _ in points]
    parts = [f'<g class="{"hollow" if hollow else ""}" style="--c: var(--c{colour})">']
    parts.append(f'<path class="curve" d="M{"L".join(f"{x} {y}" for x, y in at)}"/>')
    for (x, y), (keys, kl, error, setting) in zip(at, points):
        if error > 0:
            parts.append(f'<line class="error" x1="{x}" x2="{x}" y1="{y_axis(kl - error)}" '
                         f'y2="{y_axis(kl + error)}"/>')
        parts.append(f"<g><title>{escape(setting)}: {100 * keys:.3g} % of the keys, KL {kl:.3g}"
                     f"</title>{mark(form, x, y)}</g>")
    return "\n".join(parts) + "\n</g>"


def styles_of(methods):
    taken, styles = set(), {}
    for method in methods:
        own = [STYLES[method]] if method in STYLES else []
        styles[method] = next((s for s in own + OTHERS if s not in taken), OTHERS[0])
        taken.add(styles[method])
    return styles


def plot(title, rows):
    """SVG. rows: (method, setting, keys read, KL, standard error of KL); those of a method are
    joined in their order."""
    methods = {}
    for method, setting, keys, kl, error in rows:
        if keys > 0:
            methods.setdefault(method, []).append((keys, kl, error, setting))
    every = [point for points in methods.values() for point in points]
    losses = [kl for _, kl, _, _ in every if kl > 0] or [1e-3]
    x_axis = Axis(min([1.0, *(p[0] for p in every)]) / 1.15,
                  max([1.0, *(p[0] for p in every)]) * 1.04, LEFT, RIGHT)
    y_axis = Axis(min(losses) / 1.6, max(losses) * 1.6, BOTTOM, TOP)
    width = max([WIDTH, *(RIGHT + 68 + 8 * len(method) for method in methods)])
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
             f'width="{width}" height="{HEIGHT}" role="img">',
             f"<title>{escape(title)}: KL against keys read</title>", f"<style>{STYLE}</style>",
             f'<rect width="{width}" height="{HEIGHT}" rx="8" style="fill: var(--paper)"/>',
             text(16, 26, title, "title"), text(16, 47, "KL from dense, nats", "strong")]
    for v in y_axis.ticks():
        y = y_axis(v)
        parts += [f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>',
                  text(LEFT - 8, y + 4, f"{v:g}", anchor="end")]
    for v in x_axis.ticks():
        x = x_axis(v)
        parts += [f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{BOTTOM}"/>',
                  text(x, BOTTOM + 20, f"{100 * v:g} %", anchor="middle")]
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 46, "keys read, of those that dense reads",
                      "strong", "middle"))
    styles = styles_of(methods)
    for method, points in methods.items():
        parts.append(curve(points, styles[method], x_axis, y_axis))
    for i, method in enumerate(methods):
        colour, form, hollow = styles[method]
        y = TOP + 12 + 26 * i
        parts += [f'<g class="{"hollow" if hollow else ""}" style="--c: var(--c{colour})">'
                  f'<path class="curve" d="M{RIGHT + 14} {y}h30"/>{mark(form, RIGHT + 29, y)}</g>',
                  text(RIGHT + 52, y + 4, method, "strong")]
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    with open(sys.argv[1], newline="") as file:
        rows = [(row["method"], row["setting"],
                 *(float(row[key]) for key in ("keys_read", "kl", "kl_stderr")))
                for row in csv.DictReader(file)]
    print(plot(sys.argv[2], rows), end="")


if __name__ == "__main__":
    main()
