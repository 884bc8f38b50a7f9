"""All mutations, as the TOML files here have them."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.mutations.mutation import Mutation, MutationError

AREAS: Final = ("producer", "queue", "counting", "backfill", "direct", "upkeep", "verification")
"""The files, in the order of an increment's way: the producer first, verify last."""
FOLDER: Final = Path(__file__).parent


class _Area(msgspec.Struct, forbid_unknown_fields=True):
    mutation: list[dict[str, Any]]


@cache
def repertoire() -> tuple[Mutation, ...]:
    """All of them.

    Raises:
        MutationError: see :func:`load`.
    """
    return tuple(each for area in AREAS for each in load(FOLDER / f"{area}.toml"))


def load(file: Path) -> list[Mutation]:
    """The mutations of a file.

    Raises:
        MutationError: it is no TOML, or a name is unknown or missing, or a type is wrong.
    """
    where = file.name
    mutations: list[Mutation] = []
    try:
        for table in msgspec.convert(tomllib.loads(file.read_text("utf-8")), _Area).mutation:
            where = f"{file.name}: {table.get('name', f'after {len(mutations)} mutations')}"
            mutations.append(msgspec.convert(table, Mutation))
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise MutationError(f"{where}: {error}") from error
    return mutations
