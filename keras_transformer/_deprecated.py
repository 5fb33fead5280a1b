"""Import paths of version 0.1, kept for one release with a `DeprecationWarning`.

After that release, delete the old paths and `install_old_paths`, the uses of
`warn_deprecated`, `take_renamed`, `renamed_attribute` and `renamed_arguments`, and then
this module.
"""

import functools
import importlib
import os
import sys
import types
import warnings
from importlib.machinery import ModuleSpec

from keras_transformer._imports import after_import

_PACKAGE = "keras_transformer"

# Moved modules: old and new paths, relative to the package.
_MODULES = """
ablation -> experiments.table3
ablation.rows -> experiments.table3.rows
ablation.runs -> experiments.table3.runs
ablation.table -> experiments.table3.table
corpora -> experiments.corpora
corpus_filter -> evaluation.pair_filter
experiment -> experiments.train
exported_model -> saving.saved_model
flops -> experiments.cost
model_info -> saving.info
models -> saving.open
run_folder -> experiments.folder
safe_graph -> saving.graph_check
safe_loading -> saving.keras_file
storage -> files
stored_models -> saving.load
validation -> experiments.validation
vocabulary -> experiments.vocabulary

decoding.decode_loop -> decoding.loop
decoding.rows -> decoding.batches
decoding.translations -> decoding.segments
evaluation.bracketing -> parsing.bracketing
export.beam_inference -> distributed.inference
export.ctranslate2_model -> export.ctranslate2
export.kernels -> export.packed_weights
layers.attention_scores -> numerics.softmax
layers.block -> layers.stack
layers.cached_attention -> decoding.incremental
layers.decoding_cache -> decoding.cache
layers.dropout -> numerics.dropout
layers.layer_normalization -> numerics.normalization
layers.own_gradient -> numerics.gradients
training.automatic_precision -> training.devices
training.averaging -> saving.checkpoints
training.device_rate -> experiments.cost
training.distribution -> training.replicas
training.guard -> training.step_check
training.multi_worker -> distributed.multi_worker
training.threads -> training.devices
training.workers -> distributed.workers

pipelines.beam_corpus -> distributed.corpus
pipelines.blocks -> pipelines.chunks
pipelines.byte_pair_growth -> pipelines.tokenizers.bpe_extension
pipelines.core_byte_pairs -> pipelines.tokenizers.core_byte_pairs
pipelines.errors -> errors
pipelines.growing_array -> pipelines.npy_writer
pipelines.linearization -> parsing.linearization
pipelines.model_proto -> pipelines.tokenizers.model_check
pipelines.phrase_forms -> pipelines.sources.phrase_forms
pipelines.phrases -> pipelines.sources.phrases
pipelines.records -> pipelines.sources.records
pipelines.sentencepiece_tokenizer -> pipelines.tokenizers.byte_pairs
pipelines.tfds_pairs -> pipelines.sources.tfds
pipelines.tokenizer_base -> pipelines.tokenizers.base
pipelines.treebank -> parsing.treebank
pipelines.trees -> parsing.trees
pipelines.word_piece_tokenizer -> pipelines.tokenizers.word_pieces
pipelines.word_piece_training -> pipelines.tokenizers.word_piece_training
"""

