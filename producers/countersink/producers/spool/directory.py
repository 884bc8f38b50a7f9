"""A spool directory: the names of its files, oldest first, and their size."""

import os
import re
import time
from pathlib import Path
from typing import Final

from countersink.producers.spool.errors import SpoolError
from countersink.producers.spool.segment import DAMAGED_SUFFIX

SUFFIX: Final = ".spool"


def new_segment_path(directory: Path) -> Path:
    """A new name; names sort by the time of their creation."""
    return directory / f"{int(time.time() * 1000):014d}-{os.urandom(6).hex()}{SUFFIX}"


def made_ms(name: str) -> int | None:
    """When the file of this name was made, in Unix ms; None: it is no name of ours."""
    found = re.match(r"([0-9]{14})-", name)
    return None if found is None else int(found[1])


def segment_paths(directory: Path) -> list[Path]:
    """The segments in ``directory``, oldest first; none if it does not exist.

    Raises:
        SpoolError: the directory cannot be read.
    """
    return [directory / name for name, _ in files(directory) if name.endswith(SUFFIX)]


def used_bytes(directory: Path) -> int:
    """Size of all segments, damaged ones included.

    Raises:
        SpoolError: the directory cannot be read.
    """
    return sum(size for _, size in files(directory))


def files(directory: Path) -> list[tuple[str, int]]:
    """Names and sizes of the spool's files, damaged ones included, sorted by name; none if the
    directory does not exist.

    Raises:
        SpoolError: the directory cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            names = [
                entry for entry in entries if entry.name.endswith((SUFFIX, SUFFIX + DAMAGED_SUFFIX))
            ]
            return sorted((entry.name, _size(entry)) for entry in names)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SpoolError(f"{directory}: cannot read the spool: {error.strerror}") from error


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # finished by another process since the directory was read
        return 0
