"""The generated part of docs/metrics.md: the table of metrics.

``python -m tests.metrics.reference`` writes it; a test fails when it is not as it would write.
"""

import sys
from typing import Final

from countersink.metrics.table import METRICS, MetricSpec
from tests.support.processes import PROJECT

PAGE: Final = PROJECT / "docs" / "metrics.md"
BEGIN: Final = "<!-- generated: python -m tests.metrics.reference -->"
END: Final = "<!-- end of the generated part -->"
HEADINGS: Final = {
    "every process": "Every process",
    "worker": "`countersink worker`",
    "scheduler": "`countersink scheduler`",
    "jobs": "`countersink jobs`",
    "tail": "`countersink tail`",
    "producer": "`countersink web` and `countersink statsd`: their producer",
    "statsd": "`countersink statsd`",
    "web": "`countersink web`",
    "installation": "`countersink web`: the installation as a whole",
}


def page() -> str:
    """The page as it should be: what stands there, with the generated part made anew."""
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE} has no generated part"
    assert end, f"{PAGE} has no end of the generated part"
    tables = "\n\n".join(_table(where, heading) for where, heading in HEADINGS.items())
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _table(where: str, heading: str) -> str:
    rows = [_row(metric) for metric in METRICS.values() if metric.where == where]
    return "\n".join([f"### {heading}\n", "| metric | type | meaning |", "|---|---|---|", *rows])


def _row(metric: MetricSpec) -> str:
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    return f"| `{metric.name}{labels}` | {metric.kind} | {metric.help} |"


def main() -> None:
    """Write the generated part into the page."""
    PAGE.write_text(page(), "utf-8")
    sys.stdout.write("docs/metrics.md is up to date\n")


if __name__ == "__main__":
    main()
