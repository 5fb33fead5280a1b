"""README's performance section, made from benchmarks/results.

    python benchmarks/readme.py

puts each table NAME.md between the lines `<!-- results: NAME -->` and `<!-- end -->` of
README.md and docs/*.md; a test fails where they differ.
"""

import os
import re

import report

ROOT = report.RESULTS.parents[1]
SECTION = re.compile(
    r"^<!-- results: (\w+) -->\n(?:.*?\n)??<!-- end -->$", re.MULTILINE | re.DOTALL
)


def pages():
    """The pages that may hold results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(text):
    """The text with each section as its table's file has it now."""

    def section(match):
        table = (report.RESULTS / f"{match[1]}.md").read_text(encoding="utf-8")
        return f"<!-- results: {match[1]} -->\n{table.rstrip()}\n<!-- end -->"

    return SECTION.sub(section, text)


def main():
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if filled(text) != text:
            temporary = path.with_name(f".{path.name}")
            temporary.write_text(filled(text), encoding="utf-8")
            os.replace(temporary, path)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
