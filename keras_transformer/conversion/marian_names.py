"""Names of the arrays in Marian's model files, for import and export."""

SETTINGS = "special:model.yml"
_BLOCKS = {
    "self_attention": "self",
    "cross_attention": "context",
    "feed_forward": "ffn",
}
_ENDS = {
    **{"query": "q", "key": "k", "value": "v", "output": "o"},
    **{"inner": "1", "outer": "2"},
}
_NORMS = {
    "self_attention_add_norm": "self_Wo",
    "cross_attention_add_norm": "context_Wo",
    "feed_forward_add_norm": "ffn_ffn",
}


def layer_names(side, number, part):
    """Returns the names of a layer's kernel and bias, or of its scale and bias.

    Args:
        side: `"encoder"` or `"decoder"`.
        number: Number of the layer, from 0.
        part: Part of the layer, see `weights.set_layers`.
    """
    prefix = f"{side}_l{number + 1}"
    block, _, role = part.partition(".")
    if role:
        return tuple(f"{prefix}_{_BLOCKS[block]}_{kind}{_ENDS[role]}" for kind in "Wb")
    return tuple(f"{prefix}_{_NORMS[part]}_ln_{kind}" for kind in ("scale", "bias"))


def embedding_norm_names(side):
    """Returns the names of scale and bias of the normalization of the embeddings."""
    return tuple(f"{side}_emb_ln_{kind}_pre" for kind in ("scale", "bias"))
