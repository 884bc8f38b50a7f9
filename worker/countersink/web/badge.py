"""A hit counter's badge: a label and a number, as SVG."""

import re
from html import escape
from typing import Final

HEIGHT: Final = 20
PADDING: Final = 6
MAX_LABEL_LENGTH: Final = 64
_FONT_SIZE: Final = 11
_NARROW: Final = frozenset("ijl.,:;|!'`()[]{}/\\ \u202f")
_WIDE: Final = frozenset("mwMW@%")
_UNPRINTABLE: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What an XML 1.0 document cannot hold (section 2.2, Char)."""


def badge(label: str, number: int | None) -> bytes:
    """The badge, in UTF-8.

    Args:
        label: on the left; any text.
        number: on the right, its digits in groups of three; None: unknown.
    """
    label = _UNPRINTABLE.sub("\ufffd", label)
    shown = "–" if number is None else f"{number:,}".replace(",", "\u202f")
    said = escape(f"{label}: {'unknown' if number is None else number}")
    left, right = _width(label), _width(shown)
    # Both texts are stretched to what was reckoned: whatever font there is, nothing overflows.
    # No style element or attribute: a content security policy may forbid them.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}"'
        f' role="img" aria-label="{said}"><title>{said}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="{HEIGHT}" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="{HEIGHT}" fill="#4a4f57"/>'
        f'<rect x="{left}" width="{right}" height="{HEIGHT}" fill="#1f6feb"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif"'
        f' font-size="{_FONT_SIZE}" text-anchor="middle">'
        f"{_text(label, left / 2, left)}{_text(shown, left + right / 2, right)}</g></svg>"
    ).encode()


def _text(text: str, middle: float, width: int) -> str:
    if not text:
        return ""
    return f'<text x="{middle:g}" y="14" textLength="{width - 2 * PADDING}">{escape(text)}</text>'


def _width(text: str) -> int:
    """Pixels of a text in 11 px Verdana, about, with the space around it."""
    if not text:
        return 0
    pixels = 0.0
    for character in text:
        if character in _NARROW:
            pixels += 4
        elif character in _WIDE:
            pixels += 10
        elif ord(character) >= 0x2E80:  # from here on mostly scripts with square characters
            pixels += 11
        else:
            pixels += 8 if character.isupper() else 7
    return round(pixels) + 2 * PADDING
