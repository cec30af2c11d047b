"""SVG as text: every name and value is escaped; colours come from the page's style sheet and follow its mode."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

CHARACTER = 7.4
"""Width of a character of the charts' type (12 units, 13 on a phone), generous: the reader's font is unknown."""


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """`<tag ...>children</tag>`. In attribute names `_` stands for `-`, and a last one is dropped (`class_`).

    Numbers are written with one decimal; attributes that are None are left out.
    """
    written = [f"<{tag}"]
    for name, value in attributes.items():
        if value is not None:
            written.append(f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"')
    if not children:
        return Markup("".join(written) + "/>")
    inner = "".join(str(escape(child)) for child in children)
    return Markup("".join(written) + f">{inner}</{tag}>")


def _number(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def drawing(
    width: float, height: float, about: str, parts: Iterable[Markup], class_: str, *, fixed: bool = False
) -> Markup:
    """An `<svg>` with a name for those who cannot see it. `fixed`: drawn at its own size, not its place's."""
    size = {"width": width, "height": height} if fixed else {}
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {_number(float(width))} {_number(float(height))}",
        role="img",
        aria_label=about,
        class_=class_,
        **size,
    )


def text(x: float, y: float, content: str, class_: str = "", anchor: str | None = None) -> Markup:
    """`content` at a point; `anchor`: "middle" or "end"."""
    return element("text", content, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor)


def title(content: str) -> Markup:
    """What a pointer that rests on the parent is told."""
    return element("title", content)


def shortened(content: str, width: float) -> str:
    """`content` with its middle left out, if it is wider than `width` units."""
    room = max(int(width / CHARACTER), 4)
    if len(content) <= room:
        return content
    head = (room - 1) * 2 // 3
    return f"{content[:head]}…{content[len(content) - (room - 1 - head) :]}"
