"""A timeline as a drawing: blocks down, steps across, cells coloured by the sequence that owns them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kvbench.reports.svg import CHARACTER, drawing, element, text, title
from kvbench.timeline import Timeline, TimelineStep

MAX_ROWS = 32
MAX_STEPS = 60
MAX_LEGEND = 24
COLOURS = 8
"""Owner colours in the style sheet; letters tell sequences apart where these are used again."""

WIDE = 20
"""Steps from which a drawing may be scrolled, so that its rows are labelled on both sides."""

CELL_HEIGHT = 28.0
TOP = 26.0


@dataclass(frozen=True)
class Owner:
    """A sequence in the drawing: its full name, the short one in its cells, and its colour's number."""

    name: str
    short: str
    colour: int


@dataclass(frozen=True)
class NumberedStep:
    """A step below the drawing. Steps before it that are not shown are counted in `left_out`."""

    number: int
    label: str
    note: str
    bad: bool
    left_out: int


@dataclass(frozen=True)
class TimelineFigure:
    """The drawing, and what is set as text around it. `remark` tells what was left out."""

    svg: Markup
    owners: tuple[Owner, ...]
    more_owners: int
    steps: tuple[NumberedStep, ...]
    remark: str
    marks: frozenset[str]


def draw_timeline(timeline: Timeline, key: str) -> TimelineFigure | None:
    """Draw a timeline; None if it has no step or touches no block. `key` keeps its ids apart from other drawings'."""
    numbers = _chosen_steps(timeline.steps)
    steps = [(number, timeline.steps[number]) for number in numbers]
    rows, more_rows = _chosen_rows([step for _, step in steps])
    if not rows:
        return None
    owners = _owners([step for _, step in steps])
    cell_width = max(42.0, 10 + CHARACTER * 1.15 * max((len(owner.short) for owner in owners.values()), default=1))
    sheet = _Sheet(rows, steps, owners, key, cell_width)
    about = f"Block table timeline: {len(rows)} blocks over {len(steps)} steps, described step by step below."
    return TimelineFigure(
        svg=drawing(sheet.width, sheet.height, about, sheet.parts(), "timeline", fixed=True),
        owners=tuple(owners.values())[:MAX_LEGEND],
        more_owners=max(len(owners) - MAX_LEGEND, 0),
        steps=tuple(_numbered(steps)),
        remark=_remark(timeline, len(rows), more_rows, len(steps)),
        marks=frozenset(
            mark
            for mark, used in {
                "shared": any(len(names) > 1 for _, step in steps for names in step.owners.values()),
                "wrote": any(step.wrote for _, step in steps),
                "read": any(step.read for _, step in steps),
                "bad": any(step.bad for _, step in steps),
            }.items()
            if used
        ),
    )


def _chosen_steps(steps: Sequence[TimelineStep]) -> list[int]:
    """All steps, or of a long timeline the first few and those around the first bad one."""
    if len(steps) <= MAX_STEPS:
        return list(range(len(steps)))
    bad = next((number for number, step in enumerate(steps) if step.bad), len(steps) - 1)
    head = 6
    last = min(bad + 5, len(steps) - 1)
    first = max(last - (MAX_STEPS - head) + 1, head)
    return [*range(head), *range(first, last + 1)]


def _chosen_rows(steps: Sequence[TimelineStep]) -> tuple[list[str], int]:
    """Blocks that any step touches, and how many more there are; bad ones and those touched beside them come first."""
    bad: dict[str, None] = {}
    beside: dict[str, None] = {}
    touched: dict[str, None] = {}
    for step in steps:
        used = dict.fromkeys([*map(str, (*step.wrote, *step.read)), *step.owners])
        bad |= dict.fromkeys(map(str, step.bad))
        if step.bad:
            beside |= dict.fromkeys(map(str, (*step.wrote, *step.read)))
        touched |= used
    ranked = list(bad | beside | touched)
    return sorted(ranked[:MAX_ROWS], key=_by_number), max(len(ranked) - MAX_ROWS, 0)


def _by_number(block: str) -> tuple[int, int, str]:
    return (0, int(block), "") if block.isdecimal() and len(block) < 20 else (1, 0, block)


def _owners(steps: Sequence[TimelineStep]) -> dict[str, Owner]:
    names = list(dict.fromkeys(name for step in steps for held in step.owners.values() for name in held))
    keep = all(0 < len(name) <= 3 for name in names)
    return {
        name: Owner(name, name if keep else _letters(position), position % COLOURS)
        for position, name in enumerate(names)
    }


