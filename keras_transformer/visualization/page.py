"""The attention as a page of its own, which needs no network."""

import importlib.resources
import json

TEMPLATE = "attention.html"
_PLACE = "/*DATA*/null"


def write_page(attention, path):
    """Writes a page where one picks kind, layer and heads, and hovers over words.

    Args:
        attention: `Attention`.
        path: The HTML file.
    """
    data = {
        kind: {
            "rows": attention.labels(kind)[0],
            "columns": attention.labels(kind)[1],
            "scores": scores.round(4).tolist(),
        }
        for kind, scores in attention.scores.items()
    }
    # No text may end the script that it stands in.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    files = importlib.resources.files("keras_transformer.visualization")
    page = files.joinpath(TEMPLATE).read_text(encoding="utf-8")
    path.write_text(page.replace(_PLACE, text), encoding="utf-8")
