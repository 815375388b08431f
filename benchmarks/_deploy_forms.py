"""The forms of a network in deploy.py: what makes each, and what serves it."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from _deploy_environments import ONNX_RUNTIME, OPENVINO, OWN, PEERS, TORCHAO, Peer
from _deploy_workers import environ

WEIGHTS = (".safetensors", ".onnx", ".data", ".xml", ".bin", ".pt")
"""Endings of files with weights or graphs."""

DENSE = "torch"
"""The variant that the others are compared with."""


@dataclass(frozen=True)
class Form:
    """A network as one peer makes it and one serves it.

    Attributes:
        variant: its name in records.
        maker: what makes it.
        folder: the folder it is in, below that of its maker.
        server: what runs it.
        options: of the server.
    """

    variant: str
    maker: Peer
    folder: str
    server: Peer
    options: tuple[str, ...] = ()


FORMS = (
    Form(DENSE, OWN, "dense", OWN),
    Form("ours, int8", OWN, "int8", OWN),
    Form("ours, low rank and int8", OWN, "low-rank-int8", OWN),
    Form("ours, in ONNX Runtime", OWN, "dense/onnx", ONNX_RUNTIME),
    Form("ours, int8, in ONNX Runtime", OWN, "int8/onnx", ONNX_RUNTIME),
    Form("ours, low rank and int8, in ONNX Runtime", OWN, "low-rank-int8/onnx", ONNX_RUNTIME),
    Form("ours, in OpenVINO", OWN, "dense/openvino", OPENVINO),
    Form("ours, int8, in OpenVINO", OWN, "int8/openvino", OPENVINO),
    Form("ours, low rank and int8, in OpenVINO", OWN, "low-rank-int8/openvino", OPENVINO),
    Form("ONNX Runtime", ONNX_RUNTIME, "dense", ONNX_RUNTIME),
    Form("ONNX Runtime, dynamic int8", ONNX_RUNTIME, "dynamic-int8", ONNX_RUNTIME),
    Form("ONNX Runtime, static int8", ONNX_RUNTIME, "static-int8", ONNX_RUNTIME),
    Form("OpenVINO", OPENVINO, "dense", OPENVINO),
    Form("OpenVINO, NNCF int8", OPENVINO, "nncf-int8", OPENVINO),
    Form("torchao, int8", TORCHAO, "int8", TORCHAO),
    Form("torchao, int8, compiled", TORCHAO, "int8", TORCHAO, ("compiled",)),
)


@dataclass(frozen=True)
class Deployment:
    """A form that can be served.

    Attributes:
        variant: its name in records.
        folder: its files.
        command: the command line of a process that serves it.
    """

    variant: str
    folder: Path
    command: tuple[str, ...]

    @property
    def size(self) -> float:
        """MiB on disk of the weights and the graph, not of what other runtimes have below the folder."""
        return sum(path.stat().st_size for path in self.folder.glob("*") if path.suffix in WEIGHTS) / 2**20


def own_forms(name: str) -> list[Form]:
    """The forms of a compressed model of the user's, by the name of its folder."""
    return [
        Form(f"ours, {name}", OWN, name, OWN),
        Form(f"ours, {name}, in ONNX Runtime", OWN, f"{name}/onnx", ONNX_RUNTIME),
        Form(f"ours, {name}, in OpenVINO", OWN, f"{name}/openvino", OPENVINO),
    ]


def make(
    network: Path,
    texts: Path,
    folder: Path,
    environments: Path,
    threads: int,
    options: Sequence[str],
    small: Sequence[Path],
    only: str,
) -> list[Deployment]:
    """Let every peer make its forms; one that fails is said, and what it did not make left out.

    Args:
        network: folder of the dense network and its tokenizer.
        texts: file of texts to calibrate with.
        folder: the folder of the forms.
        environments: folder of the peers' environments.
        threads: of every peer.
        options: of our own maker.
        small: folders of compressed models.
        only: part of the names of the forms to serve, "" for all; the dense one is always served.
    """
    candidates = [*FORMS, *(form for path in small for form in own_forms(path.name))]
    forms = [
        form for form in candidates if form.variant == DENSE or any(part in form.variant for part in only.split(";"))
    ]
    options = [*options, *(f"small={path.resolve()}" for path in small)]
    pythons: dict[Peer, Path] = {}
    for peer in PEERS:
        if not any(peer in (form.maker, form.server) for form in forms):
            continue
        python = peer.environment(environments)
        if python is None:
            print(f"left out: {peer.script} cannot be installed", flush=True)
            continue
        pythons[peer] = python
        start = monotonic()
        own = options if peer is OWN else ()
        command: list[str | Path] = [python, peer.path, "make", network, texts, folder / peer.script, *own]
        ended = subprocess.run(command, capture_output=True, text=True, env=environ(threads))
        print(f"{peer.script}: forms made in {monotonic() - start:.0f} s", flush=True)
        if ended.returncode:
            why = (ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode} and no word"])[-1]
            print(f"left out: what {peer.script} did not make: {why}", flush=True)
    served = []
    for form in forms:
        home = folder / form.maker.script / form.folder
        if form.server in pythons and home.is_dir():
            command = [pythons[form.server], form.server.path, "serve", home, network / "tokenizer.json", str(threads)]
            served.append(Deployment(form.variant, home, tuple(map(str, [*command, *form.options]))))
    return served
