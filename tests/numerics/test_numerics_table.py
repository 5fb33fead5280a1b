"""The tables in the docstring of `keras_transformer.numerics` are complete."""

import json
import pathlib
import re

from house import defined_names, syntax_tree

from keras_transformer import numerics

ROOT = pathlib.Path(__file__).resolve().parents[2]
# `unpack_kernel` only reverses `pack_kernel`.
UNLISTED = {"FixedSeed", "unpack_kernel", "custom_gradient", "per_replica"}


def rows(number):
    """Returns the cells of a table, without its head."""
    table = numerics.__doc__.split("\n\n")[number]
    return [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]


def public_names(folder):
    names = [
        name
        for path in sorted((ROOT / folder).glob("*.py"))
        if path.stem != "activations"
        for name in defined_names(syntax_tree(path))
    ]
    return {each for each in names if not each.startswith("_") and not each.isupper()}


def test_table_has_every_function_with_its_formula():
    listed = {name for row in rows(1) for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == public_names("keras_transformer/numerics") - UNLISTED
    assert all(len(row) == 3 and all(row) for row in rows(1))


def test_table_names_existing_tests_and_benchmarks():
    entries = [name for name, _ in rows(4) if name != "its gradient"]
    assert entries == [name for name, _, _ in rows(1)]
    tests = {test.strip("`") for _, test in rows(4)}
    assert tests <= public_names("tests/numerics")
    scripts = set(re.findall(r"`benchmarks/(\w+\.py)`", numerics.__doc__))
    assert scripts and all((ROOT / "benchmarks" / name).is_file() for name in scripts)


def test_speedups_match_the_stored_results():
    path = ROOT / "benchmarks" / "results" / "numerics_runs.json"
    results = json.loads(path.read_text())["rows"]
    measured = [
        [row["entry"], f"{row['speedup']['median']:.2f}", row["run"]] for row in results
    ]
    assert rows(6) == measured
    assert all(row["speedup"]["median"] >= 1.03 for row in results)
