"""keras-transformer compare"""

import enum
import json
import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import check_tokenizer
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import quiet_libraries
from keras_transformer.cli.console import verb
from keras_transformer.cli.text_lines import counted_pair
from keras_transformer.errors import UserError


class Metric(enum.StrEnum):
    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"


class Test(enum.StrEnum):
    BOOTSTRAP = "bootstrap"
    RANDOMIZATION = "randomization"


@verb
def compare(
    systems: Annotated[
        list[pathlib.Path],
        typer.Argument(
            metavar="BASELINE SYSTEM...",
            help="Files of translations; each is compared with the first.",
        ),
    ],
    reference: Annotated[
        pathlib.Path, typer.Option("--reference", "-r", help="True translation.")
    ],
    metric: Annotated[
        list[Metric] | None,
        typer.Option(
            "--metric", "-m", help="May be given several times.  [default: bleu]"
        ),
    ] = None,
    test: Annotated[
        Test, typer.Option(help="Paired bootstrap or approximate randomisation.")
    ] = Test.BOOTSTRAP,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Resamples or trials. Default: 1000 or 10000."),
    ] = None,
    seed: Annotated[int, typer.Option(min=1, help="Of the resampling.")] = 12345,
    tokenize: Annotated[
        str,
        typer.Option(help="sacreBLEU's tokenizer for BLEU; none for tokenised text."),
    ] = "13a",
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="BLEU and chrF without case.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
):
    """Tell whether systems differ by more than chance, as sacreBLEU tests it.

    The p-value is the probability of a difference as large as the one seen if the
    system were as good as the baseline.

    \b
    keras-transformer translate runs/a --input test.en --output a.de
    keras-transformer translate runs/b --input test.en --output b.de
    keras-transformer compare --reference test.de a.de b.de
    """
    if len(systems) < 2:
        raise UserError("a baseline and at least one system are needed")
    names = list(map(str, systems))
    if len(set(names)) < len(names):
        raise UserError("a file is given twice; compare different ones")
    for path in (reference, *systems):
        existing(path)
    check_tokenizer(tokenize)
    texts = [counted_pair(path, reference) for path in systems]
    with quiet_libraries():
        from keras_transformer.evaluation import compare_systems

        results = compare_systems(
            dict(zip(names, (hypotheses for hypotheses, _ in texts), strict=True)),
            texts[0][1],
            [one.value for one in dict.fromkeys(metric or [Metric.bleu])],
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
        typer.echo(json.dumps(report, indent=2))
        return
    width = max(map(len, names))
    for result in results:
        typer.echo(f"{result.metric}  {result.signature}")
        for system in result.systems:
            typer.echo(f"{system.name:{width}}  {_described(system)}")


def _described(system):
    score = f"{system.score:.2f}"
    if system.mean is not None:
        score += f"  (mean {system.mean:.2f} ± {system.interval:.2f})"
    if system.p_value is None:
        return f"{score}  baseline"
    return f"{score}  p = {system.p_value:.4f}"