# Names that were renamed or did not move along with their module.
_NAMES = """
# Errors
ablation.AblationError -> errors.RecipeError
ablation.rows.AblationError -> errors.RecipeError
decoding.rows.PrefixError -> errors.DataError
export.ctranslate2_model.ExportError -> errors.ExportError
pipelines.DataError -> errors.DataError
run_folder.RunBusy -> errors.RunBusy
run_folder.RunError -> errors.RunError
safe_loading.LoadingError -> errors.ModelError
storage.StorageError -> errors.StorageError
stored_models.ModelError -> errors.ModelError
training.CheckpointError -> errors.CheckpointError
training.TrainingFault -> errors.TrainingFault
training.WorkerLost -> errors.WorkerLost
training.WorkersError -> errors.WorkersError
training.checkpoints.CheckpointError -> errors.CheckpointError
training.guard.TrainingFault -> errors.TrainingFault
training.workers.WorkerLost -> errors.WorkerLost
training.workers.WorkersError -> errors.WorkersError
visualization.VisualizationError -> errors.ModelError
visualization.collect.VisualizationError -> errors.ModelError

# Classes and functions that moved alone
decoding.search.score_ids -> decoding.scoring.score_ids
evaluation.BracketingScore -> parsing.bracketing.BracketingScore
evaluation.bracketing_score -> parsing.bracketing.bracketing_score
experiment.average_run -> experiments.average.average_run
experiment.load_pairs -> experiments.corpora.load_pairs
experiment.run -> experiments.train.train
layers.block.Block -> layers.transformer_layer.TransformerLayer
models.PairScore -> decoding.scoring.PairScore
models.perplexity_of -> evaluation.perplexity.perplexity_of
pipelines.TreeFiles -> parsing.treebank.TreeFiles
pipelines.sources.TextFiles -> pipelines.sources.text_files.TextFiles
stored_models.keras_file -> saving.names.find_keras_file
stored_models.metrics_of_run -> saving.names.metrics_of_run
stored_models.tokenizer_folder -> saving.names.tokenizer_folder
training.Workers -> distributed.workers.Workers
training.average_checkpoints -> saving.checkpoints.average_checkpoints
training.callbacks.SaveOnSignal -> training.signals.SaveOnSignal
training.checkpoint_paths -> saving.checkpoints.checkpoint_paths
training.checkpoints.checkpoint_paths -> saving.checkpoints.checkpoint_paths
training.checkpoints.warn_of_damage -> saving.checkpoints.warn_of_damage
training.sustained_flops -> experiments.cost.measure_flops

# Renamed constants and functions, and classes of recipes that moved
corpus_filter.REASONS -> evaluation.pair_filter.FILTER_REASONS
decoding.beam_search.NEVER -> decoding.beam_search.NEG_INF
decoding.forbidden.forbidden_texts -> decoding.forbidden.build_text_table
decoding.rows.CHARACTERS_AT_ONCE -> decoding.batches.MAX_CHARACTERS
decoding.rows.LINES_AT_ONCE -> decoding.batches.MAX_LINES
exported_model.open_saved_model -> saving.open.open_model
layers.decoding_cache.SETTLE_STEPS -> decoding.cache.COMPACT_INTERVAL
layers.decoding_cache.slots_in_use -> decoding.cache.reachable_slots
layers.decoding_cache.take_slots -> decoding.cache.gather_slots
layers.dense.BLOCK -> numerics.matrices.BLOCK_COLUMNS
layers.multi_head_attention.SCORES -> layers.multi_head_attention.SCORE_MODES
recipes.schema.FilesData -> recipes.data_sections.FilesData
recipes.schema.PhrasesData -> recipes.data_sections.PhrasesData
recipes.schema.RecordsData -> recipes.data_sections.RecordsData
recipes.schema.TextPair -> recipes.data_sections.TextPair
recipes.schema.TfdsData -> recipes.data_sections.TfdsData
recipes.schema.TreePaths -> recipes.data_sections.TreePaths
recipes.schema.TreesData -> recipes.data_sections.TreesData
recipes.schema.WeightedTreePaths -> recipes.data_sections.WeightedTreePaths
safe_loading.note_tokenizer -> saving.keras_file.store_fingerprint
stored_models.MODEL -> saving.names.MODEL

# Renamed classes and functions of the package
corpora.prepare -> experiments.corpora.prepare_corpora
corpora.prepared -> experiments.corpora.load_corpora
decoding.alignment.alignable -> decoding.alignment.alignable_pairs
decoding.alignment.aligned_words -> decoding.alignment.align_words
decoding.alignment.pharaoh -> decoding.alignment.format_pharaoh
decoding.alignment.surfaces -> decoding.alignment.token_surfaces
decoding.forbidden.forbidden_phrases -> decoding.forbidden.forbidden_transitions
decoding.forbidden_phrases -> decoding.forbidden.forbidden_transitions
decoding.compiled.compiled -> decoding.compiled.compile_for_ids
decoding.compiled.side_by_side -> decoding.compiled.parallel_map
decoding.pharaoh -> decoding.alignment.format_pharaoh
decoding.rows.batches -> decoding.batches.batch_by_length
decoding.rows.check_fits -> decoding.batches.check_compatible
decoding.rows.prefix_rows -> decoding.batches.encode_prefixes
decoding.rows.rectangle -> decoding.batches.pad_rows
decoding.rows.tokenized -> decoding.batches.encode_texts
evaluation.perplexity.PairScores -> evaluation.perplexity.PairScorer
exported_model.ExportedModel -> saving.saved_model.ExportedTranslator
export.facts_of_run -> export.model_card.run_metadata
export.model_card.facts_of_run -> export.model_card.run_metadata
layers.attention_scores.logit_bias -> numerics.softmax.mask_to_bias
layers.dense.in_blocks -> numerics.matrices.pack_kernel
layers.dense.product -> numerics.matrices.packed_matmul
layers.dense.whole -> numerics.matrices.unpack_kernel
layers.own_gradient.own_gradient -> numerics.gradients.custom_gradient
run_folder.prepare -> experiments.folder.create
run_folder.locked -> experiments.folder.lock
safe_loading.check_keras_file -> saving.keras_file.check
safe_loading.load_keras_file -> saving.keras_file.read
storage.told_when_full -> files.convert_disk_full_errors
stored_models.check_fits -> saving.load.check_matches_recipe
training.callbacks.METRICS -> training.callbacks.HIGHER_IS_BETTER
training.device_rate.sustained_flops -> experiments.cost.measure_flops
training.guard.REASONS -> training.step_check.FAULT_REASONS
training.guard.fault_of -> training.step_check.check_step
training.multi_worker.mend_fit -> distributed.multi_worker.patch_fit
training.threads.use_threads -> training.devices.configure_threads
training.use_threads -> training.devices.configure_threads
validation.validation -> experiments.validation.build_validator

# Renamed classes and functions of `pipelines`
pipelines.CoreBytePairs -> pipelines.CoreOpsBytePairTokenizer
pipelines.blocks.sample -> pipelines.chunks.reservoir_sample
pipelines.batching.padding_waste -> pipelines.batching.padding_fraction
pipelines.batching.weighted_pairs -> pipelines.batching.sample_weighted_pairs
pipelines.byte_pair_growth.Growth -> pipelines.tokenizers.bpe_extension.ExtendedBpe
pipelines.byte_pair_growth.grow_byte_pairs -> pipelines.tokenizers.bpe_extension.extend_bpe
pipelines.blocks.blocks -> pipelines.chunks.chunks
pipelines.core_byte_pairs.CoreBytePairs -> pipelines.CoreOpsBytePairTokenizer
pipelines.encoding.EncodedCorpus -> pipelines.encoded_corpus.EncodedCorpus
pipelines.growing_array.GrowingArray -> pipelines.npy_writer.NpyWriter
pipelines.linearization.symbols_of -> parsing.linearization.collect_symbols
pipelines.padding_waste -> pipelines.padding_fraction
pipelines.trees.escaped -> parsing.trees.escape_brackets
pipelines.trees.words_of -> parsing.trees.split_words
"""  # noqa: E501


