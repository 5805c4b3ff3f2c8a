"""Check the openers of docstrings and comments: a noun or a verb of the field, never a question word.

`python tools/prose.py [folder ...]` prints each offender as `file:line: text` and exits with 1 if there is one.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("embodied", "simulators", "robots", "policies", "tests", "tools", "examples")
OPENER = re.compile(r"(What|Who|Whom|Whose|Where|How|Which|When)\b(?! (possible|needed)\b)")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, attribute docstrings included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every comment that begins a paragraph."""
    above = -1
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                if token.start[0] != above + 1:
                    yield token.start[0], token.string.lstrip("# ")
                above = token.start[0]


def offenders(path: Path) -> list[tuple[int, str]]:
    """Docstrings and comments of a file that open with a question word."""
    found = [*docstrings(ast.parse(path.read_text())), *comments(path)]
    return sorted((line, text.strip().splitlines()[0]) for line, text in found if OPENER.match(text.strip()))


def main(folders: list[str]) -> int:
    """Print offenders; the exit status."""
    count = 0
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for line, text in offenders(path):
            print(f"{path.relative_to(ROOT)}:{line}: {text[:100]}")
            count += 1
    print(f"{count} docstrings or comments open with a question word" if count else "prose: every opener is sound")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [folder for folder in FOLDERS if (ROOT / folder).is_dir()]))
