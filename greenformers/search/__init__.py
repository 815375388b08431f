"""Search for the recipe of changes that suits a model and a bound best."""

UNSEARCHED = (
    "init", "patience", "shard", "snapshots", "micro_batches", "stages", "decoder_layers", "lottery_rounds",
    "lottery_drop", "lottery_rewind", "lottery_control",
)  # fmt: skip
"""Settings of a training that a search for a network does not take."""
