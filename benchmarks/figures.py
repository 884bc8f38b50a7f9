"""Figures in documents: ``python -m benchmarks.figures`` takes them from results.json.

The results of benchmarks/README.md are made anew. In other pages, sentences are looked for that are
listed here, and their numbers are replaced; a figure that was not measured stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import kills, scale
from benchmarks.processes import PROJECT
from benchmarks.results import SECTIONS
from benchmarks.rows import BY_HAND, FLOORS, SERVERS, TARGETS, WHAT, Floor, Target, server_of

BEGIN: Final = "<!-- generated: python -m benchmarks.figures -->"
END: Final = "<!-- end of the generated part -->"
RESULTS_PAGE: Final = "benchmarks/README.md"
_COUNTS: Final = {
    server: " | ".join(
        f"{{{row}.questions.{each}.count_ms.median}} →"
        f" {{{row}.questions.{each}.row_count_ms.median}} ms"
        for each in range(3)
    )
    for server, row in (("mariadb", "row_counts_mariadb"), ("mysql", "row_counts_mysql"))
}
SENTENCES: Final = (
    ("README.md", "count {end_to_end_zipf} increments per second of 5,000 keys"),
    ("README.md", "and {end_to_end_distinct} where every key is another one"),
    ("README.md", "one RQ job per event reaches {peer_rq} ("),
    ("README.md", "upserted each second reaches {peer_folded_dict}, sent"),
    ("README.md", "through a stream {peer_folded_stream}; countersink adds"),
    (
        "README.md",
        "that dictionary {kills_folded_dict.lost} of {kills_folded_dict.sent} increments",
    ),
    ("docs/sequences.md", "{sequence_one_mariadb} values a second for one caller"),
    ("docs/sequences.md", "and {sequence_eight_mariadb} for eight with MariaDB"),
    ("docs/sequences.md", "{sequence_one_mysql} and {sequence_eight_mysql} with MySQL"),
    (
        "docs/transactions.md",
        "throughput is {app_transactions_mariadb/peer_app_transactions_mariadb} (MariaDB)",
    ),
    (
        "docs/transactions.md",
        "or {app_transactions_mysql/peer_app_transactions_mysql} times (MySQL) that of",
    ),
    (
        "docs/row-counts.md",
        f"| MariaDB, {{row_counts_mariadb.table_rows}} rows | {_COUNTS['mariadb']} |",
    ),
    (
        "docs/row-counts.md",
        f"| MySQL, {{row_counts_mysql.table_rows}} rows | {_COUNTS['mysql']} |",
    ),
    (
        "docs/row-counts.md",
        "(MariaDB {insert_one_mariadb} → {insert_one_tracked_mariadb} a second on one connection",
    ),
    ("docs/row-counts.md", "{insert_eight_mariadb} → {insert_eight_tracked_mariadb} on eight"),
    ("docs/row-counts.md", "MySQL {insert_one_mysql} → {insert_one_tracked_mysql} and"),
    ("docs/row-counts.md", "and {insert_eight_mysql} → {insert_eight_tracked_mysql})"),
)
"""Page and part of a sentence. In braces is a row, or one by another; it stands for `per_second`,
or for what its dots lead to."""
SAME: Final = (
    *(*BY_HAND, "peer_dramatiq_batches", "peer_update", "peer_slotted_upsert"),
    *("peer_celery_batches", "peer_dramatiq", "peer_taskiq", "peer_arq", "peer_rq", "peer_bytewax"),
)
"""Other ways to count the events of `end_to_end_zipf`."""

Rows = Mapping[str, Any]
"""All rows of all sections, by name."""


def number(value: float) -> str:
    """A figure with three significant digits."""
    return f"{float(f'{value:.3g}'):,.10g}"


def figure(rows: Rows, expression: str) -> float | None:
    """The figure that an expression in braces stands for; None: not measured."""
    first, *by = [_at(rows, path) for path in expression.split("/")]
    if first is None or None in by:
        return None
    return float(first / by[0] if by else first)


def _at(rows: Rows, path: str) -> Any:
    node: Any = rows
    for step in path.split("."):
        node = node[int(step)] if isinstance(node, list) else node.get(step)
        if node is None:
            return None
    return node.get("per_second") if isinstance(node, dict) else node


def filled(text: str, sentence: str, rows: Rows) -> str:
    """The page with the figures of a sentence. Raises ValueError where it has no such sentence."""
    parts = re.split(r"\{(.*?)\}", sentence)
    words = [r"\s+".join(map(re.escape, part.split(" "))) for part in parts[::2]]
    match = re.search(r"([\d,]*\.?\d+)".join(words), text)
    if match is None:
        raise ValueError(f"not in the page: {sentence}")
    for group, expression in reversed(list(enumerate(parts[1::2], 1))):
        value = figure(rows, expression)
        if value is not None:
            start, end = match.span(group)
            text = text[:start] + number(value) + text[end:]
    return text


def _ways(rows: Rows) -> Iterator[str]:
    ours = rows["end_to_end_zipf"]["per_second"]
    yield "| row | what | events/s | by which ours is faster |"
    yield "|---|---|---|---|"
    for name in ("end_to_end_zipf", *SAME, "end_to_end_distinct", "raw_upserts"):
        if "per_second" in rows.get(name, {}):
            per_second = rows[name]["per_second"]
            times = f"{number(ours / per_second)}×" if name in SAME else ""
            yield f"| `{name}` | {WHAT[name]} | {number(per_second)} | {times} |"


def _promises(rows: Rows) -> Iterator[str]:
    """The lines of promises, each with the ratios of MariaDB and MySQL."""
    yield "| promise | measured (MariaDB and MySQL) |"
    yield "|---|---|"
    lines: dict[str, list[str]] = {}
    promises: tuple[Target | Floor, ...] = (*TARGETS, *FLOORS)
    for promise in promises:
        server = server_of(promise.row)
        text = f"`{promise.row}` {promise}".replace(f"_{server}", "")
        ratio = "not measured"
        row = rows.get(promise.row, {})
        for each in (row, *row.get("also", ())):
            if each.get("target") == str(promise):
                ratio = number(each["ratio"]) + ("" if each["met"] else " (**not kept**)")
        lines.setdefault(text, []).append(ratio)
    for text, ratios in lines.items():
        yield f"| {text} | {' and '.join(dict.fromkeys(ratios))} |"


def _kills(rows: Rows) -> Iterator[str]:
    yield "| killed twenty times | events | lost | doubled |"
    yield "|---|---|---|---|"
    for way, what in kills.WAYS.items():
        if f"kills_{way}" in rows:
            row = rows[f"kills_{way}"]
            yield f"| {what} | {row['sent']:,} | {row['lost']:,} | {row['doubled']:,} |"


def generated(results: Mapping[str, Any]) -> str:
    """The results of benchmarks/README.md."""
    rows = by_name(results)
    of = results["environment"]
    servers = [f"{server} {of[server]}" for server in SERVERS if server in of]
    head = (
        f"{of['date'][:10]}, {of['cores']} cores ({of['cpu']}), Python {of['python']}, Redis"
        f" {of['redis']}, {', '.join(servers)}; median of {of['rounds']} times"
        f" {of['seconds_per_measurement']:g} s."
    )
    parts = [head, *("\n".join(lines(rows)) for lines in (_ways, _promises))]
    if results.get("kills"):
        parts.append("\n".join(_kills(rows)))
    return "\n\n".join(parts)


def by_name(results: Mapping[str, Any]) -> Rows:
    """All rows that there are."""
    return {row["name"]: row for section in SECTIONS for row in results.get(section, ())}


def pages() -> Iterator[tuple[Path, str, str]]:
    """(page, what it says, what it is to say)."""
    results = json.loads(scale.RESULTS.read_text("utf-8"))
    rows = by_name(results)
    for name in dict.fromkeys((RESULTS_PAGE, *(page for page, _ in SENTENCES))):
        text = made = (PROJECT / name).read_text("utf-8")
        for page, sentence in SENTENCES:
            if page == name:
                made = filled(made, sentence, rows)
        if name == RESULTS_PAGE:
            before, _, rest = made.partition(BEGIN)
            made = f"{before}{BEGIN}\n\n{generated(results)}\n\n{END}{rest.partition(END)[2]}"
        yield PROJECT / name, text, made
    text = scale.PAGE.read_text("utf-8")
    yield scale.PAGE, text, scale.page(text)


def main() -> int:
    """Write the pages."""
    for page, text, made in pages():
        if made != text:
            page.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
