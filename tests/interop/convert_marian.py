"""Converts a Marian model with transformers 4.47.1 and computes its logits.

    python convert_marian.py FOLDER IDS.npz LOGITS.npz

IDS.npz has the arrays `source` and `target`: ids `[rows, length]`, padded with -1.
LOGITS.npz has an array `[target length + 1, outputs]` per row, named by the row number.
The additional position is the start id, which the script puts before the target.
"""

import pathlib
import sys

import numpy as np
import torch
from transformers.models.marian.convert_marian_to_pytorch import OpusState


def main():
    folder, ids_path, output = map(pathlib.Path, sys.argv[1:])
    model = OpusState(folder).load_marian_model().eval()
    start = model.config.decoder_start_token_id
    ids = np.load(ids_path)
    logits = {}
    for number, (source, target) in enumerate(
        zip(ids["source"], ids["target"], strict=True)
    ):
        with torch.no_grad():
            found = model(
                input_ids=torch.tensor([source[source >= 0].tolist()]),
                decoder_input_ids=torch.tensor(
                    [[start, *target[target >= 0].tolist()]]
                ),
            )
        logits[str(number)] = found.logits[0].numpy()
    np.savez(output, **logits)


if __name__ == "__main__":
    main()
