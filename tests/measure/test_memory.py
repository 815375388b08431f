import textwrap

import pytest
import torch
from forked import told
from torch import nn

from greenformers.measure.memory import peak_memory

MIB = 2**20


def allocate(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8)


def test_a_planted_allocation_is_found():
    assert peak_memory(lambda: allocate(100)) == pytest.approx(100 * MIB, rel=0.01)


def test_a_freed_temporary_counts_and_what_follows_it_does_not_add_up():
    def call():
        first = allocate(70)
        del first
        return allocate(50)

    assert peak_memory(call) == 70 * MIB


def test_what_is_live_together_adds_up():
    def inner():
        tensor = allocate(30)
        return tensor, allocate(20)

    def call():
        held = allocate(40)
        allocate(10)
        return held, inner()

    assert peak_memory(call) == 90 * MIB


def test_a_temporary_within_one_operator_counts():
    x = torch.randn(5, MIB // 8)
    indices_and_values = x.numel() * (4 + 8)
    assert peak_memory(lambda: x.sort(dim=1)) >= indices_and_values


def test_tensors_live_before_are_not_counted_nor_is_their_release():
    held = [allocate(60), allocate(50)]

    def call():
        held.pop()
        return allocate(80)

    assert peak_memory(call) == 80 * MIB


def test_a_call_without_tensors_holds_nothing():
    assert peak_memory(lambda: None) == 0


def test_gradients_and_saved_activations_count():
    layers = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Tanh(), nn.Linear(256, 256, bias=False))
    x = torch.randn(4099, 256)
    activations, weights = 4099 * 256 * 4, 2 * 256 * 256 * 4
    with torch.inference_mode():
        inference = peak_memory(lambda: layers(x))
    training = peak_memory(lambda: layers(x).sum().backward())
    assert inference == 2 * activations
    # The peak: tanh's output and the gradients of both its sides, and one weight's gradient.
    assert activations * 3 <= training <= activations * 3 + weights + 4096


def test_nothing_is_printed(capfd):
    peak_memory(lambda: allocate(1))
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_planted_allocation_is_found_on_cuda():
    def call():
        torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")

    assert peak_memory(call, device="cuda") == pytest.approx(100 * MIB, rel=0.01)


def test_other_devices_are_an_error():
    with pytest.raises(ValueError, match="device must be a CPU or CUDA device, got meta"):
        peak_memory(lambda: None, device="meta")


# Plain attention: its scores (64 MiB) and their softmax (64 MiB) are live together; the profiler starts last,
# since its own memory would count.
PROCESS = """
    from pathlib import Path
    import torch
    from greenformers.measure.memory import peak_memory

    def bytes_of(key):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

    q = torch.randn(4096, 16)
    attention = lambda: torch.softmax(q @ q.mT, dim=-1) @ q
    with torch.inference_mode():
        attention()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = bytes_of("VmRSS")
        attention()
        print([bytes_of("VmHWM") - before, peak_memory(attention)])
"""


def test_the_operating_system_sees_the_same_peak():
    try:
        with open("/proc/self/clear_refs", "w"):
            pass
    except OSError as error:
        pytest.skip(f"the peak of a process cannot be reset here: {error}")
    seen, counted = told(textwrap.dedent(PROCESS))
    assert counted == pytest.approx(128 * MIB, rel=0.01)
    assert seen == pytest.approx(counted, rel=0.04)
