import pytest

from greenformers.attention import names
from greenformers.model.config import GreenformerConfig
from greenformers.model.variant import slots

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
        found = slots(variant, rank=7)
        assert found == {"rank": rank, "attention": name, "attention_options": None}
        GreenformerConfig(**found)


@pytest.mark.parametrize(
    "variant",
    ["", "bert", "lrt+", "lrt+bert", "lrt+lrt", "transformer+lrt", "transformer+linformer", "full+linformer", "LRT"],
)
def test_no_such_variant(variant):
    with pytest.raises(ValueError, match="variant must be one of") as caught:
        slots(variant, rank=7)
    allowed = ", ".join(["transformer", "lrt", *names(), "bp", "isab", "star"])
    assert str(caught.value) == f"variant must be one of {allowed}, or lrt+ and an attention or block; got {variant!r}"
