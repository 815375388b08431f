"""The encoder layer as the papers write it: every map by itself, no slices, no order changed for speed."""

from greenformers.model.block import EncoderLayer


def plain(layer: EncoderLayer, x, key_mask=None):
    """What `layer` must give, for any mechanism, rank and norm, without dropout."""
    if layer.pre_norm:
        x = x + attention(layer.attention, layer.attention_norm(x), key_mask)
        return x + feed_forward(layer.feed_forward, layer.feed_forward_norm(x))
    x = layer.attention_norm(x + attention(layer.attention, x, key_mask))
    return layer.feed_forward_norm(x + feed_forward(layer.feed_forward, x))


def attention(block, x, key_mask):
    heads, head_dim = block.mechanism.shape.heads, block.mechanism.shape.head_dim
    q, k, v = (
        block.projections[name](x).reshape(*x.shape[:2], heads, head_dim).transpose(1, 2).contiguous() for name in "qkv"
    )
    mixed = block.mechanism(q, k, v, key_mask)  # the whole mechanism, on keys and values of full length
    return block.output(mixed.transpose(1, 2).reshape(x.shape))


def feed_forward(block, x):
    return block.down(block.activation(block.up(x)))
