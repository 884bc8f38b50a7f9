"""The real command, ``countersink web``, as a process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import Child, Children
from tests.support.waiting import eventually


def resident(child: Child, which: str = "VmRSS") -> int:
    """Bytes of memory of a process, now or (``VmHWM``) at most so far."""
    text = Path(f"/proc/{child.pid}/status").read_text()
    found = re.search(rf"^{which}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@dataclass(frozen=True)
class WebProcess:
    """A running process.

    Attributes:
        child: the process.
        url: of its root, without a slash at the end.
    """

    child: Child
    url: str

    @classmethod
    def start(
        cls, children: Children, redis_url: str, mysql_url: str, *arguments: str, **variables: str
    ) -> WebProcess:
        """Start it, and wait until it accepts connections."""
        urls = {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": mysql_url}
        child = children.countersink(
            "web", "--port", "0", *arguments, environment={**urls, **variables}
        )

        def announced() -> str | None:
            assert child.running, child.output()
            match = re.search(r'listening at (http://[^\s"]+)', child.output())
            return match[1] if match else None

        return cls(child, eventually(announced) or "")
