"""Finds sentences that begin with a clause in the place of an actor: "What it holds goes", "Who waits is told".

`python -m tools.headless_sentences` prints those of the documentation and of all docstrings, and fails if there are
any. A reader of such a sentence has to read to its end before it says of whom or of what it speaks; "The bytes that it
holds go" does not. Questions may begin so, and headings.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", "tests", "demo", "bench", "tools")
_HEADLESS = re.compile(
    r"(?:^|(?<=[.!?:] ))(?:Who|What|Where|Whoever|Whatever|Wherever)\b(?:[^.?!`]|`[^`]*`|\.(?=\w))*\??"
)
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_MARK = re.compile(r"^(?:[-*] |\d+\. |> )")


def of_text(text: str) -> Iterator[str]:
    """The headless sentences of prose, whose paragraphs blank lines part."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |#|\|))", text):
        flowing = " ".join(paragraph.split())
        if flowing.startswith("#"):
            continue
        cells = flowing.split("|") if flowing.startswith("|") else [_MARK.sub("", flowing)]
        for cell in cells:
            for found in _HEADLESS.finditer(cell.strip()):
                if not found[0].endswith("?"):
                    yield found[0]


def of_docstrings(source: str) -> Iterator[str]:
    """The headless sentences of the docstrings of a module, its classes, functions, fields and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from of_text(node.value.value)


def found_in(pages: Iterable[Path], modules: Iterable[Path]) -> Iterator[str]:
    """A line for each headless sentence, with its file."""
    for page in pages:
        for sentence in of_text(_FENCED.sub("\n\n", page.read_text(encoding="utf-8"))):
            yield f"{page}: {sentence}"
    for module in modules:
        for sentence in of_docstrings(module.read_text(encoding="utf-8")):
            yield f"{module}: {sentence}"


def main() -> int:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    modules = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    found = list(found_in(pages, modules))
    print("\n".join(found) or "no sentence begins with a clause in the place of its actor")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
