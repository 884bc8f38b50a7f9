"""schemathesis against the served document, with all of its checks: whatever it thinks of is
answered as the document says.

In the place of one of them, ``positive_data_acceptance``, ``unsaid.py`` has one that knows of the
rules that no schema can say: of two parameters together, of bytes, of the server's clock, of how a
counter is counted.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.processes import PROJECT, child_environment
from tests.web.serving import Web, serving

REPLACED = "positive_data_acceptance"
CONFIGURATION = """
request-timeout = 30
max-stream-events = 1  # of /v1/live, which has no end

[checks]
# Its own list has no 413: what too many items of an array are told.
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429]

[[operations]]
include-path = "/v1/live"
request-timeout = 5

# Other operations take these paths, too: a key may end in .gif, a sequence's name in /next.
[[operations]]
include-path-regex = "^/hit/|/next$"
checks.unsupported_method.enabled = false
"""


NO_LIMITS: Final[dict[str, Any]] = {
    "rate_per_key": 0,
    "rate_per_address": 0,
    "failures_per_minute": 1_000_000,
    "wait_s": 0.1,
}


def explored(
    redis_url: str, mysql_url: str, directory: Path, *, keys: bool = True, **how: Any
) -> str:
    """Explore a server on these two, in which something was counted, and that takes keys alone or
    none: see :func:`explore`.
    """
    with serving(redis_url, mysql_url, **NO_LIMITS) as web:
        key = web.key("admin") if keys else None
        web.count("page_views", "/home")
        return explore(web, key, directory, **how)


def explore(
    web: Web,
    key: str | None,
    directory: Path,
    *,
    examples: int,
    seed: int,
    phases: str,
    paths: str = "",
) -> str:
    """Let it run; what it found, empty if that is nothing.

    Args:
        web: the server.
        key: with the scope admin; None where none is needed.
        directory: where it may write.
        examples: requests for each operation, about.
        seed: of its random choices.
        phases: its own, separated by commas.
        paths: a regular expression of those to explore; default: all.
    """
    (directory / "schemathesis.toml").write_text(CONFIGURATION)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{web.url}/openapi.json",
            *([] if key is None else [f"--header=Authorization: Bearer {key}"]),
            *([f"--include-path-regex={paths}"] if paths else []),
            f"--exclude-checks={REPLACED}",
            f"--max-examples={examples}",
            f"--seed={seed}",
            f"--phases={phases}",
            "--suppress-health-check=all",
            "--warnings=off",
        ],
        cwd=directory,
        env={
            **child_environment(),
            "SCHEMATHESIS_HOOKS": "tests.web.unsaid",
            # What it knows of Unicode takes two seconds to make: not for each directory anew.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(PROJECT / ".hypothesis"),
        },
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
