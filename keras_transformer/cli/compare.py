"""keras-transformer compare"""

import enum
import pathlib
from typing import Annotated

import typer
from typer import Argument
from typer import Option

from keras_transformer.cli import console
from keras_transformer.cli import options
from keras_transformer.cli.lines import read_parallel_lines
from keras_transformer.errors import UserError


class CorpusMetric(enum.StrEnum):
    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"


class Test(enum.StrEnum):
    BOOTSTRAP = "bootstrap"
    RANDOMIZATION = "randomization"


@console.command(uses_device=False)
def compare(
    systems: Annotated[
        list[pathlib.Path],
        Argument(metavar="BASELINE SYSTEM...", help="Translations by each system."),
    ],
    reference: Annotated[
        pathlib.Path, Option("--reference", "-r", help="Reference translations.")
    ],
    metric: Annotated[
        list[CorpusMetric],
        Option("--metric", "-m", help="Metric to compare. Repeatable."),
    ] = (CorpusMetric.bleu,),
    test: Annotated[
        Test, Option(help="Paired bootstrap or approximate randomization test.")
    ] = Test.BOOTSTRAP,
    samples: Annotated[
        int | None,
        Option(min=1, help="Resamples (default: 1000; 10000 for randomization)."),
    ] = None,
    seed: Annotated[int, Option(min=1, help="Seed for the resampling.")] = 12345,
    tokenize: options.BleuTokenizer = "13a",
    lowercase: options.Lowercase = False,
    as_json: options.Json = False,
):
    """Test whether systems differ significantly.

    The tests and their results match sacreBLEU's. The p-value is the probability of a
    difference at least as large as the observed one if the system were as good as the
    baseline.

    \b
    keras-transformer translate runs/a --input test.en --output a.de
    keras-transformer translate runs/b --input test.en --output b.de
    keras-transformer compare --reference test.de a.de b.de
    """
    if len(systems) < 2:
        raise UserError("BASELINE SYSTEM...: at least two files are needed")
    names = list(map(str, systems))
    if len(set(names)) < len(names):
        raise UserError("files must differ; one of them is given twice")
    console.require_exists(reference, *systems)
    console.check_bleu_tokenizer(tokenize)
    texts = [read_parallel_lines(path, reference) for path in systems]
    with console.quiet_libraries():
        from keras_transformer.evaluation import compare_systems

        results = compare_systems(
            dict(zip(names, (hypotheses for hypotheses, _ in texts), strict=True)),
            texts[0][1],
            [one.value for one in dict.fromkeys(metric)],
            test=test.value,
            num_samples=samples,
            seed=seed,
            tokenize=tokenize,
            lowercase=lowercase,
        )
    if as_json:
        report = [result._asdict() for result in results]
        for one in report:
            one["systems"] = [system._asdict() for system in one["systems"]]
        typer.echo(console.json_text(report))
        return
    width = max(map(len, names))
    for result in results:
        typer.echo(f"{result.metric}  {result.signature}")
        for system in result.systems:
            typer.echo(f"{system.name:{width}}  {_describe(system)}")


def _describe(system):
    score = f"{system.score:.2f}"
    if system.mean is not None:
        score += f"  (mean {system.mean:.2f} ± {system.interval:.2f})"
    if system.p_value is None:
        return f"{score}  baseline"
    return f"{score}  p = {system.p_value:.4f}"
