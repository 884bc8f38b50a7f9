"""The TOML map of StatsD names to counters and keys (``--map``): syntax of rules, patterns and
placeholders, their errors, and how a name that no rule matches becomes a counter's.

A TOML file of rules; the first that matches a name decides::

    unmatched = "count"          # or "drop": names that no rule matches are not counted

    [[rule]]
    match = "web.*.hits"         # * within a segment of the name, ** over dots too
    counter = "page_views"
    key = "$1"

    [[rule]]
    regex = 'api\\.([a-z]+)\\.v[0-9]+'    # the whole name
    counter = "api"
    key = "$1 {tag:region}"

    [[rule]]
    match = "shop.order"
    counter = "orders"
    dimensions = { country = "{tag:country}", plan = "{tag:plan}" }     # in the place of a key

    [[rule]]
    match = "debug.**"
    drop = true
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from countersink.runtime.dimensions import RowKey, check_dimensions
from countersink.runtime.limits import MAX_COUNTER_LENGTH, cut_key
from countersink.statsd.errors import MapError

MAX_RULES: Final = 10_000

_RULE_KEYS: Final = frozenset(("match", "regex", "counter", "key", "dimensions", "drop"))
_FILE_KEYS: Final = frozenset(("rule", "unmatched"))
_UNMATCHED: Final = ("count", "drop")
_GLOB: Final = re.compile(r"\*\*|\*|[^*]+")

_TOKEN: Final = re.compile(
    r"(?P<literal>[^${}]+)|\$(?P<dollar>\$)|\$(?P<number>[0-9]{1,2})|\$\{(?P<braced>[0-9]{1,2})\}"
    r"|\{tag:(?P<tag>[^{}]+)\}|(?P<name>\{name\})|(?P<open>\{\{)|(?P<close>\}\})"
)

Part = Callable[[str, tuple[str, ...], Mapping[str, str]], str]
"""(name, captured parts, tags) → text."""
_MARK_BYTES: Final = 8
_MARK: Final = 2 * _MARK_BYTES + 1
"""Characters that tell a shortened name from others: ``-`` and 16 hex digits."""
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.:\-]", re.ASCII)

Target = tuple[str, RowKey]
"""(counter, key or dimensions)."""


def template(text: str, captures: int) -> Part:
    """What fills ``$1`` (also ``${1}``): what the first ``*`` or group has matched; ``{tag:city}``:
    a tag's value, empty without it; ``{name}``: the whole name; ``$$``, ``{{`` and ``}}``: ``$``,
    ``{``, ``}``.

    Args:
        text: as above.
        captures: how many ``*`` or groups there are.

    Raises:
        ValueError: something else follows a ``$`` or stands in braces, or there is no such capture.
    """
    parts: list[Part] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(
                f"{text!r}: {text[at : at + 12]!r} is no placeholder; there are $1, "
                "{tag:name}, {name}, and $$, {{, }} for the characters themselves"
            )
        parts.append(_part(found, captures, text))
        at = found.end()
    return lambda name, captured, tags: "".join([part(name, captured, tags) for part in parts])


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


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the map: a pattern, and the counter and key of names that match.

    Attributes:
        pattern: of the whole name.
        counter, key: templates; ``counter`` is ``None`` for a rule that drops.
        dimensions: by name, templates of their values, in the place of ``key``; empty: there are
            none.
        fixed: the counter of all names, if ``counter`` has no placeholder; else empty.
    """

    pattern: re.Pattern[str]
    counter: Part | None
    key: Part
    dimensions: Mapping[str, Part]
    fixed: str = ""

    def row_key(self, name: str, captured: tuple[str, ...], tags: Mapping[str, str]) -> RowKey:
        """What a metric is counted under."""
        if not self.dimensions:
            return cut_key(self.key(name, captured, tags))
        values = {
            dimension: value(name, captured, tags) for dimension, value in self.dimensions.items()
        }
        return check_dimensions(values)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the map in their order, and whether unmatched names are counted.

    Attributes:
        rules: the rules.
        count_unmatched: whether names that none matches are counted, each as a counter.
    """

    rules: tuple[Rule, ...] = ()
    count_unmatched: bool = True

    def fixed(self) -> frozenset[str]:
        """The counters that the map itself names."""
        return frozenset(rule.fixed for rule in self.rules if rule.fixed)

    def target(self, name: str, tags: Mapping[str, str]) -> Target | None:
        """The counter and key, or dimensions, of a metric; ``None``: it is not to be counted."""
        for rule in self.rules:
            found = rule.pattern.fullmatch(name)
            if found is None:
                continue
            if rule.counter is None:
                return None
            captured = tuple(part or "" for part in found.groups())
            counter = rule.counter(name, captured, tags)
            # What is empty without a tag or a group: the name itself says what was counted.
            return counter_name(counter or name), rule.row_key(name, captured, tags)
        return (counter_name(name), "") if self.count_unmatched else None


def load(path: Path) -> Rules:
    """The map in a file.

    Raises:
        MapError: it cannot be read, or something in it is wrong.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MapError(f"{path}: cannot be read: {reason}") from error
    try:
        return read(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, MapError) as error:
        raise MapError(f"{path}: {error}") from error


