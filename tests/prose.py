"""Counts phrases that read as if translated, in the package, the docs and README.

    python tests/prose.py [ROOT ...] [--list]

Prints a table with one column per ROOT, the root folder of a checkout (default: this
checkout). `--list` also prints the line of each match. The script searches comments and
string literals of Python files, and whole Markdown, YAML and HTML files.
"""

import io
import pathlib
import re
import sys
import tokenize

# Phrases that break the style rules in CONTRIBUTING.md.
PATTERNS = {
    "told, tells": r"\b(?:told|tells?)\b",
    "goes on": r"\b(?:go|goes|going|went|gone) on\b",
    "anew": r"\banew\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "lies": r"\b(?:lie|lies|lay|lain|lying)\b",
    "is there": r"\b(?:is|are|was|were|be) there\b(?! (?:a|an|any|is|are|no)\b)",
    "strangers": r"\bstrangers?\b",
    "whoever, whatever": r"\b(?:who|what|which)ever\b",
    "but for": r"\bbut for\b",
    "laid out": r"\b(?:laid|lay|lays) out\b",
    "by way of": r"\bby way of\b",
    "dear": r"\bdear\b",
    "leave out": r"\b(?:left|leaves?|leaving) out\b",
    "beside": r"\bbeside\b",
    "side by side": r"\bside by side\b",
    "puts out": r"\bput(?:s|ting)? out\b",
    "looks at": r"\blook(?:s|ed|ing)? at\b",
    "so many": r"\b(?:so|as) many\b(?! as)",
    "one's own": r"\bone's own\b",
    "of one's own": r"\bof (?:its|their) own\b",
    "that of": r"\b(?:that|those) of\b",
    "sub-word": r"\bsub-(?:word|layer|text)s?\b",
}


def python_text(path):
    """Yields (line number, text) of the comments and string literals of a module."""
    source = path.read_text(encoding="utf-8")
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def markdown_text(path):
    yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def texts(root):
    """Yields (path, line number, text) of code comments, strings, recipes and pages."""
    for folder in ("keras_transformer", "pipelines"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix == ".py":
                yield from ((path, *each) for each in python_text(path))
            elif path.suffix in (".yaml", ".html"):
                yield from ((path, *each) for each in markdown_text(path))
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        yield from ((path, *each) for each in markdown_text(path))


def places(root):
    """Returns a list of (pattern name, path, line number, line), one per match."""
    found = []
    for path, number, line in texts(root):
        for name, pattern in PATTERNS.items():
            found += [
                (name, path, number, line.strip())
                for _ in re.findall(pattern, line, re.IGNORECASE)
            ]
    return found


def main(arguments):
    roots = [pathlib.Path(each) for each in arguments if each != "--list"]
    roots = roots or [pathlib.Path(__file__).resolve().parents[1]]
    found = [places(root) for root in roots]
    if "--list" in arguments:
        for root, of_root in zip(roots, found, strict=True):
            for name, path, number, line in of_root:
                print(f"{path.relative_to(root)}:{number}: [{name}] {line}")
    for name in PATTERNS:
        counts = [sum(each[0] == name for each in of_root) for of_root in found]
        print(f"{name:20}", *(f"{count:6}" for count in counts))
    print(f"{'total':20}", *(f"{len(each):6}" for each in found))


if __name__ == "__main__":
    main(sys.argv[1:])
