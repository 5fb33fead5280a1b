"""Names that other toolkits use, for import and export.

In all tables, keys are names of this package, and values are the toolkit's.
"""

# Name of the array in which Marian stores the settings of a model, as YAML text.
MARIAN_SETTINGS = "special:model.yml"
# Arrays that belong to no layer. "shared" is the matrix of both sides.
MARIAN_ARRAYS = {
    "shared": "Wemb",
    "source": "encoder_Wemb",
    "target": "decoder_Wemb",
    "output": "decoder_ff_logit_out_Wt",
    "bias": "decoder_ff_logit_out_b",
}
HUGGINGFACE_ARRAYS = {
    "shared": "model.shared.weight",
    "source": "model.encoder.embed_tokens.weight",
    "target": "model.decoder.embed_tokens.weight",
    "output": "lm_head.weight",
    "bias": "final_logits_bias",
    "source_positions": "model.encoder.embed_positions.weight",
    "target_positions": "model.decoder.embed_positions.weight",
}
# "swish" is another name of "silu", which comes last, so that it is the inverse.
MARIAN_ACTIVATIONS = {
    **{"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"},
}
HUGGINGFACE_ACTIVATIONS = {
    **{"relu": "relu", "gelu": "gelu", "quick_gelu": "quick_gelu"},
    **{"swish": "silu", "silu": "silu"},
}
CTRANSLATE2_ACTIVATIONS = {
    **{"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swish": "SWISH"},
    "quick_gelu": "GELUSigmoid",
}
_MARIAN_BLOCKS = {
    "self_attention": "self",
    "cross_attention": "context",
    "feed_forward": "ffn",
}
_MARIAN_ROLES = {
    **{"query": "q", "key": "k", "value": "v", "output": "o"},
    **{"inner": "1", "outer": "2"},
}
_MARIAN_NORMS = {
    "self_attention_add_norm": "self_Wo",
    "cross_attention_add_norm": "context_Wo",
    "feed_forward_add_norm": "ffn_ffn",
}
_HUGGINGFACE_BLOCKS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_HUGGINGFACE_ROLES = {"query": "q", "key": "k", "value": "v", "output": "out"}
_HUGGINGFACE_PARTS = {
    **{
        f"{block}.{role}": f"{theirs}.{letter}_proj"
        for block, theirs in _HUGGINGFACE_BLOCKS.items()
        for role, letter in _HUGGINGFACE_ROLES.items()
    },
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "self_attention_add_norm": "self_attn_layer_norm",
    "cross_attention_add_norm": "encoder_attn_layer_norm",
    "feed_forward_add_norm": "final_layer_norm",
}


def marian_names(side, number, part):
    """Returns Marian's names of the weight and the bias of a layer's part."""
    prefix = f"{side}_l{number + 1}"
    block, _, role = part.partition(".")
    if not role:
        return tuple(
            f"{prefix}_{_MARIAN_NORMS[part]}_ln_{kind}" for kind in ("scale", "bias")
        )
    block, role = _MARIAN_BLOCKS[block], _MARIAN_ROLES[role]
    return f"{prefix}_{block}_W{role}", f"{prefix}_{block}_b{role}"


def marian_norm_names(side):
    """Returns Marian's names of the scale and bias that normalize the embeddings."""
    return f"{side}_emb_ln_scale_pre", f"{side}_emb_ln_bias_pre"


def huggingface_names(side, number, part):
    """Like `marian_names`, but for the arrays of Hugging Face's `MarianMTModel`."""
    prefix = f"model.{side}.layers.{number}.{_HUGGINGFACE_PARTS[part]}"
    return f"{prefix}.weight", f"{prefix}.bias"
