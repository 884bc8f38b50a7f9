"""How the code is laid out: names, sizes of folders, and that docs/architecture.md says so."""

import ast
import re
import runpy
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.processes import PROJECT, SOURCE_ROOTS

MODULES: Final = sorted(
    path for root in SOURCE_ROOTS for path in (PROJECT / root / "countersink").rglob("*.py")
)
FILES: Final = {root: sorted((PROJECT / root).rglob("*.*")) for root in SOURCE_ROOTS}
MOST_MODULES: Final = 270
MOST_IN_A_FOLDER: Final = 15
LONG: Final = 400
"""Lines of a module above which there is a reason for it."""
MOST_LONG: Final = 10
NO_NOUN: Final = re.compile(r"(ing|ly)$")
"""Gerunds and adverbs."""
NO_TERM: Final = {
    *("alike", "bell", "door", "figures", "folder", "gate", "heads", "horse", "journal", "memory"),
    *("patience", "pieces", "places", "pulse", "reign", "tables", "together", "trouble"),
    *("truth", "trying", "whole"),
}
"""Metaphors, and words with two meanings."""
TERMS: Final = {"apply", "pending", "pruning", "tally"}
"""Terms of the field that look like one."""
MAP: Final = PROJECT / "docs" / "architecture.md"


@cache
def classes(path: Path) -> list[ast.ClassDef]:
    """The heads of the public classes of a module."""
    heads = re.findall(r"^class [^_].*?:(?=\n|  #)", path.read_text(), re.MULTILINE | re.DOTALL)
    parsed = ast.parse("\n".join(f"{head} ..." for head in heads))
    return [node for node in parsed.body if isinstance(node, ast.ClassDef)]


def test_a_module_is_named_by_a_noun() -> None:
    wrong = {path.stem for path in MODULES if NO_NOUN.search(path.stem)} | NO_TERM
    assert [path for path in MODULES if path.stem in wrong - TERMS] == []


def test_a_folder_can_be_seen_at_a_glance() -> None:
    assert len(MODULES) <= MOST_MODULES
    sizes = Counter(path.parent for path in MODULES if path.stem != "__init__")
    assert {folder: size for folder, size in sizes.items() if size > MOST_IN_A_FOLDER} == {}


def test_few_modules_are_long() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert len([path for path, size in sizes.items() if size > LONG]) <= MOST_LONG


def test_a_public_class_name_exists_once() -> None:
    found = defaultdict(list)
    for path in MODULES:
        for each in classes(path):
            found[each.name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_errors_are_in_errors_py() -> None:
    """By the names of the bases, to the end: an error of ours is one as well."""
    bases = {
        each.name: [ast.unparse(base).rpartition(".")[2] for base in each.bases]
        for path in MODULES
        for each in classes(path)
    }

    def is_error(name: str, *derived: str) -> bool:
        own = bases.get(name)
        if own is None or name in (*own, *derived):  # of somebody else, or called as that
            return name.endswith(("Error", "Exception"))
        return any(is_error(base, name, *derived) for base in own)

    wrong = [
        f"{path.relative_to(PROJECT)}: {each.name}"
        for path in MODULES
        for each in classes(path)
        if path.stem != "errors" and is_error(each.name)
    ]
    assert not wrong


def test_the_map_names_every_folder() -> None:
    text = MAP.read_text()
    folders = {str(path.parent.relative_to(PROJECT)) for path in MODULES}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in text] == []


def test_what_the_map_names_is_there() -> None:
    """From the top, or as the end of a module's path."""
    ends = "".join(f"{path}\n{path.parent}/\n" for root in SOURCE_ROOTS for path in FILES[root])
    named = set(re.findall(r"`([a-z_]+/[^`\s<…*]*(?:/|\.py|\.js|\.sql|\.lua))`", MAP.read_text()))
    assert len(named) > 100
    missing = [path for path in named if not (PROJECT / path).exists() and f"/{path}\n" not in ends]
    assert not missing


def test_the_map_is_short_and_answers_many_questions() -> None:
    text = MAP.read_text()
    questions = text.partition("## Where do I change")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!\*\*|what)", questions, re.MULTILINE)
    assert 50 <= len(rows) <= 60
    assert len(text.encode()) <= 25_000


def test_each_module_says_what_it_holds() -> None:
    index = runpy.run_path(str(PROJECT / "scripts" / "module_index.py"))
    rows = [row for table in index["tables"]() for row in table.splitlines() if row[:3] == "| `"]
    assert len(rows) > 250
    assert [row for row in rows if re.match(r"\| `[^`]*` \|  ", row)] == []