def _parse_table(text):
    """Returns a dict of full dotted paths, old to new, from lines of `old -> new`."""
    pairs = (line.split(" -> ") for line in text.splitlines() if " -> " in line)
    return {f"{_PACKAGE}.{old}": f"{_PACKAGE}.{new}" for old, new in pairs}


def warn_deprecated(old, new):
    """Warns that `old` is now `new`. The warning points to code outside the package.

    Python shows a `DeprecationWarning` by default only if it points to `__main__`.
    """
    folder = os.path.dirname(__file__) + os.sep
    frame, stacklevel = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folder):
        frame, stacklevel = frame.f_back, stacklevel + 1
    warnings.warn(
        f"`{old}` is deprecated and will be removed in the next release. Use `{new}`.",
        DeprecationWarning,
        stacklevel,
    )


def take_renamed(arguments, old, new, value):
    """Removes the argument `old` from `arguments`, warns, and returns its value.

    If `arguments` does not contain `old`, returns `value`. The warning names `new`, the
    code that replaces the argument.
    """
    if old not in arguments:
        return value
    warn_deprecated(f"{old}=", new)
    return arguments.pop(old)


def renamed_attribute(old, new):
    """Returns a property that warns and returns the attribute `new`."""

    def get(self):
        warn_deprecated(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    return property(get, doc=f"Deprecated name of `{new}`.")


def renamed_arguments(**names):
    """Decorates a function so that it also accepts old names of keyword arguments.

    Constructors of Keras classes call `take_renamed` instead, because Keras inspects
    their signatures.

    Args:
        **names: `old_name="new_name"` for each argument.
    """

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            for old, new in names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"`{old}` is the old name of `{new}`")
                    warn_deprecated(f"{old}=", f"{new}=")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper

    return decorate


