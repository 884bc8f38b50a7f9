"""A mutation: one text of one file that is replaced by another, and the tests that should fail."""

from collections.abc import Iterable
from pathlib import Path

import msgspec


class MutationError(Exception):
    """A mutation does not fit the code, or its tests cannot show that it is caught."""


class Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mistake in the core that would lose, double or misplace a count, or hide that from verify.

    Attributes:
        name: unique, a sentence in few words joined by hyphens.
        file: path of the mutated file, from the root of the repository.
        old: text that occurs exactly once in the file.
        new: text that takes its place.
        tests: what should fail: files or node ids of pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, root: Path) -> str:
        """The text of the file with the mutation in it.

        Args:
            root: root of the repository, or of a copy of it.

        Raises:
            MutationError: the file is missing, or the old text does not occur exactly once.
        """
        path = root / self.file
        if not path.is_file():
            raise MutationError(f"{self.name}: there is no file {self.file}")
        text = path.read_text()
        number = text.count(self.old)
        if number != 1:
            raise MutationError(
                f"{self.name}: the old text occurs {number} times in {self.file}, not once:"
                f" {self.old!r}"
            )
        return text.replace(self.old, self.new)


def problems(mutations: Iterable[Mutation], root: Path) -> list[str]:
    """Errors of mutations, a sentence for each: names, files, texts and tests.

    Args:
        mutations: all of them.
        root: root of the repository.
    """
    found: list[str] = []
    names: set[str] = set()
    for each in mutations:
        if each.name in names:
            found.append(f"{each.name}: the name is given twice")
        names.add(each.name)
        try:
            each.applied(root)
        except MutationError as error:
            found.append(str(error))
        if each.new == each.old:
            found.append(f"{each.name}: the new text is the old one")
        if not each.tests:
            found.append(f"{each.name}: no test is named")
        missing = [test for test in each.tests if not _exists(root, test)]
        found += [f"{each.name}: there is no test {test}" for test in missing]
    return found


def _exists(root: Path, test: str) -> bool:
    """Whether a test file is there and has the class and the function that a node id names."""
    file, *parts = test.split("::")
    path = root / file
    if not path.is_file():
        return False
    text = path.read_text()
    *classes, function = parts or [""]
    return all(f"class {name}" in text for name in classes) and (
        not function or f"def {function.partition('[')[0]}(" in text
    )
