"""What a rule of the map writes: text with parts of the bucket's name and of its tags."""

import re
from collections.abc import Callable, Mapping
from typing import Final

_TOKEN: Final = re.compile(
    r"(?P<literal>[^${}]+)|\$(?P<dollar>\$)|\$(?P<number>[0-9]{1,2})|\$\{(?P<braced>[0-9]{1,2})\}"
    r"|\{tag:(?P<tag>[^{}]+)\}|(?P<name>\{name\})|(?P<open>\{\{)|(?P<close>\}\})"
)

Part = Callable[[str, tuple[str, ...], Mapping[str, str]], str]
"""(name, captured parts, tags) → text."""


class Template:
    """``$1`` (also ``${1}``): what the first ``*`` or group has matched; ``{tag:city}``: a tag's
    value, empty without it; ``{name}``: the whole name; ``$$``, ``{{`` and ``}}``: ``$``, ``{``,
    ``}``.

    Args:
        text: as above.
        captures: how many ``*`` or groups there are.

    Raises:
        ValueError: something else follows a ``$`` or stands in braces, or there is no such capture.
    """

    def __init__(self, text: str, captures: int) -> None:
        self.text = text
        self._parts: list[Part] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(
                    f"{text!r}: {text[at : at + 12]!r} is no placeholder; there are $1, "
                    "{tag:name}, {name}, and $$, {{, }} for the characters themselves"
                )
            self._parts.append(_part(found, captures, text))
            at = found.end()

    def fill(self, name: str, captured: tuple[str, ...], tags: Mapping[str, str]) -> str:
        """The text for one metric."""
        return "".join([part(name, captured, tags) for part in self._parts])


def _part(found: re.Match[str], captures: int, text: str) -> Part:
    if found["number"] or found["braced"]:
        number = int(found["number"] or found["braced"])
        if not 1 <= number <= captures:
            raise ValueError(f"{text!r}: there is no ${number}: the pattern captures {captures}")
        return lambda name, captured, tags: captured[number - 1]
    if found["tag"]:
        tag = found["tag"]
        return lambda name, captured, tags: tags.get(tag, "")
    if found["name"]:
        return lambda name, captured, tags: name
    literal = found["literal"] or {"$$": "$", "{{": "{", "}}": "}"}[found[0]]
    return lambda name, captured, tags: literal
