"""The charts of measurements: stacked bars, lines, and dots with intervals. A panel each, so that pages can reflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kvbench.reports.svg import CHARACTER, drawing, element, shortened, text, title

WIDTH = 400.0
SERIES = 8
"""Series colours in the style sheet; with the shapes of `marker` they tell 32 lines apart."""


@dataclass(frozen=True)
class Bar:
    """A bar of shares of one whole; `shares` are (style class, name, share of 1)."""

    label: str
    shares: tuple[tuple[str, str, float], ...]


def stacked_bars(bars: Sequence[Bar], about: str) -> Markup:
    """Horizontal bars from 0 to 100 %, the first share written beside each."""
    left = min(max((len(bar.label) for bar in bars), default=0) * CHARACTER + 12, 130)
    scale = WIDTH - left - 56
    return drawing(WIDTH, 24 + 27 * len(bars), about, _bar_parts(bars, left, scale), "chart")


def _bar_parts(bars: Sequence[Bar], left: float, scale: float) -> Iterator[Markup]:
    bottom = 27.0 * len(bars)
    for row, bar in enumerate(bars):
        y = row * 27.0 + 2
        yield text(left - 8, y + 15, shortened(bar.label, left - 8), "axis", "end")
        yield element("rect", x=left, y=y, width=scale, height=21, class_="track")
        x = left
        for class_, name, share in bar.shares:
            width = max(min(share, 1.0) * scale, 0.0)
            label = title(f"{bar.label}: {name} {share:.1%}")
            yield element("rect", label, x=x, y=y, width=width, height=21, class_=class_)
            x += width
        if bar.shares:
            yield text(WIDTH, y + 15, f"{bar.shares[0][2]:.1%}", "figure", "end")
    for tick in (0, 0.25, 0.5, 0.75, 1):
        anchor = "start" if tick == 0 else "end" if tick == 1 else "middle"
        yield text(left + tick * scale, bottom + 18, f"{tick:.0%}", "tick", anchor)


@dataclass(frozen=True)
class Line:
    """A series of points (x, share of 1), in order of x."""

    label: str
    points: tuple[tuple[float, float], ...]


def lines(series: Sequence[Line], ceiling: float | None, format_x: Callable[[float], str], about: str) -> Markup:
    """Shares against a logarithmic x; `ceiling`: a dashed line that nothing can be above."""
    xs = sorted({x for line in series for x, _ in line.points})
    height, left, top, bottom = 240.0, 44.0, 14.0, 206.0
    low, high = (math.log(xs[0]), math.log(xs[-1])) if xs else (0.0, 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - low) / (high - low) if high > low else 0.5
        return left + 10 + across * (WIDTH - left - 32), bottom - min(max(y, 0.0), 1.0) * (bottom - top)

    def parts() -> Iterator[Markup]:
        for tick in (0, 0.25, 0.5, 0.75, 1):
            y = place(1.0, tick)[1]
            yield element("line", x1=left, x2=WIDTH, y1=y, y2=y, class_="grid")
            yield text(left - 8, y + 4, f"{tick:.0%}", "tick", "end")
        for x in _spread([(place(x, 0)[0], x) for x in xs]):
            yield text(place(x, 0)[0], bottom + 20, format_x(x), "tick", "middle")
        if ceiling is not None:
            y = place(1.0, ceiling)[1]
            yield element("line", x1=left, x2=WIDTH, y1=y, y2=y, class_="ceiling")
            yield text(left + 6, y - 6, f"ideal {ceiling:.1%}", "ceiling-label")
        for number, line in enumerate(series):
            placed = [place(x, y) for x, y in line.points]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            yield element("polyline", points=path, class_=f"line s{number % SERIES}")
            for (x, y), (px, py) in zip(line.points, placed, strict=True):
                yield marker(number, px, py, f"{line.label}: {y:.1%} at {format_x(x)}")

    return drawing(WIDTH, height, about, parts(), "chart")


def _spread(ticks: Sequence[tuple[float, float]]) -> Iterator[float]:
    """The ticks that have room for a label."""
    previous = -math.inf
    for place, value in ticks:
        if place - previous >= 52:
            yield value
            previous = place


def marker(number: int, x: float, y: float, told: str = "") -> Markup:
    """The point of a series: colours are told apart by shape too."""
    attributes = {"class_": f"point s{number % SERIES}"}
    inner = (title(told),) if told else ()
    kind = (number + number // SERIES) % 4
    if kind == 0:
        return element("circle", *inner, cx=x, cy=y, r=4.2, **attributes)
    if kind == 1:
        return element("rect", *inner, x=x - 3.8, y=y - 3.8, width=7.6, height=7.6, **attributes)
    reach = 5.2
    path = (
        f"M{x:.1f} {y - reach:.1f}l{reach} {reach * 1.7:.1f}h{-2 * reach}z"
        if kind == 2
        else f"M{x:.1f} {y - reach:.1f}l{reach} {reach}l{-reach} {reach}l{-reach} {-reach}z"
    )
    return element("path", *inner, d=path, **attributes)


def series_key(number: int) -> Markup:
    """A series as a legend shows it."""
    dash = element("line", x1=0, x2=26, y1=7, y2=7, class_=f"line s{number % SERIES}")
    return _key(26, dash, marker(number, 13, 7))


def colour_key(class_: str) -> Markup:
    """A colour as a legend shows it."""
    return _key(14, element("rect", width=14, height=14, rx=2, class_=class_))


def _key(width: int, *parts: Markup) -> Markup:
    size = {"viewBox": f"0 0 {width} 14", "width": width, "height": 14}
    return element("svg", *parts, class_="key", aria_hidden="true", **size)


@dataclass(frozen=True)
class Dot:
    """A value with its interval. `class_` styles it; `shown` is the value in words, `told` more about it."""

    label: str
    value: float
    low: float
    high: float
    shown: str
    told: str = ""
    class_: str = ""


@dataclass(frozen=True)
class Rule:
    """A vertical line that values are set against, with its name."""

    at: float
    label: str


def dots(rows: Sequence[Dot], rule: Rule | None, about: str, *, ratio: bool = False) -> Markup:
    """A row a value: its name and figure above, the dot and interval below, from 0 or (ratios) around 1.

    Ratios are set on a logarithmic scale, where twice as fast and half as fast are equally far from 1.
    """
    top = 20.0 if rule else 4.0
    reaches = [reach for dot in rows for reach in (dot.value, dot.low, dot.high)]
    place = _around_one(reaches) if ratio else _from_zero([*reaches, *([rule.at] if rule else [])])
    height = top + 42 * len(rows) + 2

    def parts() -> Iterator[Markup]:
        for row, dot in enumerate(rows):
            y = top + row * 42.0
            yield text(0, y + 14, shortened(dot.label, WIDTH - 1.15 * CHARACTER * len(dot.shown) - 10), "axis left")
            yield text(WIDTH, y + 14, dot.shown, "figure", "end")
            yield element("line", x1=2, x2=WIDTH - 2, y1=y + 27, y2=y + 27, class_="rail")
            yield element(
                "line", x1=place(dot.low), x2=place(dot.high), y1=y + 27, y2=y + 27, class_=f"interval {dot.class_}"
            )
            yield element(
                "circle", title(dot.told or f"{dot.label}: {dot.shown}"), cx=place(dot.value), cy=y + 27, r=5,
                class_=f"dot {dot.class_}",
            )  # fmt: skip
        if rule:
            yield from _ruled(rule, place(rule.at), [top + row * 42.0 + 27 for row in range(len(rows))], ratio=ratio)

    return drawing(WIDTH, height, about, parts(), "chart")


def _ruled(rule: Rule, x: float, rails: Sequence[float], *, ratio: bool) -> Iterator[Markup]:
    """A mark across each rail, so that no figure is crossed out, and its name above the first."""
    for rail in rails:
        yield element("line", x1=x, x2=x, y1=rail - 8, y2=rail + 8, class_="rule")
    anchor = "end" if x >= WIDTH * 0.8 else "start" if x <= WIDTH * 0.2 else "middle"
    yield text(min(x + 4, WIDTH) if anchor == "end" else x, 11, rule.label, "ceiling-label", anchor)
    if ratio:
        yield text(0, 11, "slower", "tick")
        yield text(WIDTH, 11, "faster", "tick", "end")


def _from_zero(reaches: Sequence[float]) -> Callable[[float], float]:
    top = max([reach for reach in reaches if reach > 0], default=1.0)
    return lambda value: 6 + max(value, 0.0) / top * (WIDTH - 12)


def _around_one(reaches: Sequence[float]) -> Callable[[float], float]:
    """Logarithmic, with 1 in the middle and room for at least a factor of two on either side."""
    far = max([abs(math.log(reach)) for reach in reaches if reach > 0], default=0.0)
    span = max(far, math.log(2)) * 1.05

    def place(value: float) -> float:
        across = math.log(value) / span if value > 0 else -1.0
        return WIDTH / 2 + across * (WIDTH / 2 - 6)

    return place
