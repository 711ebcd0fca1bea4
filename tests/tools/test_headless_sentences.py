"""Sentences that begin with a clause in the place of an actor are found, in pages and docstrings; questions are not."""

from __future__ import annotations

from pathlib import Path

from tools.headless_sentences import found_in, of_text

PAGE = """# Brokers

A broker holds nothing. What it
holds goes with it. What does it hold?

- Who waits is told.
- A client that waits is told who leads: what it asks is up to it.

| name | meaning |
| --- | --- |
| `room` | Where files lie |

```
What an example prints stays as it is.
```
"""
MODULE = '''"""A module."""

SIZE = 1
"""Whatever a reader takes, at most."""


def told() -> str:
    """Tell it. Whoever asks is told."""
    return "What a program says is no docstring."
'''


def test_pages_and_docstrings_are_read(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(PAGE)
    module.write_text(MODULE)
    assert list(found_in([page], [module])) == [
        f"{page}: What it holds goes with it",
        f"{page}: Who waits is told",
        f"{page}: Where files lie",
        f"{module}: Whatever a reader takes, at most",
        f"{module}: Whoever asks is told",
    ]


def test_a_sentence_is_named_up_to_its_end() -> None:
    assert list(of_text("What `a.b?` says of version 1.2 counts. It does.")) == [
        "What `a.b?` says of version 1.2 counts"
    ]
