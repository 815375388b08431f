"""Decoders that read an encoder: what several of their layers read at once, and their padding."""

import torch
from zoo import inputs, network

from greenformers.solve.rank_curves import rank_curves
from greenformers.solve.sequential import sequential
from greenformers.solve.walk import sites
from greenformers.solve.watch import padding, trace, unpadded


def test_every_layer_of_a_decoder_loses_something() -> None:
    model, batches = network("bart", decoder_layers=3), [inputs("bart")]
    alone = [site for site in sites(model, "linear") if len(site.paths) == 1]
    traced = trace(model, alone, batches[0])
    lost = rank_curves(model, traced, {site.path: [4] for group in traced.groups for site in group}, batches)
    assert [path for path, at in lost.items() if ".decoder." in path and not at[4] > 0] == []


def test_the_first_layer_that_reads_the_encoder_may_stay_dense() -> None:
    model, batch = network("bart", decoder_layers=2), inputs("bart")
    ranks = {"model.decoder.layers.1.encoder_attn.k_proj": 4, "model.decoder.layers.0.fc1": 4}
    traced = trace(model, sites(model), batch)
    assert sequential(model, traced, ranks, [batch]).keys() == ranks.keys()


def test_a_decoder_that_reads_the_inputs_of_the_encoder_has_its_padding() -> None:
    model = network("bart", "BartForSequenceClassification")
    ids, mask = torch.randint(3, 53, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, 4:] = 0
    ids[0, 3], ids[1, 7] = 2, 2  # the end, whose state is classified
    read = []
    with padding(model) as masks:
        masks.begin({"input_ids": ids, "attention_mask": mask})
        model.model.decoder.layers[0].fc1.register_forward_hook(
            lambda _, args, __: read.append(len(unpadded(args[0], args[0].shape[:-1], masks.at(args[0]))))
        )
        model(input_ids=ids, attention_mask=mask)
    assert read == [5 + 8], "a place later than those of the encoder"
