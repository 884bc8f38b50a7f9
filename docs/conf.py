"""Configuration of Sphinx, which builds the site of the documents and the manual pages.

The source directory is the project's, so that READMEs beside the code are pages as well, and a link
between two pages is written once for the site and for a view of the repository.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

from sphinx.application import Sphinx

PROJECT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT)]
from tests.cli.reference import command_pages  # noqa: E402 (found by the line above)

_METADATA: Final = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
_COMMANDS: Final = "build/commands"
_PAGES: Final = command_pages()
_LINK: Final = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
"""The path of a link that leads to a file of the project."""
_SEARCHED: Final = {"docs/row-counts": "COUNT(*)"}
"""Texts for which the search of the site shows a page first: it knows words alone."""

project = _METADATA["name"]
release = version = _METADATA["version"]
author = project
copyright = f"{project} contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "*/README.md", "ops/*/README.md", "*.md", f"{_COMMANDS}/*.md"]
exclude_patterns = [".*", "README.md", "build/docs", "tests"]
nitpicky = True
# names in the types of signatures are of many modules that have no page
nitpick_ignore_regex = [("py:.*", ".*")]
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"{project} {release}"
html_extra_path = ["site"]
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_prompt_text = r"\$ |>>> |\.\.\. "  # copied are the commands alone
copybutton_prompt_is_regexp = True
html_copy_source = False

man_pages = [
    (f"{_COMMANDS}/{name}", name, description, author, 1)
    for name, (description, _) in _PAGES.items()
]


def write_commands(_: Sphinx) -> None:
    """Write a page for each command."""
    directory = PROJECT / _COMMANDS
    directory.mkdir(parents=True, exist_ok=True)
    for name, (_description, text) in _PAGES.items():
        (directory / f"{name}.md").write_text(text, "utf-8")


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files that are no pages, such as those of ops/, lead to the repository; and add
    the texts by which the search finds a page."""

    def linked(found: re.Match[str]) -> str:
        path = (PROJECT / page).parent.joinpath(found[1]).resolve()
        page_or_picture = (
            path.suffix == ".png" or app.project.path2doc(path) in app.project.docnames
        )
        if page_or_picture or not path.exists():  # of the latter Sphinx warns
            return found[0]
        return f"]({_METADATA['urls']['Source']}/blob/main/{path.relative_to(PROJECT)}"

    source[0] = _LINK.sub(linked, source[0])
    if page in _SEARCHED:
        source[0] += f"\n```{{index}} ! {_SEARCHED[page]}\n```\n"


def setup(app: Sphinx) -> None:
    """Register the two steps above."""
    app.connect("builder-inited", write_commands)
    app.connect("source-read", prepare)
