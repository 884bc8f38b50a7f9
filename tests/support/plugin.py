"""A run of pytest in a process of its own, with our plugin."""

import subprocess
import sys
from pathlib import Path

from tests.support.processes import child_environment


def run_pytest(directory: Path, *options: str, **variables: str) -> str:
    """Run the tests of a directory with no other plugin; what pytest has printed.

    Args:
        variables: environment variables, of which no other one is ours.
    """
    plugin = ("-pcountersink.pytest_plugin", "-pno:cacheprovider", "-rs", f"--rootdir={directory}")
    inherited = {name: text for name, text in child_environment().items() if "SINK" not in name}
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *options, str(directory)],
        cwd=directory,
        env={**inherited, **alone, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout
