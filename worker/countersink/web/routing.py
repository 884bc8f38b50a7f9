"""Which door a path leads to."""

import re
from collections.abc import Iterable
from typing import Final

from countersink.web.door import Door
from countersink.web.problem import Problem

_PARAMETER: Final = re.compile(r"\{([a-z_]+)(:path)?\}")
_READING: Final = "GET"


class Table:
    """All doors by path and method.

    A parameter ``{name}`` is one or more characters but ``/``; ``{name:path}`` is any text, also an
    empty one. Where several paths fit, the first that has the method is taken.

    Args:
        doors: in the order in which their paths are tried.

    Raises:
        ValueError: two doors have the same method and path.
    """

    def __init__(self, doors: Iterable[Door]) -> None:
        self._plain: dict[str, dict[str, Door]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Door]]] = {}
        for door in doors:
            if "{" in door.path:
                found = self._patterns.setdefault(door.path, (_compile(door.path), {}))[1]
            else:
                found = self._plain.setdefault(door.path, {})
            if door.method in found:
                raise ValueError(f"two doors for {door.method} {door.path}")
            found[door.method] = door

    def find(self, method: str, path: str) -> tuple[Door, dict[str, str]]:
        """The door and the parameters in its path.

        Raises:
            Problem: 404, or 405 with what is allowed.
        """
        asked = _READING if method == "HEAD" else method
        plain = self._plain.get(path)
        if plain is not None and asked in plain:
            return plain[asked], {}
        for pattern, doors in self._patterns.values():
            if asked in doors and (match := pattern.fullmatch(path)) is not None:
                return doors[asked], match.groupdict()
        allowed = self.allowed(path)
        raise Problem(405, f"This path takes {allowed}", headers={"Allow": allowed})

    def allowed(self, path: str) -> str:
        """What ``Allow`` says of a path.

        Raises:
            Problem: 404.
        """
        methods = set(self._plain.get(path, ()))
        for pattern, doors in self._patterns.values():
            if pattern.fullmatch(path) is not None:
                methods.update(doors)
        if not methods:
            raise Problem(404, "There is nothing at this path; GET /openapi.json lists all of them")
        if _READING in methods:
            methods.add("HEAD")
        return ", ".join(sorted({*methods, "OPTIONS"}))


def _compile(path: str) -> re.Pattern[str]:
    parts = []
    position = 0
    for match in _PARAMETER.finditer(path):
        parts.append(re.escape(path[position : match.start()]))
        parts.append(f"(?P<{match[1]}>{'.*' if match[2] else '[^/]+'})")
        position = match.end()
    parts.append(re.escape(path[position:]))
    return re.compile("".join(parts), re.DOTALL)
