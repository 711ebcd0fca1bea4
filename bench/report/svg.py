"""Two kinds of charts, drawn as SVG text: lines over a logarithmic axis, and groups of horizontal bars.

Values are spreads; the mark stands at the median, a thin line reaches from the smallest to the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from bench.results import Spread

WIDTH = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 40, 64, 48
_PLOT_HEIGHT = 280
_BAR, _GROUP_GAP, LABELS = 14, 10, 330
COLOURS = {
    "mainstem": "#1f5fbf",
    "mainstem recycled": "#7fb0f0",
    "mainstem split": "#4fae8a",
    "kafka": "#d9792b",
}
_OTHER = "#888888"
_TICKS = 5


def lines(title: str, unit: str, x_title: str, series: Mapping[str, Sequence[tuple[int, Spread]]]) -> str:
    """Points of each system by x, which is shown on a logarithmic axis; y begins at zero."""
    xs = sorted({x for points in series.values() for x, _ in points})
    top = _ceiling(max(spread.most for points in series.values() for _, spread in points))
    low, high = math.log(xs[0]), math.log(max(xs[-1], xs[0] * 2))

    def place(x: int, y: float) -> tuple[float, float]:
        across = (math.log(x) - low) / (high - low)
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), _TOP + _PLOT_HEIGHT * (1 - y / top)

    drawn = [_text(_LEFT, 20, f"{title} ({unit})", bold=True), *_legend(series)]
    for step in range(_TICKS + 1):
        value = top * step / _TICKS
        _, y = place(xs[0], value)
        drawn += [
            _line(_LEFT, y, WIDTH - _RIGHT, y, "#dddddd"),
            _text(_LEFT - 6, y + 4, f"{value:,g}", anchor="end"),
        ]
    for x in xs:
        across, _ = place(x, 0)
        drawn.append(_text(across, _TOP + _PLOT_HEIGHT + 16, f"{x:,}", anchor="middle"))
    drawn.append(_text(WIDTH / 2, _TOP + _PLOT_HEIGHT + 36, x_title, anchor="middle"))
    for name, points in series.items():
        colour = COLOURS.get(name, _OTHER)
        placed = [place(x, spread.median) for x, spread in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, spread), (across, y) in zip(points, placed, strict=True):
            drawn.append(_line(across, place(x, spread.least)[1], across, place(x, spread.most)[1], colour))
            drawn.append(f'<circle cx="{across:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    return _document(_TOP + _PLOT_HEIGHT + _BOTTOM, drawn)


def bars(title: str, unit: str, digits: int, groups: Sequence[tuple[str, Mapping[str, Spread]]]) -> str:
    """One group per label, one bar per system in it."""
    systems = list(dict.fromkeys(system for _, group in groups for system in group))
    top = _ceiling(max(spread.most for _, group in groups for spread in group.values()))
    scale = (WIDTH - LABELS - 90) / top
    drawn = [_text(10, 20, f"{title} ({unit})", bold=True), *_legend(systems)]
    y = float(_TOP)
    for label, group in groups:
        drawn.append(_text(LABELS - 8, y + len(group) * _BAR / 2 + 4, label, anchor="end"))
        for system, spread in group.items():
            colour, length = COLOURS.get(system, _OTHER), spread.median * scale
            middle = y + _BAR / 2
            drawn.append(
                f'<rect x="{LABELS}" y="{y + 1:.1f}" width="{length:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
            )
            drawn.append(_line(LABELS + spread.least * scale, middle, LABELS + spread.most * scale, middle, "#333333"))
            beyond = LABELS + max(length, spread.most * scale) + 6
            drawn.append(_text(beyond, middle + 4, f"{spread.median:,.{digits}f}"))
            y += _BAR
        y += _GROUP_GAP
    return _document(y + 10, drawn)


def _legend(systems: Sequence[str] | Mapping[str, object]) -> list[str]:
    drawn, x = [], 10.0
    for system in systems:
        drawn.append(f'<rect x="{x:.1f}" y="34" width="12" height="12" fill="{COLOURS.get(system, _OTHER)}"/>')
        drawn.append(_text(x + 17, 45, system))
        x += 40 + 7 * len(system)
    return drawn


def _ceiling(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _text(x: float, y: float, words: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _document(height: float, drawn: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif"'
    background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>'
    return "\n".join([f'{head} font-size="12">', background, *drawn, "</svg>"]) + "\n"
