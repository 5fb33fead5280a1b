"""Stores the results of the library `transformers` for tiny multilingual models.

    PYTHONPATH=tests:tests/interop python tests/interop/ask_transformers_fairseq.py

The script writes `fairseq_results.json`, with which test_from_fairseq.py compares
imported models. The stored file is from transformers 5.24.0 and torch 2.13.0, which the
tests do not need.
"""

import json
import pathlib
import tempfile

from fairseq_models import DEFAULTS, MODELS, layout, sources, targets, write_fairseq

RESULTS = pathlib.Path(__file__).with_name("fairseq_results.json")
MAX_NEW_TOKENS = 24


def results(name, folder):
    import torch
    from transformers import AutoModelForSeq2SeqLM

    kind = name.partition(" ")[0]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    rows = sources(kind)
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[1] * (longest - len(row))] for row in rows])
    mask = (ids != 1).long()
    labels = torch.tensor(targets(kind))
    languages = layout(kind)[2]
    forced = {code.strip("_"): n for code, n in languages.items()}[DEFAULTS[kind][1]]
    with torch.no_grad():
        found = model(
            input_ids=ids[: len(labels)],
            attention_mask=mask[: len(labels)],
            decoder_input_ids=labels,
            use_cache=False,
        )
        searches = {
            str(beam_size): model.generate(
                ids,
                attention_mask=mask,
                num_beams=beam_size,
                early_stopping=beam_size > 1,
                length_penalty=1.0,
                max_new_tokens=MAX_NEW_TOKENS,
                forced_bos_token_id=forced,
                suppress_tokens=[1, 3],  # this package never generates them
                do_sample=False,
            )[:, 1:].tolist()
            for beam_size in (1, 4)
        }
    return {
        "encoder": _rounded(found.encoder_last_hidden_state),
        "logits": _rounded(found.logits),
        "searches": searches,
    }


def _rounded(tensor):
    return [[[round(float(x), 6) for x in row] for row in each] for each in tensor]


def main():
    found = {}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = results(name, write_fairseq(pathlib.Path(folder) / "m", name))
    RESULTS.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
