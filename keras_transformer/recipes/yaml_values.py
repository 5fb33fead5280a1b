"""YAML: reading with one-line errors, unique keys and limits on size, and writing."""

import re

import yaml

from keras_transformer.errors import RecipeError

# Limit on the number of values. Aliases count as copies, since a short text with nested
# aliases can expand to billions of values.
_MAX_VALUES = 10_000
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Loads safe YAML with unique keys, and reads words as described in `read_yaml`."""

    def get_single_node(self):
        node = super().get_single_node()
        if node is not None:
            _count_values(node, {})
        return node

    def construct_object(self, node, deep=False):
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError("more than 64 bits")
            return value
        except (RecipeError, yaml.YAMLError):
            raise
        # Possible causes: day 99 of a month, `!!int` before a word, or too many digits.
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            line = node.start_mark.line + 1
            raise RecipeError(f"line {line}: the value cannot be read") from None

    def construct_mapping(self, node, deep=False):
        seen = set()
        # For other nodes, such as the list in `!!set [a]`, the parent class raises an
        # error.
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == _MERGE:  # `<<: *anchor`
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise RecipeError(
                    f"line {line}: a key must be a string. Received: {key!r}"
                )
            if key in seen:
                raise RecipeError(f"line {line}: the key {key} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _count_values(node, counted):
    """Returns the number of values in a YAML node, with aliases expanded.

    Args:
        node: Node of PyYAML.
        counted: Mapping of nodes to their counts, filled in here. The count of a node
            that is being counted is `None`.

    Raises:
        RecipeError: If there are too many values, or a value contains itself.
    """
    if node in counted:
        count = counted[node]
    else:
        counted[node] = None
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        counts = [_count_values(part, counted) for part in parts]
        counted[node] = count = 1 + sum(counts)
    if count is None or count > _MAX_VALUES:
        line = node.start_mark.line + 1
        raise RecipeError(f"line {line}: more than {_MAX_VALUES:,} values")
    return count


def read_yaml(text):
    """Parses YAML text. Unlike in YAML 1.1, 1e-9 is a number; `no` and 010 are strings.

    Raises:
        RecipeError: If the text is not valid YAML, is nested too deeply or is too
            large, or if a value cannot be read. The message begins with the line.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise RecipeError("line 1: nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        line, problem = error.problem_mark.line + 1, error.problem
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position) + 1, error.reason
    raise RecipeError(f"line {line}: not valid YAML: {problem}")


# PyYAML follows YAML 1.1, in which yes, no, on and off are booleans, 010 is 8, and 1:30
# is 90. Here, they are strings. In YAML 1.1, only numbers with a dot may have an
# exponent. Here, 1e-9 is a number, too.
_TAG = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in (f"{_TAG}int", f"{_TAG}float")
        and (tag != f"{_TAG}bool" or first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}int", re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"""^[-+]?(\.[0-9][0-9_]* | [0-9][0-9_]*\.[0-9_]*)([eE][-+]?[0-9]+)?$
        | ^[-+]?[0-9]+[eE][-+]?[0-9]+$
        | ^[-+]?\.(inf|Inf|INF)$
        | ^\.(nan|NaN|NAN)$""",
        re.VERBOSE,
    ),
    list("-+0123456789."),
)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that `read_yaml` or YAML 1.1 would read as another type."""


_Dumper.yaml_implicit_resolvers = {
    first: [*resolvers, *_Loader.yaml_implicit_resolvers.get(first, ())]
    for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
}


def dump_yaml(value, **options):
    """Returns a value as YAML text, with the keys in their order.

    Args:
        value: A value of mappings, lists, strings, numbers, booleans and `None`.
        **options: Options of `yaml.dump`.
    """
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options
    )
