"""Branch coverage of each package, from `coverage json`, beside the figures kept in the repository.

    python scripts/coverage_table.py [--keep]

Branch coverage of a package is the number of its lines and branches that the tests executed,
divided by the number of all of them, in per cent. ``--keep`` writes the new figures.
"""

import collections
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build/coverage/report.json"
KEPT = ROOT / "tests/coverage.json"
SPLIT = ("producers", "counting")
"""Packages that are told by their sub-packages."""
TOLERANCE = 0.3
"""Points of a per cent by which a figure varies from run to run: processes are killed at random."""


def package(path: str) -> str:
    """``counting.apply`` for ``worker/countersink/counting/apply/applier.py``."""
    parts = Path(path).parts[2:-1]
    return ".".join(parts[: 2 if parts[0] in SPLIT else 1])


def measured() -> dict[str, float]:
    """Per cent of each package, and of all together under "total"."""
    done: collections.Counter[str] = collections.Counter()
    of: collections.Counter[str] = collections.Counter()
    for path, file in json.loads(REPORT.read_text())["files"].items():
        summary = file["summary"]
        for name in (package(path), "total"):
            done[name] += summary["covered_lines"] + summary["covered_branches"]
            of[name] += summary["num_statements"] + summary["num_branches"]
    return {name: round(100 * done[name] / of[name], 1) for name in sorted(of) if of[name]}


def main() -> None:
    """Print the table; keep it where asked to."""
    new = measured()
    kept: dict[str, float] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    print(f"{'package':28} {'now':>6} {'kept':>6}")
    for name, value in new.items():
        before = kept.get(name)
        fell = "  less" if before is not None and value < before - TOLERANCE else ""
        print(f"{name:28} {value:6.1f} {'' if before is None else before:>6}{fell}")
    if "--keep" in sys.argv[1:]:
        KEPT.write_text(json.dumps(new, indent=2) + "\n")


if __name__ == "__main__":
    main()
