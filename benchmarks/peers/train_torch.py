"""Benchmark system: torch.nn.Transformer in a plain training loop with fused Adam.

training.py starts it, and `interleaved` sends it turns.
"""

import math
import sys

import interleaved
import torch
import workload
from torch import nn

size, folder = sys.argv[1:]
settings = workload.settings(size)
torch.set_num_threads(interleaved.THREADS)


class Model(nn.Module):
    def __init__(self, width, heads, layers, inner, dropout):
        super().__init__()
        self.embedding = nn.Embedding(workload.VOCABULARY, width, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width, heads, layers, layers, inner, dropout, batch_first=True
        )
        # The other systems have no dropout inside the feed-forward network.
        for layer in (
            *self.transformer.encoder.layers,
            *self.transformer.decoder.layers,
        ):
            layer.dropout = nn.Identity()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(256)[:, None]
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.stack([torch.sin(position * rate), torch.cos(position * rate)], 2)
        self.register_buffer("positions", table.reshape(256, width))

    def embed(self, ids):
        scaled = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, source, target):
        padding = source == 0
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        y = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return nn.functional.linear(y, self.embedding.weight)


batches = [
    tuple(torch.from_numpy(ids).long() for ids in batch)
    for batch in workload.saved_batches(folder)
]
model = Model(
    settings["d_model"],
    settings["num_heads"],
    settings["num_layers"],
    settings["d_ff"],
    settings["dropout"],
)
loss_of = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=workload.LABEL_SMOOTHING)
optimizer = torch.optim.Adam(
    model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
)
model.train()


def train(first, steps, tokens):
    for source, target, labels in batches[first : first + steps]:
        logits = model(source, target)
        loss = loss_of(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return tokens, {"loss": float(loss.detach())}


interleaved.serve(
    lambda first, steps, tokens: interleaved.timed(train, first, steps, tokens)
)
