"""Model card: `MODEL_CARD.md`, whose tables describe an exported or imported model.

Presets, exports and imported models may contain one.
"""

CARD = "MODEL_CARD.md"


def card_tables(text):
    """Reads the tables of a model card.

    Returns:
        Mapping of section titles to tables, or to text if a section has no table. A
        table maps the first cell of each row to the second cell, or to the list of the
        other cells if the row has more than two. Rows with one cell are omitted.
    """
    sections = {}
    for part in text.replace("\r\n", "\n").split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.split("\n") if line.startswith("| ")]
        # The first two lines are the table's header and separator.
        rows = [_cells(line) for line in lines[2:]]
        sections[title] = {
            first: others[0] if len(others) == 1 else others
            for first, *others in rows
            if others
        } or body.strip()
    return sections


def card_license(sections):
    """Returns the license in the result of `card_tables`, or `None`."""
    text = sections.get("License")
    return text if isinstance(text, str) else None


def _cells(line):
    cells = line.removeprefix("| ").removesuffix(" |").replace("\\|", "\0").split(" | ")
    return [cell.replace("\0", "|") for cell in cells]
