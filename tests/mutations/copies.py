"""Copies of the checkout in which mutations are made; the checkout itself is never changed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path

from tests.mutations.mutation import Mutation, MutationError
from tests.support.processes import PROJECT, SOURCE_ROOTS

_PROBE = """
import subprocess, sys
from countersink.database import sql
from countersink.runtime import log
from countersink.schedules import options
from tests.support import processes
for module in log, sql, options, processes:
    print(module.__file__)
if len(sys.argv) > 1:
    command = [sys.executable, "-c", sys.argv[1]]
    subprocess.run(command, env=processes.child_environment(), cwd="/", check=True)
"""
"""Prints which files are imported, here and in a child that is started as tests start theirs."""


class SourceCopy:
    """A copy of the files that git lists, as they are in the working tree.

    Args:
        directory: where the copy is.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def of_checkout(cls, directory: Path) -> "SourceCopy":
        """Copy the checkout: tracked files, and new ones that are not ignored.

        Raises:
            MutationError: git cannot list the files, or other sources than the copy's are run.
        """
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode:
            raise MutationError(f"git cannot list the files: {listed.stderr.strip()}")
        for name in sorted(set(listed.stdout.split("\0")) - {""}):
            source, target = PROJECT / name, directory / name
            if not source.is_file() or ".venv" in Path(name).parts:
                continue  # deleted in the working tree, or a link to what is shared
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        (directory / ".venv").symlink_to((PROJECT / ".venv").resolve())
        made = cls(directory)
        made._require_own_sources()
        return made

    def again(self, directory: Path) -> "SourceCopy":
        """Another copy of this one, with the modules that were compiled here.

        Raises:
            MutationError: other sources than the copy's are run.
        """
        shutil.copytree(self.directory, directory, symlinks=True)
        made = SourceCopy(directory)
        made._require_own_sources()
        return made

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that runs the copy's sources."""
        roots = [str(self.directory / root) for root in SOURCE_ROOTS]
        return {
            "PYTHONPATH": os.pathsep.join([*roots, str(self.directory)]),
            "COUNTERSINK_TEST_SERVER": "mariadb",
        }

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Make a mutation in the copy, and take it back.

        Raises:
            MutationError: it does not fit.
        """
        path = self.directory / mutation.file
        before, times = path.read_bytes(), path.stat()
        path.write_text(mutation.applied(self.directory))
        try:
            _forget_compiled(path)
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            _forget_compiled(path)

    def _require_own_sources(self) -> None:
        """See that this copy's sources are run, not those that .venv has installed."""
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, _PROBE],
            cwd=self.directory,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        files = done.stdout.splitlines()
        others = [file for file in files if not Path(file).is_relative_to(self.directory)]
        if done.returncode or len(files) != 8 or others:
            raise MutationError(
                f"in {self.directory} other sources are run: {others or done.stderr.strip()}"
            )


def _forget_compiled(path: Path) -> None:
    """Delete the compiled module: it is told from another one by size and seconds alone."""
    if path.suffix == ".py":
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