def _letters(position: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    letters = ""
    position += 1
    while position:
        position, rest = divmod(position - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _numbered(steps: Sequence[tuple[int, TimelineStep]]) -> Iterator[NumberedStep]:
    previous = -1
    for number, step in steps:
        yield NumberedStep(number + 1, step.label, step.note, bool(step.bad), number - previous - 1)
        previous = number


def _remark(timeline: Timeline, rows: int, more_rows: int, steps: int) -> str:
    parts = []
    untouched = timeline.num_blocks - rows - more_rows
    if untouched > 0:
        parts.append(f"{untouched:,} of {timeline.num_blocks:,} blocks are never touched and not drawn.")
    if more_rows:
        parts.append(f"{more_rows:,} more blocks are used but not drawn.")
    if steps < len(timeline.steps):
        parts.append(f"{steps} of {len(timeline.steps):,} steps are drawn, up to the first that goes wrong.")
    return " ".join(parts)


class _Sheet:
    """Where things lie in one drawing."""

    def __init__(
        self,
        rows: Sequence[str],
        steps: Sequence[tuple[int, TimelineStep]],
        owners: dict[str, Owner],
        key: str,
        cell_width: float,
    ) -> None:
        self.rows, self.steps, self.owners, self.key, self.cell_width = rows, steps, owners, key, cell_width
        self.left = 54 + CHARACTER * min(max(map(len, rows)), 12)
        self.right = self.left + cell_width * len(steps)
        self.labelled_twice = len(steps) > WIDE
        self.width = round(self.right + (self.left if self.labelled_twice else 6))
        self.height = round(TOP + CELL_HEIGHT * len(rows) + 6)

    def parts(self) -> Iterator[Markup]:
        """Stripes of shared blocks, row labels, columns."""
        yield element("defs", *self._stripes())
        for row, block in enumerate(self.rows):
            middle = self._y(row) + CELL_HEIGHT / 2 + 4
            yield text(self.left - 10, middle, f"block {block[:12]}", "axis", "end")
            if self.labelled_twice:
                yield text(self.right + 10, middle, f"block {block[:12]}", "axis")
            yield element(
                "rect", x=self.left + 1, y=self._y(row) + 1, width=self.right - self.left - 2, height=CELL_HEIGHT - 2,
                rx=3, class_="cell free",
            )  # fmt: skip
        for column, (number, step) in enumerate(self.steps):
            x = self.left + column * self.cell_width
            yield text(
                x + self.cell_width / 2, TOP - 9, str(number + 1), "axis strong" if step.bad else "axis", "middle"
            )
            for row, block in enumerate(self.rows):
                yield from self._cell(x, self._y(row), number, block, step)
        # Rings are drawn last, so that no neighbour covers them.
        for column, (_, step) in enumerate(self.steps):
            bad = set(map(str, step.bad))
            for row, block in enumerate(self.rows):
                if block in bad:
                    yield element(
                        "rect", x=self.left + column * self.cell_width, y=self._y(row), width=self.cell_width,
                        height=CELL_HEIGHT, rx=4, class_="ring",
                    )  # fmt: skip

    def _y(self, row: int) -> float:
        return TOP + row * CELL_HEIGHT

    def _cell(self, x: float, y: float, number: int, block: str, step: TimelineStep) -> Iterator[Markup]:
        names = step.owners.get(block, ())
        wrote, read = block in map(str, step.wrote), block in map(str, step.read)
        bad = block in map(str, step.bad)
        box = {
            "x": x + 1, "y": y + 1, "width": self.cell_width - 2, "height": CELL_HEIGHT - 2, "rx": 3,
        }  # fmt: skip
        if not (names or wrote or read or bad):
            return
        told = _told(number, block, names, wrote=wrote, read=read, note=step.note if bad else "")
        yield element(
            "rect",
            # A cell that one sequence just goes on holding says all by its colour and letter.
            *([title(told)] if wrote or read or bad or len(names) > 1 else []),
            class_=f"cell {self._class(names)}",
            fill=f"url(#{self._stripe_id(names)})" if len(names) > 1 else None,
            **box,
        )
        label = self._label(names)
        if label:
            yield text(x + self.cell_width / 2, y + CELL_HEIGHT / 2 + 4.5, label, "owner", "middle")
        if wrote:
            corner = f"M{x + 2:.1f} {y + CELL_HEIGHT - 2:.1f}v-9l9 9z"
            yield element("path", d=corner, class_="wrote")
        if read:
            yield element("circle", cx=x + self.cell_width - 6, cy=y + 7, r=2.6, class_="read")

    def _class(self, names: Sequence[str]) -> str:
        if not names:
            return "free touched"
        return f"o{self.owners[names[0]].colour}" if len(names) == 1 else "shared"

    def _label(self, names: Sequence[str]) -> str:
        shorts = [self.owners[name].short for name in names]
        if len(shorts) < 2:
            return "".join(shorts)
        joined = " ".join(shorts)
        fits = len(joined) * CHARACTER * 1.15 <= self.cell_width - 6
        return joined if fits else f"{shorts[0]}+{len(shorts) - 1}"

    def _stripe_id(self, names: Sequence[str]) -> str:
        return f"{self.key}-" + "-".join(str(colour) for colour in self._stripe_colours(names))

    def _stripe_colours(self, names: Sequence[str]) -> list[int]:
        return sorted({self.owners[name].colour for name in names})[:4]

    def _stripes(self) -> Iterator[Markup]:
        """A pattern of slanted stripes for each set of colours that share a block."""
        made = set()
        for _, step in self.steps:
            for names in step.owners.values():
                identity = self._stripe_id(names)
                if len(names) < 2 or identity in made:
                    continue
                made.add(identity)
                colours = self._stripe_colours(names)
                yield element(
                    "pattern",
                    *(
                        element("rect", x=7 * place, y=0, width=7, height=10, class_=f"o{colour}")
                        for place, colour in enumerate(colours)
                    ),
                    id=identity, width=7 * len(colours), height=10, patternUnits="userSpaceOnUse",
                    patternTransform="rotate(45)",
                )  # fmt: skip


def _told(number: int, block: str, names: Sequence[str], *, wrote: bool, read: bool, note: str) -> str:
    owned = "free" if not names else "held by " + " and ".join(name[:60] for name in names[:6])
    parts = [f"step {number + 1}, block {block[:20]}: {owned}"]
    parts += ["written"] * wrote + ["read"] * read
    return ", ".join(parts) + (f". {note[:300]}" if note else "")
