"""keras-transformer compare"""

import enum
import json
import pathlib
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from keras_transformer.cli import console, options
from keras_transformer.cli.evaluate import check_scoring_options, complete_scoring
from keras_transformer.cli.lines import read_parallel_lines
from keras_transformer.errors import UserError

CorpusMetric = enum.StrEnum("CorpusMetric", "bleu chrf ter")
# Fewer sentences are too few for a resampling test.
_MIN_SENTENCES = 30


def compare(
    systems: Annotated[
        list[pathlib.Path],
        Argument(
            metavar="BASELINE SYSTEM...",
            help="Translation files, or folders written by the `repeat` command.",
        ),
    ],
    reference: Annotated[
        list[pathlib.Path],
        Option(
            "--reference",
            "-r",
            help="Reference translations. Required for translation files. Repeatable, "
            "for several references of each sentence.",
        ),
    ] = (),
    metric: Annotated[
        list[CorpusMetric],
        Option("--metric", "-m", help="Metric to compare. Repeatable."),
    ] = (CorpusMetric.bleu,),
    test: Annotated[
        Literal["bootstrap", "randomization"],
        Option(help="Paired bootstrap or approximate randomization test."),
    ] = "bootstrap",
    samples: Annotated[
        int | None,
        Option(
            min=1, help="Number of resamples (default: 1000; randomization: 10000)."
        ),
    ] = None,
    seed: Annotated[int, Option(min=1, help="Seed for the resampling.")] = 12345,
    tokenize: Annotated[
        str | None,
        Option(
            "--tokenize",
            help="sacreBLEU tokenizer; use 'none' for tokenized text (default: 13a; "
            "folders: evaluation.tokenize of their recipe).",
        ),
    ] = None,
    lowercase: Annotated[
        bool | None,
        Option(
            "--lowercase/--no-lowercase",
            help="Ignore case in BLEU and chrF (default: no; folders: "
            "evaluation.lowercase of their recipe).",
        ),
    ] = None,
    as_json: options.Json = False,
):
    """Test whether systems differ significantly.

    Translation files are compared as in sacreBLEU. Folders written by the `repeat`
    command are compared by their mean BLEU over seeds, with a paired bootstrap over
    sentences. Unless options override them, the settings of BLEU come from the section
    `evaluation` of the recipes, which must agree. The p-value is the probability of a
    difference larger than the observed one if the system were as good as the baseline.
    Unlike in sacreBLEU, it is 1 if the scores are equal.

    \b
    keras-transformer translate runs/a --input test.en --output a.de
    keras-transformer translate runs/b --input test.en --output b.de
    keras-transformer compare --reference test.de a.de b.de
    keras-transformer compare seeds_a seeds_b
    """
    if len(systems) < 2:
        raise UserError("pass a baseline and at least one other system")
    if len(set(systems)) < len(systems):
        raise UserError("all systems must differ, but the same path was passed twice")
    console.require_exists(*reference, *systems)
    check_scoring_options(metric, tokenize, lowercase)
    given = {"tokenize": tokenize, "lowercase": lowercase}
    if any(path.is_dir() for path in systems):
        if reference or test != "bootstrap" or set(metric) != {CorpusMetric.bleu}:
            raise UserError(
                "folders written by the `repeat` command contain references and are "
                "compared by BLEU with the bootstrap. Remove --reference, --metric and "
                "--test"
            )
        results = [_compare_folders(systems, given, samples or 1000, seed)]
    elif not reference:
        raise UserError("--reference is required to compare translation files")
    else:
        metrics = [each.value for each in dict.fromkeys(metric)]
        settings = {"metrics": metrics, "test": test}
        settings |= {"num_samples": samples, "seed": seed}
        results = _compare_files(systems, reference, given, settings)
    if as_json:
        report = [result._asdict() for result in results]
        for entry in report:
            entry["systems"] = [system._asdict() for system in entry["systems"]]
        typer.echo(console.json_text(report))
        return
    width = max(len(str(path)) for path in systems)
    for result in results:
        typer.echo(f"{result.metric}  {result.signature}")
        for system in result.systems:
            typer.echo(f"{system.name:{width}}  {_describe(system)}")


def _compare_files(systems, references, given, settings):
    from keras_transformer.recipes.schema import EvaluationSettings

    scoring = complete_scoring(given, EvaluationSettings().model_dump())
    texts = read_parallel_lines(*references, *systems)
    references, hypotheses = texts[: len(references)], texts[len(references) :]
    _warn_of_few_sentences(references[0])
    with console.quiet_libraries():
        from keras_transformer.evaluation import compare_systems

        named = dict(zip(map(str, systems), hypotheses, strict=True))
        return compare_systems(named, references, **scoring, **settings)


def _compare_folders(folders, given, num_samples, seed):
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"{folder}: must be a folder written by the `repeat` command, because "
                "another system is a folder"
            )
    console.load_tensorflow()
    with console.quiet_libraries():
        from keras_transformer.evaluation import Comparison, bleu, compare_seeds
        from keras_transformer.runs.repeat import read_translations

        scoring = complete_scoring(given, _stored_scoring(folders, given))
        systems, references = {}, None
        for folder in folders:
            systems[str(folder)], others = read_translations(folder)
            if references not in (None, others):
                raise UserError(
                    f"{folder}: must have the same references as {folders[0]}"
                )
            references = others
        _warn_of_few_sentences(references)
        signature = bleu(systems[str(folders[0])][0], references, **scoring).signature
        # As in sacreBLEU, the bootstrap follows the number of references.
        start, rest = signature.split("|", 1)
        signature = f"{start}|bs:{num_samples}|seed:{seed}|{rest}"
        num_seeds = ", ".join(str(len(each)) for each in systems.values())
        return Comparison(
            "BLEU",
            f"{signature}  mean over seeds (number per system: {num_seeds})",
            compare_seeds(
                systems, references, **scoring, num_samples=num_samples, seed=seed
            ),
        )


def _warn_of_few_sentences(references):
    if len(references) < _MIN_SENTENCES:
        console.warn(
            f"intervals and p-values need at least {_MIN_SENTENCES} sentences. "
            f"Received: {len(references)}"
        )


def _stored_scoring(folders, given):
    """Returns the settings of BLEU that all recipes share, apart from those given."""
    from keras_transformer.runs.repeat import read_evaluation_settings

    missing = [name for name, value in given.items() if value is None]
    if not missing:
        return {}
    first, *others = folders
    settings = read_evaluation_settings(first)
    for folder in others:
        other = read_evaluation_settings(folder)
        for name in missing:
            if other[name] != settings[name]:
                values = json.dumps(settings[name]), json.dumps(other[name])
                choice = " or --no-lowercase" if name == "lowercase" else ""
                raise UserError(
                    f"{first} and {folder}: their recipes have different values of "
                    f"evaluation.{name}, {' and '.join(values)}. Choose one with "
                    f"--{name}{choice}"
                )
    return settings


def _describe(system):
    score = f"{system.score:.2f}"
    if system.mean is not None:
        score += f"  (mean {system.mean:.2f} ± {system.interval:.2f})"
    if system.p_value is None:
        return f"{score}  baseline"
    return f"{score}  p = {system.p_value:.4f}"
