"""``countersink ops``: writes the files with which this version is deployed into a directory.

The originals are in the folder ``ops/`` of the project, which becomes ``countersink/cli/ops`` in
the wheel. Each ``0.dev0`` in an original is replaced by the version.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit
from countersink.reads.formats import replaced_file
from countersink.runtime.texts import plural

_PACKED: Final = Path(__file__).parents[2] / "ops"
SOURCES: Final = _PACKED if _PACKED.is_dir() else Path(__file__).parents[5] / "ops"
"""The folder of a wheel; or of a checkout, which an editable installation leaves where it is."""
SUMS: Final = "countersink.sha256"
"""The file with the checksums of this version's files, as of the last run of the command."""


@click.command("ops", cls=settings.Command)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@settings.one_off("--force", is_flag=True, help="Overwrite files that differ, too.")
def command(directory: Path, force: bool) -> int:
    """Write the files to deploy this version: units, manifests, alerts, rights.

    There are systemd units, a file for Docker Compose and its Dockerfile, manifests for Kubernetes,
    alert rules for Prometheus, a Grafana dashboard, grants for MySQL and an ACL for Redis.

    Run it again after an upgrade. It overwrites only files that are as an earlier run wrote them;
    where you changed some, it keeps these and exits with 3. In DIR,
    sha256sum --check countersink.sha256 names the files that differ from this version's.
    """
    release = version("countersink")
    earlier = _checksums(directory / SUMS)
    sums, rows = {}, []
    for source in sorted(file for file in SOURCES.rglob("*") if file.is_file()):
        name = source.relative_to(SOURCES).as_posix()
        content = source.read_bytes().replace(b"0.dev0", release.encode())
        sums[name] = _sum(content)
        state = _state(directory, name, sums[name], earlier.get(name), force)
        if state not in ("unchanged", "kept"):
            _write(directory / name, content)
        rows.append((state, name))
    _write(directory / SUMS, "".join(f"{sums[name]}  {name}\n" for name in sums).encode())
    changes = [row for row in rows if row[0] != "unchanged"]
    if changes:
        output.write_rows(("state", "file"), changes)
    kept = [name for state, name in rows if state == "kept"]
    click.echo(f"{directory} has {plural(len(rows), 'file')} of countersink {release}.")
    if not kept:
        return Exit.DONE
    differ = plural(len(kept), "file differs and was", "files differ and were")
    click.echo(f"warning: {differ} kept: --force overwrites", err=True)
    return Exit.DIFFERS


def _state(directory: Path, name: str, new: str, earlier: str | None, force: bool) -> str:
    """Return what the command is to do with the file ``name``. ``new`` is the checksum of its new
    content. ``earlier`` is the checksum of the content that an earlier run wrote, or None.

    The result is ``written`` if there is no file, ``unchanged`` if the file has the new content,
    and ``updated`` if it has the earlier content. A file with any other content is ``overwritten``
    with ``force``, else ``kept``. Symbolic links, and files that a link places outside the
    directory, are always ``kept``."""
    path = directory / name
    if path.is_symlink() or not path.resolve().is_relative_to(directory.resolve()):
        return "kept"
    if not path.exists():
        return "written"
    found = _sum(path.read_bytes())
    if found == new:
        return "unchanged"
    if found == earlier:
        return "updated"
    return "overwritten" if force else "kept"


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checksums(file: Path) -> dict[str, str]:
    """Return the checksums in ``file``, an output of ``sha256sum``, by name of the file that each
    belongs to. Return an empty dict if ``file`` does not exist."""
    if not file.exists():
        return {}
    lines = file.read_text("utf-8", "replace").splitlines()
    return {name: found for found, _, name in (line.partition("  ") for line in lines)}


def _write(path: Path, content: bytes) -> None:
    """Make the directory of a file if it is missing, and write the file atomically. Otherwise, the
    next run could find a file that was written in part, and take it for one that the user has
    changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as file:
        file.write(content)
