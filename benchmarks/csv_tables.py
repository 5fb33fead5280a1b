"""Tables of the results that are stored as .csv files."""

import csv

from formatting import table


def ablation(path):
    """Returns the table of an ablation, from the .csv file of `ablate`."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shapes = ("N", "d_model", "d_ff", "h", "d_k", "d_v", "dropout", "smoothing")
    base = rows[0]
    cells = []
    for row in rows:
        changes = [f"{key} {row[key]}" for key in shapes if row[key] != base[key]]
        if row["positions"] != base["positions"]:
            changes.append(f"{row['positions']} positions")
        if row is base:
            changes = [f"{key} {row[key]}" for key in shapes]
        cells.append(
            [
                row["row"],
                ", ".join(changes),
                f"{int(row['parameters']) / 1e6:.2f}",
                *(
                    f"{float(row[whose + metric]):.{digits}f}"
                    for whose in ("", "paper's ")
                    for metric, digits in (("PPL", 2), ("BLEU", 1))
                ),
            ]
        )
    head = [
        "row",
        "settings (other rows: changes from base)",
        "parameters, millions",
        "PPL",
        "BLEU",
    ]
    return table([*head, "paper's PPL", "paper's BLEU"], cells)


def experiments(path):
    """Returns the log of experiments, from `experiments.csv`.

    Raises:
        ValueError: If a number cannot be parsed, or a row has a test score without the
            validation score by which it was chosen.
    """
    digits = {
        "seeds": 0,
        "validation BLEU": 2,
        "validation perplexity": 2,
        "minutes per seed": 0,
        "test BLEU": 2,
    }
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    for index, row in enumerate(rows, 1):
        if row["test BLEU"] and not row["validation BLEU"]:
            raise ValueError(f"{path}: row {index} has no validation BLEU")
        for name, count in digits.items():
            row[name] = f"{float(row[name]):.{count}f}" if row[name] else "–"
    return table(list(rows[0]), [list(row.values()) for row in rows])


def as_stored(path):
    """Returns the table of a .csv file, cell by cell."""
    with open(path, encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file, strict=True)
    return table(head, rows)


def translation_short(path):
    """Returns README's rows of translation scores, with a link to the published one."""
    paper = "[Wu et al., 2021](https://arxiv.org/abs/2105.14462), smaller model"
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, strict=True))[:2]
    names = ("BLEU, test 2016", "published", "training time per seed")
    cells = [
        [row["task"].removesuffix(", tokenized"), *map(row.get, names)] for row in rows
    ]
    cells[0][2] += f" ({paper})"
    return table(["task", *names], cells)
