"""Tables of the agreement with other toolkits, and of fine-tuning their models.

Each function formats the results of the benchmark with its name.
"""

from formatting import table


def agreement(result):
    reasons = {
        "tie": "other text, equally probable",
        "ours": "other text, less probable",
        "theirs": "other text, more probable",
    }
    found = [each["reason"] for each in result["differences"]]
    rows = [["same text", f"{result['lines'] - len(found):,}"]]
    rows += [[label, f"{found.count(each):,}"] for each, label in reasons.items()]
    return table(["CTranslate2's translation", "lines"], rows)


def marian_agreement(result):
    rows = []
    for search in result["searches"]:
        different = search["differences"]
        pairs = [each["scores"] for each in different if each["reason"] == "rule"]
        reasons = [each["reason"] for each in different]
        kind = "greedy" if search["beam_size"] == 1 else f"beam {search['beam_size']}"
        rows.append(
            [
                f"{kind}, normalize {search['normalize']}",
                f"{search['lines'] - len(different):,}",
                sum(ours >= theirs for ours, theirs in pairs),
                sum(ours < theirs for ours, theirs in pairs),
                *(reasons.count(each) for each in ("tie", "limit", "unexplained")),
            ]
        )
    head = ["search", "same ids", "rule, ours better", "rule, Marian's better", "tie"]
    searches = table([*head, "length limit", "unexplained"], rows)
    found = result["exports"].items()
    rows = [[f"SavedModel in {name}", f"{count:,}"] for name, count in found]
    exports = table(["export", f"identical lines of {result['lines']:,}"], rows)
    scores = result["scores"]
    return (
        f"{searches}\nLargest difference of {scores['words']:,} word scores: "
        f"{scores['largest']:.1e}.\n\n{exports}\n"
        f"Marian {result['versions']['marian']}.\n"
    )


def huggingface_agreement(result):
    rows = [
        [
            f"{row['layers'][0]} + {row['layers'][1]} layers, {row['activation']}",
            "tied" if row["tied"] else "separate",
            "shared" if row["shared"] else "separate",
            f"{row['largest']:.1e}",
            f"{row['sources'] - row['different']} of {row['sources']}",
        ]
        for row in result["random"]
    ]
    head = ["random model", "output matrix", "embeddings", "largest difference"]
    imports = table([*head, "same greedy ids"], rows)
    rows = []
    for name, model in result["exports"].items():
        for search in model["searches"]:
            found = [each["reason"] for each in search["differences"]]
            rows.append(
                [
                    name,
                    model["architecture"],
                    search["beam_size"],
                    f"{model['lines'] - len(found):,} of {model['lines']:,}",
                    *(found.count(each) for each in ("tie", "ours", "theirs")),
                ]
            )
    head = ["exported model", "in transformers", "beam size", "same text", "tie"]
    exports = table([*head, "ours better", "theirs better"], rows)
    version = result["versions"]["transformers"]
    return f"{imports}\n{exports}\ntransformers {version}.\n"


def fine_tuning(result):
    is_same, is_zero = result["resumed_is_identical"], result["start_is_zero"]
    before, after = result["perplexity"]
    rows = [
        ["perplexity before", f"{before:.1f}"],
        [f"perplexity after {result['steps']} steps", f"{after:.1f}"],
        ["weights of the resumed run", "identical" if is_same else "different"],
        ["start vector", "zero" if is_zero else "not zero"],
    ]
    return table(["metric", "value"], rows)