MODULES = _parse_table(_MODULES)
NAMES = _parse_table(_NAMES)


class _MovedModules:
    """Finder and loader of the modules at their old paths.

    Importing an old path creates an empty module. Its names are looked up at their new
    paths when they are used, and listed for `dir` and star imports.
    """

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name in MODULES else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        _add_old_names(module)
        module.__dir__ = functools.partial(_list_names, module.__name__)


def _list_names(old):
    """Returns the public names of a moved module, without names of other packages."""
    new = importlib.import_module(successor(old))
    names = {
        name
        for name, value in vars(new).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", _PACKAGE).startswith(_PACKAGE)
    }
    paths = (path.rpartition(".") for path in NAMES)
    renamed = {name for module, _, name in paths if module == old}
    return sorted({*names, *getattr(new, "__all__", ()), *renamed})


def successor(path):
    """Returns the dotted path that replaces `path`, or `path` if it is current."""
    module, _, name = path.rpartition(".")
    new = NAMES.get(path) or MODULES.get(path)
    if new is None and module in MODULES and not name.startswith("__"):
        new = f"{MODULES[module]}.{name}"
    return path if new is None else successor(new)


def _add_old_names(module):
    """Gives a module a `__getattr__` that resolves its old names with a warning."""
    own_getattr = vars(module).get("__getattr__")

    def look_up(name):
        old = f"{module.__name__}.{name}"
        new = successor(old)
        if name == "__all__" and module.__name__ in MODULES:
            return _list_names(module.__name__)
        if new == old:
            if own_getattr is not None:
                return own_getattr(name)
            raise AttributeError(
                f"module {module.__name__!r} has no attribute {name!r}"
            )
        if old in MODULES:
            found = importlib.import_module(new)
        else:
            parent, _, new_name = new.rpartition(".")
            found = getattr(importlib.import_module(parent), new_name)
        warn_deprecated(old, new)
        return found

    module.__getattr__ = look_up


def install_old_paths():
    """Makes the old paths importable."""
    # The finder comes last, so that existing modules take precedence.
    sys.meta_path.append(_MovedModules())
    # Modules that still exist get a `__getattr__` for names that moved out of them.
    # The package itself has lost only modules, which the finder imports.
    parents = {old.rpartition(".")[0] for old in [*NAMES, *MODULES]}
    for parent in parents - {*MODULES, _PACKAGE}:
        after_import(parent, _add_old_names)
