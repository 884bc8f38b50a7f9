"""The files of the dashboard, read once: pages, scripts, styles, what they are and how they are
named.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

MEDIA_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""By the ending of a file's name; other files are not served."""
PLACEHOLDER: Final = b"/static/0/"
"""How pages name the folder of files; it is served under the hash of all that is in it."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        body: its bytes.
        packed: the same, as gzip.
        media_type: what it is.
        etag: changes with the bytes.
    """

    body: bytes
    packed: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """All files.

    Attributes:
        version: a hash of all of them.
        files: by path below the folder, such as ``js/app.js``.
    """

    version: str
    files: Mapping[str, Asset]


@cache
def load() -> Assets:
    """Read the files that belong to the package."""
    found = dict(_walk(files("countersink.web") / "static", ""))
    digest = hashlib.sha256()
    for path, body in sorted(found.items()):
        digest.update(b"%d %b %d " % (len(path), path.encode(), len(body)) + body)
    version = digest.hexdigest()[:16]
    own = f"/static/{version}/".encode()
    return Assets(
        version,
        {
            path: _asset(path, body.replace(PLACEHOLDER, own) if path.endswith(".html") else body)
            for path, body in found.items()
        },
    )


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
            yield f"{prefix}{entry.name}", entry.read_bytes()


def _asset(path: str, body: bytes) -> Asset:
    packed = gzip.compress(body, mtime=0)
    media_type = MEDIA_TYPES[path.rpartition(".")[2]]
    return Asset(body, packed, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
