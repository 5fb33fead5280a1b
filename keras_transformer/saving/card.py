"""Files that describe a preset, an export or an imported model; Markdown tables."""

CARD = "MODEL_CARD.md"  # for people
SUMMARY = "summary.json"  # the same facts, for `info`


def markdown_table(header, rows, align="---"):
    """Returns a table in Markdown.

    Args:
        header: Titles of the columns.
        rows: Lists of values, one list per row.
        align: `"---:"` to align the columns to the right.
    """
    header = list(header)
    lines = [header, [align] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value):
    return " ".join(str(value).split()).replace("|", "\\|")
