"""The network of the house: one configuration, its slots, the encoder and its heads."""
