"""The wheel builds, holds every module, and imports from elsewhere than the checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import greenformers

ROOT = Path(__file__).parents[2]


def test_the_wheel_builds_and_imports(tmp_path: Path) -> None:
    # A copy: building in the checkout would leave a folder there, and take along what an older build left.
    source = tmp_path / "source"
    shutil.copytree(ROOT / "greenformers", source / "greenformers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    held = {str(path.relative_to(place)) for path in place.rglob("*.py")}
    assert (place / "greenformers" / "py.typed").is_file()  # its types are for who installs it
    for table in ("data/digits.txt", "measure/tables/cpu_watts.tsv", "measure/tables/carbon_intensity.tsv"):
        assert (place / "greenformers" / table).read_bytes() == (ROOT / "greenformers" / table).read_bytes()
    assert held == {str(path.relative_to(ROOT)) for path in (ROOT / "greenformers").rglob("*.py")}
    # What tokenizers and data sets of the hub need is imported where it is needed.
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import greenformers, greenformers.data\n"
        "assert not {'transformers', 'tokenizers', 'datasets', 'sklearn'} & {*sys.modules}\n"
        "import greenformers.attention.linformer\n"
        "assert greenformers.__file__.startswith(sys.argv[1]), greenformers.__file__\n"
        "print(greenformers.__version__, *greenformers.names())"
    )
    # -I: neither the checkout nor the user's site packages are looked at before the unpacked wheel.
    run = subprocess.run(
        [sys.executable, "-I", "-c", script, str(place)],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert run.stdout.split()[1:] == greenformers.names()
