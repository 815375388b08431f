import pytest

from greenformers.attention import attention_class, names
from greenformers.model.config import GreenformerConfig
from greenformers.model.variant import control, rank_option, slots

OPTIONS = {"linformer": {"k": 11}}


@pytest.mark.parametrize(
    ("variant", "rank", "attention", "options"),
    [
        ("transformer", None, "full", None),
        ("lrt", 7, "full", None),
        ("full", None, "full", None),
        ("lrt+full", 7, "full", None),
        ("linformer", None, "linformer", {"k": 11}),
        ("lrt+linformer", 7, "linformer", {"k": 11}),
        ("linformer+lrt", 7, "linformer", {"k": 11}),
    ],
)
def test_slots(variant, rank, attention, options):
    expected = {"rank": rank, "attention": attention, "attention_options": options}
    assert slots(variant, rank=7, options=OPTIONS) == expected


@pytest.mark.parametrize("name", names())
def test_every_mechanism_is_a_variant_with_and_without_lrt(name):
    for variant, rank in ((name, None), (f"lrt+{name}", 7)):
        arguments = slots(variant, rank=7)
        assert arguments == {"rank": rank, "attention": name, "attention_options": None}
        GreenformerConfig(**arguments)


@pytest.mark.parametrize("name", names())
def test_what_is_kept_goes_to_the_option_of_any_mechanism_that_has_one(name):
    option = attention_class(name).rank_option
    assert rank_option(name) == rank_option(f"lrt+{name}") == option
    arguments = slots(f"lrt+{name}", rank=7, attention_size=5)
    assert arguments["attention_options"] == (None if option is None else {option: 5})
    # What is said of the mechanism itself holds.
    own = {"dropout": 0.5} if option is None else {option: 3, "dropout": 0.5}
    assert slots(name, rank=7, attention_size=5, options={name: own})["attention_options"] == own


def test_blocks_and_dense_networks_keep_everything():
    assert [rank_option(variant) for variant in ("transformer", "lrt", "bp", "lrt+star")] == [None] * 4
    assert slots("bp", rank=7, attention_size=5)["block_options"] is None
    with pytest.raises(ValueError, match="variant must be one of"):
        rank_option("bert")


@pytest.mark.parametrize(
    "variant",
    ["", "bert", "lrt+", "lrt+bert", "lrt+lrt", "transformer+lrt", "transformer+linformer", "full+linformer", "LRT"],
)
def test_no_such_variant(variant):
    with pytest.raises(ValueError, match="variant must be one of") as caught:
        slots(variant, rank=7)
    allowed = ", ".join(["transformer", "lrt", *names(), "bp", "evolved", "independent", "isab", "lite", "star"])
    assert str(caught.value) == f"variant must be one of {allowed}, or lrt+ and an attention or block; got {variant!r}"


def test_controls_have_the_slots_of_lrt_where_the_caller_makes_them_narrow():
    assert slots("narrow", rank=7, narrow=True) == slots("lrt", rank=7)
    assert slots("narrow_flops+linformer", rank=7, narrow=True) == slots("lrt+linformer", rank=7)
    assert [control(name) for name in ("narrow", "narrow_flops+linformer", "lrt")] == ["parameters", "flops", None]
    with pytest.raises(ValueError, match="variant must be one of"):
        slots("narrow", rank=7)
    with pytest.raises(ValueError, match="lrt, narrow, narrow_flops"):
        slots("narrow+lrt", rank=7, narrow=True)
