"""YAML: reading with one-line errors, unique keys and limits on size, and writing."""

import io
import re
from typing import ClassVar

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver, implicit_resolvers

from keras_transformer.errors import RecipeError

# Limit on the number of values. Aliases count as copies, since a short text with nested
# aliases can expand to billions of values.
_MAX_VALUES = 10_000
_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


class _Constructor(SafeConstructor):
    """Constructs values from nodes with a limited number of values and unique keys."""

    def construct_document(self, node):
        waiting, count = [node], 0
        while waiting:
            each, count = waiting.pop(), count + 1
            if count > _MAX_VALUES:
                _refuse(each, f"more than {_MAX_VALUES:,} values")
            if isinstance(each, MappingNode):
                _check_keys(each)
                waiting += [value for _, value in each.value]
            elif isinstance(each, SequenceNode):
                waiting += each.value
        return super().construct_document(node)

    def construct_object(self, node, deep=False):
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError("more than 64 bits")
            return value
        except RecipeError:
            raise
        # Possible causes: day 99 of a month, `!!int` before a word, or too many digits.
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            _refuse(node, "the value cannot be read")


def _check_keys(mapping):
    keys = set()
    for key, _ in mapping.value:
        if not isinstance(key, ScalarNode):
            _refuse(key, "a key must be a string")
        if key.tag not in _KEY_TAGS:
            _refuse(key, f"a key must be a string. Received: {key.value}")
        if key.value in keys:
            _refuse(key, f"the key {key.value} is given twice")
        keys.add(key.value)


def _refuse(node, problem):
    raise RecipeError(f"{node.start_mark.line + 1}: {problem}") from None


def read_yaml(text):
    """Parses YAML 1.2 text, in which 1e-9 is a number and `no` is a string.

    The message of each `RecipeError` begins with the number of the line.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.composer.warn_double_anchors = False
    try:
        return yaml.load(text)
    except RecursionError:
        raise RecipeError("1: nested too deeply") from None
    except MarkedYAMLError as error:
        line, problem = error.problem_mark.line + 1, error.problem
    except ReaderError as error:
        line, problem = text.count("\n", 0, error.position) + 1, error.reason
    except (AssertionError, KeyError, NotImplementedError):  # `%YAML 1.9`
        line, problem = 1, "unknown version"
    raise RecipeError(f"{line}: not valid YAML: {problem}")


class _Resolver(VersionedResolver):
    """Makes the dumper quote strings that YAML 1.2 or 1.1 reads as another type."""

    versioned_resolver: ClassVar = {}


for _, _tag, _pattern, _first in implicit_resolvers:
    for _character in _first:
        _Resolver.versioned_resolver.setdefault(_character, []).append((_tag, _pattern))


class _Representer(SafeRepresenter):
    """Writes numbers such as 1.0e-09, which YAML 1.1 requires instead of 1e-09."""

    def represent_float(self, data):
        node = super().represent_float(data)
        node.value = re.sub(r"^(-?\d+)e", r"\1.0e", node.value)
        return node


_Representer.add_representer(float, _Representer.represent_float)


def dump_yaml(value, flow_style=False):
    """Returns a value as YAML text, on one line if `flow_style`, with keys in order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Representer = _Resolver, _Representer
    yaml.default_flow_style, yaml.width = flow_style, 10**6
    yaml.sort_base_mapping_type_on_output = False
    with io.StringIO() as stream:
        yaml.dump(value, stream)
        return stream.getvalue()
