"""The peers of deploy.py, and an environment for each."""

import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "deploy_peers"
SHARED = ("torch==2.13.0", "transformers==5.23.0")
"""What every environment needs. One reads what the project's own has of these versions, and installs the rest."""

READY = """
import sys
from importlib.metadata import version
_, python, *pins = sys.argv
wrong = [pin for pin in pins if version(pin.split("==")[0]).split("+")[0] != pin.split("==")[1]]
sys.exit(f"to be made anew for {wrong or python}" if wrong or sys.version != python else 0)
"""
"""Ends well in an environment of the Python and the versions that it is given."""


@dataclass(frozen=True)
class Peer:
    """A library that runs networks.

    Attributes:
        script: its file in `deploy_peers`, without suffix, and the name of its environment.
        pins: what is installed there, with exact versions; none for the project's own environment.
    """

    script: str
    pins: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Its file."""
        return SCRIPTS / f"{self.script}.py"

    def environment(self, folder: Path) -> Path | None:
        """Its interpreter, in an environment below a folder, made where it is not ready; None where that fails."""
        if not self.pins:
            return Path(sys.executable)
        home, pins = folder.absolute() / self.script, (*SHARED, *self.pins)
        python = home / "bin" / "python"
        if python.exists() and _done(python, "-c", READY, sys.version, *pins):
            return python
        start = time.monotonic()
        shutil.rmtree(home, ignore_errors=True)
        if not _done(sys.executable, "-m", "venv", home):
            return None
        (packages,) = home.glob("lib/python*/site-packages")
        # Read after its own packages: of a version that clashes, the one installed here comes first.
        (packages / "project.pth").write_text(sysconfig.get_path("purelib"))
        if not _done(python, "-m", "pip", "install", *pins):
            return None
        size = sum(path.lstat().st_size for path in home.rglob("*")) / 2**20
        print(f"{self.script}: environment of {size:.0f} MiB, made in {time.monotonic() - start:.0f} s", flush=True)
        return python


def _done(*command: str | Path) -> bool:
    """Whether a command succeeds; if not, its last line is printed."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        print(*ended.stdout.strip().splitlines()[-1:], flush=True)
    return ended.returncode == 0


OWN = Peer("own")
ONNX_RUNTIME = Peer("onnx_runtime", ("onnx==1.23.2", "onnxruntime==1.32.0", "onnxscript==0.7.2"))
OPENVINO = Peer("open_vino", ("openvino==2026.4.1", "nncf==3.4.0"))
TORCHAO = Peer("torch_ao", ("torchao==0.18.0",))
PEERS = (OWN, ONNX_RUNTIME, OPENVINO, TORCHAO)
