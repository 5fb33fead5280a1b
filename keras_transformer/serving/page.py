"""The page at `/`, with what it has to know of the server written into it."""

import base64
import hashlib
import importlib.resources
import json
import re

_PLACE = "/*SETTINGS*/null"


def page(model, limits):
    """The page, bytes of UTF-8.

    Args:
        model: `ServedModel`, or any object with its `name`, `version` and `inputs`.
        limits: `Limits`.
    """
    settings = {
        "name": model.name,
        "version": model.version,
        "signatures": sorted(model.inputs),
        "maxLength": limits.max_text_length,
        "timeout": limits.request_timeout,
    }
    # No text may end the script that it stands in.
    text = json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")
    return _template().replace(_PLACE, text).encode()


def policy(content):
    """The page's Content-Security-Policy: its own style and script, nothing else."""
    text = content.decode()
    hashes = {}
    for tag in ("style", "script"):
        (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        hashes[tag] = f"'sha256-{digest}'"
    return (
        f"default-src 'none'; style-src {hashes['style']}; "
        f"script-src {hashes['script']}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _template():
    files = importlib.resources.files("keras_transformer.serving")
    return files.joinpath("page.html").read_text(encoding="utf-8")
