"""The recipes that a search may try: every change alone is made of networks of the zoo, or says why it cannot be."""

import copy
import random
from functools import cache
from itertools import product
from math import log2

import pytest
import torch
from zoo import inputs, network, outputs

from greenformers.changes import Given, Layers, Narrow, kinds
from greenformers.compress.apply import apply, check
from greenformers.measure.flops import flops
from greenformers.search.space import Space


@cache
def space_of(name):
    model = network(name)
    given = Given(calibration=[inputs(name, 8, seed) for seed in (7, 9)])
    return model, given, Space.of(model, given, length=8, causal=name in ("gpt2", "llama"))


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit"])
def test_every_change_alone_is_made(name):
    model, given, space = space_of(name)
    assert len(space.slots) >= 2
    count, refused = 0, []
    for genes in space.singles():
        small = copy.deepcopy(model)
        try:
            apply(small, space.recipe(genes), given)
        except ValueError as error:
            refused.append(str(error))
            continue
        count += 1
        with torch.inference_mode():
            assert all(x.isfinite().all() for x in outputs(small, inputs(name)))
    assert count >= 3
    assert all("the budget must be at least" in reason for reason in refused), refused


def test_recipes_go_in_the_order_of_changes_and_draws_are_legal_and_seeded():
    _, _, space = space_of("bert")
    orders = [slot[0].order for slot in space.slots]
    assert orders == sorted(orders)
    draws = [[space.drawn(source) for _ in range(4)] for source in (random.Random(3), random.Random(3))]
    assert draws[0] == draws[1]
    draw, genes = random.Random(0), space.nothing
    for _ in range(15):
        genes = space.mutated(genes, draw)
        assert any(genes)
        assert space.legal(genes)
        assert len(space.recipe(genes)) == sum(map(bool, genes))
    strongest = tuple(map(len, space.slots))
    assert space.strengths(strongest) == [1.0] * len(space.slots)


def test_settings_of_every_change_are_the_mildest_first():
    model, _, space = space_of("bert")
    for kind in kinds():
        settings = kind.searched(model, length=8, causal=False, heals=True)
        shares = [setting.keep for setting in settings if getattr(setting, "keep", None) is not None]
        assert shares == sorted(shares, reverse=True)
        assert len(set(settings)) == len(settings)
    assert {type(slot[0]).name() for slot in space.slots} >= {"layers", "prune", "low_rank", "int8"}


def test_what_needs_healing_is_left_out_without_it():
    model, given, space = space_of("bert")
    students = next(slot for slot in space.slots if isinstance(slot[0], Narrow))
    assert students == (Narrow(24), Narrow(16))
    quick = Space.of(model, given, length=8, causal=False, heals=False)
    left = [type(slot[0]) for slot in space.slots if not slot[0].needs_healing]
    assert [type(slot[0]) for slot in quick.slots] == left
    assert len(quick.slots) == len(space.slots) - 1


def test_layers_that_stay_are_spread_where_an_encoder_will_be_healed():
    model = network("bert", "BertModel")
    for heals, causal, by in ((True, False, "even"), (False, False, "influence"), (True, True, "influence")):
        settings = Layers.searched(model, length=8, causal=causal, heals=heals)
        assert [setting.by for setting in settings] == [by] * len(settings) != []


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_what_excludes_what_is_told_without_running_the_network(name):
    model, given, space = space_of(name)
    for there in product((0, 1), repeat=len(space.slots)):
        if 2 < sum(there) < len(there):  # what excludes one another are two
            continue
        genes = tuple(chosen * ((len(slot) + 1) // 2) for chosen, slot in zip(there, space.slots, strict=True))
        try:
            check(model, space.recipe(genes), given)
        except ValueError:
            assert not space.legal(genes), genes
        else:
            assert space.legal(genes), genes


def test_work_that_is_left_is_about_what_is_counted():
    model = network(
        "bert", "BertModel", hidden_size=64, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4
    )
    given, batch = Given(calibration=[inputs("bert", 8)]), inputs("bert", 8)
    space = Space.of(model, given, length=8, causal=False)
    whole = flops(lambda: outputs(model, batch))
    for place, (slot, shares) in enumerate(zip(space.slots, space.left, strict=True)):
        gene = (len(slot) + 1) // 2
        small, share = copy.deepcopy(model), shares[gene - 1]
        genes = tuple(gene if at == place else 0 for at in range(len(space.slots)))
        apply(small, space.recipe(genes), given)
        counted = flops(lambda network=small: outputs(network, batch)) / whole
        assert share == pytest.approx(counted, rel=0.1), (slot[gene - 1], "an attention's own products count beside")
        expected = -log2(share) if share < 1 else gene / len(slot)
        assert space.reductions(genes) == [expected * (at == place) for at in range(len(space.slots))]
    assert space.reductions(space.nothing) == [0.0] * len(space.slots)
