"""Copies the tables in benchmarks/results to README.md and the docs.

    python benchmarks/readme.py

The script writes each table NAME.md between the lines `<!-- results: NAME -->` and
`<!-- end -->`. A test fails if a page differs.
"""

import argparse
import re

import formatting

ROOT = formatting.RESULTS.parents[1]
SECTION = re.compile(
    r"^<!-- results: (\w+) -->\n(?:.*?\n)??<!-- end -->$", re.MULTILINE | re.DOTALL
)


def pages():
    """Returns the pages that may contain results."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "benchmarks").glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def fill(text):
    """Returns the text with each section replaced by its table."""

    def fill_section(match):
        table = (formatting.RESULTS / f"{match[1]}.md").read_text(encoding="utf-8")
        return f"<!-- results: {match[1]} -->\n{table.rstrip()}\n<!-- end -->"

    return SECTION.sub(fill_section, text)


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if fill(text) != text:
            formatting.write(path, fill(text))
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
