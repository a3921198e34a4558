"""The replacements of a GPU, or of a package, in the trainers' steps: every line that says `shim`.

tests/trainers/shims.py          prints the list that docs/trainers.md has
"""

import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
PLACES = ("steps", "without_torch")


def lines():
    """The rows of the page's table."""
    rows = []
    paths = [path for place in PLACES for path in sorted((HERE / place).rglob("*.py"))]
    for path in paths:
        name = path.name if path.parent.name == "steps" else path.relative_to(HERE)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\bshim\b", line):
                code, _, why = line.partition("#")
                said = f"`{code.strip()}`" if code.strip() and '"""' not in line else ""
                why = why or line.strip().strip('"')
                rows.append(
                    f"| `{name}:{number}` | {said.replace('|', chr(92) + '|')} | {why.replace('shim:', '').strip()} |"
                )
    return rows


if __name__ == "__main__":
    print("\n".join(lines()))
