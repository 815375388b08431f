import subprocess
import sys

import pytest

import greenformers


def test_the_import_costs_nothing():
    code = (
        "import sys, greenformers; dir(greenformers); greenformers.__version__;"
        "heavy = {'torch', 'transformers', 'numpy', 'matplotlib', 'typer'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", greenformers.__all__)
def test_every_public_name_resolves(name):
    value = getattr(greenformers, name)
    assert getattr(value, "__name__", name).rpartition(".")[2] == name
    assert name in dir(greenformers)


def test_names_stand_for_what_their_modules_hold():
    from greenformers.attention import build
    from greenformers.lowrank.linear import LED
    from greenformers.model import GreenformerConfig

    assert greenformers.build is build
    assert greenformers.LED is LED
    assert greenformers.GreenformerConfig is GreenformerConfig


def test_a_name_there_is_not():
    with pytest.raises(AttributeError) as caught:
        greenformers.Linfomer  # noqa: B018
    message = str(caught.value)
    assert message.startswith("module 'greenformers' has no attribute 'Linfomer'; it has Attention, ")
    assert "GreenformerModel" in message
    assert not hasattr(greenformers, "torch")
