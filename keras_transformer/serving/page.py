"""The page at `/`, which contains the settings of its server."""

import base64
import hashlib
import importlib.resources
import json
import re

# Placeholders in page.html and page.js.
_STYLE, _SCRIPT, _SETTINGS = "/*STYLE*/", "/*SCRIPT*/", "/*SETTINGS*/null"


def render_page(model, limits):
    """Returns the page as UTF-8 bytes.

    Args:
        model: `ServedModel`, or an object with its `name`, `version` and `inputs`.
        limits: `Limits` of the server.
    """
    settings = {
        "name": model.name,
        "version": model.version,
        "signatures": sorted(model.inputs),
        "maxLength": limits.max_text_length,
        "maxTexts": limits.max_texts,
        "timeout": limits.request_timeout,
    }
    # "</script>" in a name would end the script.
    text = json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")
    script = _read("page.js").replace(_SETTINGS, text)
    page = _read("page.html").replace(_STYLE, _read("page.css"))
    return page.replace(_SCRIPT, script).encode()


def _read(name):
    files = importlib.resources.files("keras_transformer.serving")
    return files.joinpath(name).read_text(encoding="utf-8")


def content_security_policy(page):
    """Returns a Content-Security-Policy that allows only the page's own code."""
    text = page.decode()
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
