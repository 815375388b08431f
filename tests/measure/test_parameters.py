from torch import nn

from greenformers.measure.parameters import parameters


def test_counts_trainable_and_frozen_but_no_buffers():
    module = nn.Sequential(nn.Linear(7, 11), nn.BatchNorm1d(11))
    module[0].weight.requires_grad_(False)
    assert parameters(module) == 7 * 11 + 11 + 2 * 11


def test_a_tied_parameter_and_a_shared_module_count_once():
    embedding, shared, head = nn.Embedding(13, 5), nn.Linear(5, 5), nn.Linear(5, 13, bias=False)
    head.weight = embedding.weight
    assert parameters(nn.Sequential(embedding, shared, shared, head)) == 13 * 5 + 5 * 5 + 5
