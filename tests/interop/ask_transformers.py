"""Stores the results of the library `transformers` for tiny random models.

    PYTHONPATH=tests python tests/interop/ask_transformers.py

The script writes `transformers_results.json`, with which test_import_huggingface.py
compares imported models. The stored file is from transformers 4.57.6 and torch 2.13.0,
which the tests do not need.
"""

import json
import pathlib
import tempfile

from toolkit_models import (
    HOSTILE_TEXTS,
    HUGGINGFACE_MODELS,
    SOURCE,
    TARGET,
    huggingface_model,
    write_huggingface,
)

RESULTS = pathlib.Path(__file__).with_name("transformers_results.json")


def main():
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    results = {"logits": {}, "greedy": {}}
    for name in HUGGINGFACE_MODELS:
        arrays, config = huggingface_model(name)
        with tempfile.TemporaryDirectory() as folder:
            folder = write_huggingface(pathlib.Path(folder) / "m", arrays, config)
            model = MarianMTModel.from_pretrained(folder).eval()
            tokenizer = MarianTokenizer.from_pretrained(folder)
        start = config["decoder_start_token_id"]
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([SOURCE]),
                decoder_input_ids=torch.tensor([[start, *TARGET]]),
            ).logits[0]
            greedy = model.generate(
                torch.tensor([SOURCE]),
                num_beams=1,
                max_new_tokens=12,
                # This package never generates the start id or the unknown id, 1.
                bad_words_ids=[[start], [1]],
            )[0]
        rounded = [[round(float(x), 5) for x in row] for row in logits]
        results["logits"][name] = rounded
        results["greedy"][name] = greedy[1:].tolist()
    results["ids"] = tokenizer(HOSTILE_TEXTS, add_special_tokens=False)["input_ids"]
    targets = tokenizer(text_target=HOSTILE_TEXTS, add_special_tokens=False)
    results["target_ids"] = targets["input_ids"]
    results["texts"] = tokenizer.batch_decode(
        results["target_ids"], skip_special_tokens=True
    )
    RESULTS.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
