"""Reader of model cards, for tests."""


def card_tables(text):
    """Returns the sections of a card: tables as mappings, or other text.

    A table maps the first cell of each row to the second one, or to a list of the
    others.
    """
    sections = {}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        rows = [
            [cell.replace("\0", "|") for cell in line[2:-2].split(" | ")]
            for line in body.replace("\\|", "\0").split("\n")
            if line.startswith("| ")
        ][2:]
        sections[title] = {
            first: others[0] if len(others) == 1 else others for first, *others in rows
        } or body.strip()
    return sections
