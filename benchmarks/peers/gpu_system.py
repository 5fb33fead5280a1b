"""Benchmark system: training or decoding on one GPU, by the system of the arguments.

gpu.py starts it, and `interleaved` sends it turns. The arguments are "train" or
"decode", the system, the precision, the size, the number of ids, rows and positions per
row. Each function returns one that does so for some steps and returns the number of
target tokens, and one that returns the memory used.
"""

import math
import sys
import time

import interleaved
import numpy as np

STARTED = time.perf_counter()
kind, system, precision, size, *numbers = sys.argv[1:]
vocabulary, rows, length = map(int, numbers)
SIZES = {
    "tiny": {"num_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4},
    "base": {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8},
    "big": {"num_layers": 6, "d_model": 1024, "d_ff": 4096, "num_heads": 16},
}
settings = SIZES[size]
BEAM_SIZE = 4


def random_ids(*shape):
    return np.random.default_rng(0).integers(4, vocabulary, shape).astype("int32")


def train_keras_transformer():
    """Trains for some steps, by `fit`."""
    import jax
    import keras

    import keras_transformer as kt
    from keras_transformer import training

    if precision == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    model = training.TrainingModel(kt.Transformer(vocabulary, **settings))
    schedule = training.NoamSchedule(settings["d_model"])
    model.compile(keras.optimizers.Adam(schedule, 0.9, 0.98, 1e-9))

    def run(steps):
        ids = random_ids(steps * rows, length)
        inputs = {"source_ids": ids, "target_ids": ids}
        model.fit(inputs, ids, batch_size=rows, shuffle=False, verbose=0)
        return ids.size

    return run, jax_memory(jax)


def decode_keras_transformer():
    """Searches translations of at most `length` tokens."""
    import jax
    import keras

    import keras_transformer as kt
    from keras_transformer.decoding.compiled import compile_for_ids

    keras.config.set_dtype_policy(precision)
    model = kt.Transformer(vocabulary, **settings)
    ids = random_ids(rows, length)
    model.build({"source_ids": ids.shape, "target_ids": ids.shape})
    search = kt.BeamSearch(BEAM_SIZE, extra_length=0)
    found = compile_for_ids(
        lambda ids: kt.decoding.translate_ids(model, ids, search, is_checked=True),
        *(1, model, model.pad_id),
    )

    def run(steps):
        sequences = [found(ids)[0][:, 0] for _ in range(steps)]
        return int(np.count_nonzero(sequences))

    return run, jax_memory(jax)


def jax_memory(jax):
    def measure():
        device = jax.local_devices()[0]
        peak = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
        return {"peak_gib": peak / 2**30, "device": device.device_kind}

    return measure


def train_torch():
    """Trains a compiled `torch.nn.Transformer`."""
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    width, layers = settings["d_model"], settings["num_layers"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            self.transformer = nn.Transformer(
                *(width, settings["num_heads"], layers, layers, settings["d_ff"], 0.1),
                batch_first=True,
            )
            rate = 10000 ** (-torch.arange(0, width, 2) / width)
            angles = torch.arange(length)[:, None] * rate
            table = torch.cat([angles.sin(), angles.cos()], 1)
            self.register_buffer("positions", table)
            self.dropout = nn.Dropout(0.1)

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * math.sqrt(width) + self.positions)

        def forward(self, source, target, causal):
            padding = source == 0
            output = self.transformer(
                *(self.embed(source), self.embed(target)),
                tgt_mask=causal,
                tgt_is_causal=True,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
            return output @ self.embedding.weight.T

    model = Model().to(device)
    causal = torch.ones(length, length, device=device, dtype=torch.bool).triu(1)
    optimizer = torch.optim.Adam(
        model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True
    )
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0)

    @torch.compile
    def forward(source, target, labels):
        with torch.autocast(device.type, torch.bfloat16, precision == "bfloat16"):
            logits = model(source, target, causal)
        return loss_of(logits.reshape(-1, vocabulary).float(), labels.reshape(-1))

    def run(steps):
        ids = torch.from_numpy(random_ids(steps, rows, length)).long()
        for batch in ids:
            batch = batch.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = forward(batch, batch, batch)
            loss.backward()
            optimizer.step()
        float(loss)  # waits for the GPU
        return ids.numel()

    return run, torch_memory(torch)


def decode_transformers():
    """Generates `length` tokens by a `MarianMTModel`."""
    import torch
    import transformers

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = transformers.MarianConfig(
        vocab_size=vocabulary,
        d_model=settings["d_model"],
        encoder_layers=settings["num_layers"],
        decoder_layers=settings["num_layers"],
        encoder_attention_heads=settings["num_heads"],
        decoder_attention_heads=settings["num_heads"],
        encoder_ffn_dim=settings["d_ff"],
        decoder_ffn_dim=settings["d_ff"],
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="relu",
    )
    model = (
        transformers.MarianMTModel(config).to(device, getattr(torch, precision)).eval()
    )
    ids = torch.from_numpy(random_ids(rows, length)).long().to(device)
    lengths = {"min_new_tokens": length, "max_new_tokens": length}

    def run(steps):
        with torch.inference_mode():
            for _ in range(steps):
                model.generate(ids, num_beams=BEAM_SIZE, do_sample=False, **lengths)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return steps * ids.numel()

    return run, torch_memory(torch)


def torch_memory(torch):
    def measure():
        if not torch.cuda.is_available():
            return {"peak_gib": 0.0, "device": "cpu"}
        peak = torch.cuda.max_memory_allocated()
        return {"peak_gib": peak / 2**30, "device": torch.cuda.get_device_name(0)}

    return measure


run, memory = globals()[f"{kind}_{system}"]()
channel = interleaved.Channel()
run(1)  # compiles
channel.send(seconds=time.perf_counter() - STARTED)
while (arguments := channel.receive()) is not None:
    tokens = run(arguments["steps"])
    seconds = channel.seconds()
    channel.send(seconds=seconds, rate=tokens / seconds, **memory())
