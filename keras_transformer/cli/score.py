"""keras-transformer score"""

from keras_transformer.cli import console, options
from keras_transformer.cli.lines import read_parallel_lines, score_in_chunks
from keras_transformer.cli.output import open_output, require_output


def score(
    model: options.Model,
    source: options.Source,
    target: options.Target,
    ensemble: options.OtherModels = (),
    output: options.OutputPath = None,
    allow_unsafe: options.AllowUnsafe = False,
    as_json: options.Json = False,
):
    """Print the natural log-probability of given translations.

    \b
    keras-transformer score runs/mine --source test.en --target test.de
    """
    model, *ensemble = map(console.find_model, [model, *ensemble])
    console.require_exists(source, target)
    require_output(output, source, target)

    pairs = list(zip(*read_parallel_lines(source, target), strict=True))
    scores = []
    warnings = console.LineWarnings(f"{source}: line")
    with open_output(output) as write_line:
        translator = console.open_translator(
            model,
            ensemble=ensemble,
            warnings=warnings,
            allow_unsafe=allow_unsafe,
        )
        from keras_transformer.evaluation.perplexity import perplexity_of

        for pair in score_in_chunks(translator, pairs, warnings):
            if not as_json:
                write_line(f"{pair.log_prob:.6f}")
            scores.append(pair)
        if as_json:
            report = {"model": str(model), "perplexity": perplexity_of(scores)}
            report["pairs"] = [pair._asdict() for pair in scores]
            write_line(console.json_text(report, indent=None))
    console.print_status(f"perplexity per subword: {perplexity_of(scores):.4f}")
