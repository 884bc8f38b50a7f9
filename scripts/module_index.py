"""Prints every module, what it holds, and its numbers, as tables in Markdown.

    python scripts/module_index.py

What a module holds is the first sentence of its docstring, and of a script of the dashboard its
first comment. Numbers are its constants and, in an ``options.py``, its settings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
SOURCE_ROOTS: Final = ("producers", "worker", "schedules", "interfaces")
SCRIPTS: Final = PROJECT / "interfaces" / "countersink" / "web" / "static" / "js"


def main() -> None:
    """Print the tables."""
    print("".join(tables()))


def tables() -> Iterator[str]:
    """A table for each folder that has modules beside its ``__init__.py``."""
    for folder in folders():
        rows = [
            f"| `{path.name}` | {cell(*described(path))} |\n"
            for path in sorted([*folder.glob("*.py"), *folder.glob("*.js")])
            if path.read_text().strip()
        ]
        name = folder.relative_to(PROJECT)
        yield f"\n`{name}/`\n\n| module | what it holds | numbers |\n|---|---|---|\n{''.join(rows)}"


def folders() -> Iterator[Path]:
    """Those of the three source roots, and that of the dashboard's scripts."""
    for root in SOURCE_ROOTS:
        paths = {path.parent for path in (PROJECT / root / "countersink").rglob("*.py")}
        yield from sorted({*paths, SCRIPTS} if SCRIPTS.is_relative_to(PROJECT / root) else paths)


def cell(holds: str, numbers: list[str]) -> str:
    """The second and the third column."""
    return f"{holds} | {', '.join(f'`{name}`' for name in numbers)}".replace("||", "| |")


def described(path: Path) -> tuple[str, list[str]]:
    """What a module holds, and the names of the numbers in it."""
    text = path.read_text()
    if path.suffix == ".js":
        comment = re.match(r"(?://.*\n)+", text)
        words = comment.group().replace("//", " ") if comment else ""
        return sentence(words), re.findall(r"^(?:export )?const ([A-Z_]+) = [\d.]", text, re.M)
    tree = ast.parse(text)
    return sentence(ast.get_docstring(tree) or ""), numbers_of(tree, path.stem == "options")


def sentence(docstring: str) -> str:
    """The first one, in Markdown."""
    first = re.split(r"\.(?=\s|$)", " ".join(docstring.partition("\n\n")[0].split()))[0]
    roles = re.sub(r":\w+:`[.~]?([^`]*)`", r"`\1`", first.replace("``", "`"))
    return roles.replace("|", "\\|")


def numbers_of(tree: ast.Module, settings: bool) -> list[str]:
    """The constants that are numbers, and the settings, too, where ``settings``; each once."""
    names: dict[str, None] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            if name.isupper() and is_number(node.value):
                names[name] = None
        elif settings and isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    names[field.target.id] = None
    return list(names)


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression is made of numbers, and of names of others."""
    parts = list(ast.walk(node)) if node else []
    sums = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.operator, ast.unaryop, ast.Load)
    given = {type(part.value) for part in parts if isinstance(part, ast.Constant)}
    return bool(given) and given <= {int, float} and all(isinstance(part, sums) for part in parts)


if __name__ == "__main__":
    main()
