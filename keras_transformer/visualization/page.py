"""A self-contained HTML page of a model's attention."""

import importlib.resources
import json

TEMPLATE = "attention.html"
_PLACEHOLDER = "/*DATA*/null"


def write_page(attention, path):
    """Writes an HTML page on which the reader selects the kind, the layer and heads.

    Args:
        attention: `Attention`.
        path: `pathlib.Path` of the HTML file.
    """
    data = {
        kind: {
            "rows": attention.labels(kind)[0],
            "columns": attention.labels(kind)[1],
            "axes": attention.axes(kind),
            "scores": scores.round(4).tolist(),
        }
        for kind, scores in attention.scores.items()
    }
    data |= {"texts": attention.texts, "isMean": attention.is_mean}
    # Text such as `</script>` must not end the script that contains the data.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    files = importlib.resources.files("keras_transformer.visualization")
    page = files.joinpath(TEMPLATE).read_text(encoding="utf-8")
    path.write_text(page.replace(_PLACEHOLDER, text), encoding="utf-8")
