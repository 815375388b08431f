"""How much of full attention networks of genomes keep: the same for every mechanism with an option for it."""

import pytest
import torch

from greenformers.attention import attention_class, names
from greenformers.genome.longest import Setting, Size, _Classifier
from greenformers.genome.settings import Network

RANKED = [name for name in names() if attention_class(name).rank_option is not None]


@pytest.mark.parametrize("name", RANKED)
def test_by_default_256_or_the_length(name):
    option = attention_class(name).rank_option
    for network, k in (
        (Network(variant=name, length=4096), 256),
        (Network(variant=f"lrt+{name}", length=60), 60),
        (Network(variant=name, k=9), 9),
    ):
        assert network.sizes()["attention_options"] == {option: k}


@pytest.mark.parametrize("variant", ["transformer", "lrt", "bp", "routing"])
def test_what_has_no_such_option_is_given_none(variant):
    sizes = Network(variant=variant).sizes()
    assert not sizes.get("attention_options")
    assert not sizes.get("block_options")


@pytest.mark.parametrize("name", RANKED)
def test_the_longest_sequence_is_of_as_much(name):
    size = Size(hidden=8, layers=1, heads=2, feed_forward=8, k=6, batch=1)
    with torch.device("meta"):
        classifiers = [_Classifier(Setting(name, "inference", False, 9), size, length) for length in (4, 20)]
    option = attention_class(name).rank_option
    assert [classifier.model.config.attention_options for classifier in classifiers] == [{option: 4}, {option: 6}]
