"""Slots of the network as settings of a run: reversible, chunked, shared."""

import pytest
from rich.console import Console

from greenformers.attention import attention_class, names
from greenformers.measure.parameters import parameters
from greenformers.train import run
from greenformers.train.settings import Settings

QUIET = Console(quiet=True)
SMALL = {"hidden": 16, "layers": 2, "heads": 2, "feed_forward": 32, "steps": 3, "limit": 100, "batch": 20}


def test_a_run_with_all_of_them(tmp_path):
    given = Settings(**SMALL, residual="reversible", chunk=7, share="all")
    run.start(tmp_path / "run", given, QUIET)
    model = run.trained(tmp_path / "run")
    config = model.config
    assert (config.residual, config.feed_forward, config.feed_forward_options) == (
        "reversible",
        "chunked",
        {"chunk": 7},
    )
    assert (config.depth, config.shared) == ("shared", "all")
    assert parameters(model) < parameters(Settings(**SMALL).task().network())


def test_a_run_of_universal_depth(tmp_path):
    given = Settings(**SMALL | {"layers": 4}, depth="universal", depth_option={"tau": 0.1, "eps": 0.05})
    run.start(tmp_path / "run", given, QUIET)
    model = run.trained(tmp_path / "run")
    assert (model.config.depth, model.config.depth_options) == ("universal", {"tau": 0.1, "eps": 0.05})
    assert model.encoder.depth.weight.any()
    assert parameters(model) < parameters(Settings(**SMALL).task().network())


def test_a_run_with_experts(tmp_path):
    given = Settings(**SMALL, feed_forward_kind="switch", feed_forward_option={"experts": 3, "k": 2})
    run.start(tmp_path / "run", given, QUIET)
    model = run.trained(tmp_path / "run")
    assert (model.config.feed_forward, model.config.feed_forward_options) == ("switch", {"experts": 3, "k": 2})
    assert parameters(model) > parameters(Settings(**SMALL).task().network())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"residual": "reversible", "recompute": True}, "recompute must be off with residual reversible, .*"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        (
            {"feed_forward_kind": "expert"},
            "feed_forward_kind must be one of chunked, dense, gated, switch; got .expert.",
        ),
        (
            {"feed_forward_kind": "dense", "chunk": 7},
            "chunk must be left out with feed_forward_kind, got 7 and .dense.",
        ),
        ({"feed_forward_option": {"k": 2}}, "feed_forward_option is for a feed_forward_kind, got k"),
        (
            {"feed_forward_kind": "dense", "feed_forward_option": {"k": 2}},
            "feed_forward_option: dense has no option .k., it has none",
        ),
        ({"feed_forward_kind": "switch", "feed_forward_option": {"k": 9}}, r"k must be in 1\.\.8, got 9"),
        ({"feed_forward_kind": "switch", "variant": "star"}, "feed_forward must be dense where block is star, .*"),
        ({"share": "all", "depth": "universal"}, "share must be left out with depth, got 'all' and 'universal'"),
        ({"depth_option": {"tau": 0.1}}, "depth_option is for a depth, got tau"),
        (
            {"depth": "universal", "depth_option": {"halt": True}},
            "depth_option: universal has no option .halt., it has .*",
        ),
        (
            {"depth": "universal", "depth_option": {"tau": "high"}},
            "depth_option: .*: tau must be .*, got 'high'",
        ),
        ({"depth": "universal", "depth_option": {"tau": -1}}, "tau must be at least 0, got -1"),
        ({"share": "none"}, "share must be one of all, attention, feed_forward; got 'none'"),
        ({"residual": "back"}, "residual must be one of post, pre, reversible; got 'back'"),
    ],
)
def test_what_cannot_be(tmp_path, given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        run.start(tmp_path / "run", Settings(**SMALL | given), QUIET)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [name for name in names() if attention_class(name).rank_option is not None])
def test_k_is_how_much_any_mechanism_keeps(name):
    option = attention_class(name).rank_option
    for given, size in (({}, 16), ({"k": 5}, 5), ({"option": {option: 7}}, 7)):
        model = Settings(**SMALL, variant=f"lrt+{name}", **given).task().network()
        assert model.config.attention_options == {option: size}


@pytest.mark.parametrize("variant", ["transformer", "lrt", "star", "routing"])
def test_k_is_refused_where_nothing_has_such_an_option(variant):
    with pytest.raises(ValueError, match=f"^k is for an attention that keeps a part of .*'{variant}'; got 5$"):
        Settings(**SMALL, variant=variant, k=5).task().network()
    assert Settings(**SMALL, variant=variant).task().network().config.attention_options is None
