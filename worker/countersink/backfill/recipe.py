"""How the lines of a source become counts: what has to be the same for the same result."""

import json
import shlex
from dataclasses import asdict, dataclass, fields
from datetime import date
from typing import Any, Final, Literal, Self, get_args

InputFormat = Literal["combined", "common", "nginx-json", "csv", "ndjson"]
INPUT_FORMATS: Final[tuple[InputFormat, ...]] = get_args(InputFormat)

Operator = Literal["=", "!=", "~", "!~"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on a field: its text is, is not, matches or does not match (shell pattern)."""

    field: str
    operator: Operator
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a source is read.

    Attributes:
        input_format: what a line is.
        key: template of the key: text with ``{field}``, where ``{{`` and ``}}`` are braces; '':
            the format's own (access logs: ``{path}``).
        key_column, time_column, amount_column: CSV: names in the header; NDJSON: paths; '': the
            format's own. Without an amount column each line counts 1.
        delimiter: CSV; one character.
        time_format: ``auto``, ``unix``, ``unix-ms``, or a pattern of strptime.
        time_zone: IANA name for times without one; '': such lines are rejected.
        where: all must hold, or the line is left out.
        exclude_keys: shell patterns; lines whose key matches one are left out.
        strip_query: keys end before their ``?``.
        start, end: days of the counter, both inclusive; other lines are left out.
    """

    input_format: InputFormat = "combined"
    key: str = ""
    key_column: str = ""
    time_column: str = ""
    amount_column: str = ""
    delimiter: str = ","
    time_format: str = "auto"
    time_zone: str = ""
    where: tuple[Condition, ...] = ()
    exclude_keys: tuple[str, ...] = ()
    strip_query: bool = False
    start: date | None = None
    end: date | None = None

    def to_json(self) -> str:
        """The same text for the same recipe; what is as by default is left out."""
        given = {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}
        return json.dumps(given, default=str, sort_keys=True, ensure_ascii=False)

    def described(self) -> str:
        """What is not as by default, as options of the command line; ``(none)``: nothing is."""
        given: list[tuple[str, str | None]] = []
        for one in fields(self):
            value = getattr(self, one.name)
            option = _OPTIONS.get(one.name) or "--" + one.name.replace("_", "-")
            if value == _DEFAULTS[one.name]:
                continue
            if one.name == "where":
                given += [(option, each.field + each.operator + each.value) for each in self.where]
            elif one.name == "exclude_keys":
                given += [(option, each) for each in self.exclude_keys]
            else:
                given.append((option, None if value is True else str(value)))
        words = (
            option if value is None else f"{option} {shlex.quote(value)}" for option, value in given
        )
        return " ".join(words) or "(none)"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recipe that :meth:`to_json` wrote."""
        found: dict[str, Any] = json.loads(text)
        for day in "start", "end":
            if found.get(day):
                found[day] = date.fromisoformat(found[day])
        found["where"] = tuple(Condition(**one) for one in found.get("where", ()))
        found["exclude_keys"] = tuple(found.get("exclude_keys", ()))
        return cls(**found)


_DEFAULTS: Final = asdict(Recipe())
_OPTIONS: Final = {"exclude_keys": "--exclude-key-glob", "start": "--from", "end": "--to"}
"""Options that are called otherwise than the attributes."""
