"""Results as JSON for programs and Markdown tables for people."""

import importlib.metadata
import json
import os
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
PACKAGES = ("tensorflow", "keras", "keras-hub", "torch", "ctranslate2", "numpy")


def versions():
    """Of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def spread(figures):
    """A median with its range, for a cell; to three figures or more."""
    decimals = 1 if figures["median"] < 100 else 0
    median, *ends = (
        f"{figures[name]:,.{decimals}f}" for name in ("median", "lowest", "highest")
    )
    return f"{median} ({'-'.join(ends)})"


def table(head, rows):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def write(folder, name, result, text):
    """Writes NAME.json and NAME.md into `folder` and prints the latter."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = result["machine"]
    text += (
        f"\n{described['cores']} cores ({', '.join(described['features'])}), "
        f"{described['threads']} threads, {described['memory_gib']} GiB; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + "\n"
    )
    for suffix, content in (("json", json.dumps(result, indent=1)), ("md", text)):
        path = folder / f"{name}.{suffix}"
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, path)
    print(text)