def read(document: Mapping[str, Any]) -> Rules:
    """The map in a parsed document.

    Raises:
        MapError: something in it is wrong.
    """
    _check_keys(document, _FILE_KEYS, "the file")
    unmatched = document.get("unmatched", _UNMATCHED[0])
    if unmatched not in _UNMATCHED:
        raise MapError(f'unmatched is "count" or "drop", not {unmatched!r}')
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise MapError("rules are written as [[rule]], each with its own table")
    if len(tables) > MAX_RULES:
        raise MapError(f"there are {len(tables)} rules; at most {MAX_RULES} are tried per name")
    rules = []
    for number, table in enumerate(tables, 1):
        try:
            rules.append(_rule(table))
        except ValueError as error:
            raise MapError(f"rule {number}: {error}") from error
    return Rules(tuple(rules), unmatched == "count")


def _rule(table: Mapping[str, Any]) -> Rule:
    _check_keys(table, _RULE_KEYS, "a rule")
    for name in ("match", "regex", "counter", "key"):
        if name in table and not isinstance(table[name], str):
            raise MapError(f"{name} is text, not {table[name]!r}")
    if ("match" in table) == ("regex" in table):
        raise MapError("it needs either match or regex")
    pattern = _compiled(table["regex"]) if "regex" in table else glob(table["match"])
    drop = table.get("drop", False)
    if type(drop) is not bool:
        raise MapError(f"drop is true or false, not {drop!r}")
    if drop == ("counter" in table):
        raise MapError("it needs either a counter or drop = true")
    if drop and ("key" in table or "dimensions" in table):
        raise MapError("a rule that drops has no key, nor dimensions")
    if drop:
        return Rule(pattern, None, template("", 0), {})
    if not table["counter"]:
        raise MapError("counter is empty")
    counter = template(table["counter"], pattern.groups)
    key = template(table.get("key", ""), pattern.groups)
    fixed = "" if _has_placeholder(table["counter"]) else counter_name(counter("", (), {}))
    return Rule(pattern, counter, key, _dimensions(table, pattern.groups), fixed)


def _has_placeholder(text: str) -> bool:
    kinds = {found.lastgroup for found in _TOKEN.finditer(text)}
    return not kinds.isdisjoint(("number", "braced", "tag", "name"))


def _dimensions(table: Mapping[str, Any], captures: int) -> dict[str, Part]:
    given = table.get("dimensions", {})
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise MapError(
            'dimensions are a table of names and texts: { country = "{tag:country}" }, not'
            f" {given!r}"
        )
    if given and "key" in table:
        raise MapError("it has a key and dimensions: leave one of them out")
    check_dimensions(given)
    return {name: template(text, captures) for name, text in given.items()}


def glob(text: str) -> re.Pattern[str]:
    """``*``: one or more characters other than dots; ``**``: any, at least one. Both capture.

    Raises:
        MapError: it is empty, or has so many of them that an evil name could take seconds.
    """
    if not text:
        raise MapError("match is empty")
    if text.count("**") > 1 or any(part.count("*") > 2 for part in text.split(".")):
        raise MapError(f"match {text!r}: at most one ** and two * between dots")
    kinds = {"*": r"([^.]+)", "**": r"(.+)"}
    parts = [kinds.get(part) or re.escape(part) for part in _GLOB.findall(text)]
    return re.compile("".join(parts), re.DOTALL)


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise MapError(f"regex {text!r} is none: {error}") from error


def _check_keys(table: Mapping[str, Any], allowed: frozenset[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise MapError(f"{where} has no {key!r}; there are {', '.join(sorted(allowed))}")


def counter_name(name: str) -> str:
    """``name`` as a counter's: ``_`` for each character that none may have; cut, with a hash of the
    whole, where it is longer than 64. Not for an empty one.
    """
    clean = _NOT_ALLOWED.sub("_", name)
    if len(clean) <= MAX_COUNTER_LENGTH:
        return clean
    whole = blake2b(name.encode(), digest_size=_MARK_BYTES).hexdigest()
    return f"{clean[: MAX_COUNTER_LENGTH - _MARK]}-{whole}"
