"""Names of the arrays in Hugging Face's folders, for import and export."""

_PARTS = {
    **{
        f"{ours}.{role}": f"{theirs}.{name}_proj"
        for ours, theirs in (
            ("self_attention", "self_attn"),
            ("cross_attention", "encoder_attn"),
        )
        for role, name in (
            *(("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")),
        )
    },
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "self_attention_add_norm": "self_attn_layer_norm",
    "cross_attention_add_norm": "encoder_attn_layer_norm",
    "feed_forward_add_norm": "final_layer_norm",
}


def linear_names(side, number, part):
    """Returns the names of the weight and the bias of a part of a layer.

    Args:
        side: `"encoder"` or `"decoder"`.
        number: Number of the layer, from 0.
        part: Part of the layer, see `weights.set_layers`.
    """
    prefix = f"model.{side}.layers.{number}.{_PARTS[part]}"
    return f"{prefix}.weight", f"{prefix}.bias"
