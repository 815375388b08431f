"""transformers' own common tests of models, on every model class of ours with every mechanism.

    python benchmarks/common_model_tests.py --source transformers-5.23.0 [--names full,performer] [--only save_load]

The tests are `tests/test_modeling_common.py` of the source distribution of the pinned version, which
`pip download --no-deps --no-binary :all: --no-build-isolation transformers==5.23.0` brings. Of what they import, the
tests of exporters and of generation are not in it, and stand empty here. Bar: no failure.
"""

import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path

from _harness import Benchmark, Option, Run
from rich.table import Table

from greenformers import attention

COMMON = "tests/test_modeling_common.py"
ABSENT = {"exporters/test_export.py": "ExportTesterMixin", "generation/test_utils.py": "GenerationTesterMixin"}
"""What the common tests import and the source distribution lacks: the name of the class in each."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="full attention alone",
    options=(
        Option("--source", "folder of transformers' source distribution", Path, Path("transformers"), needs=(COMMON,)),
        Option("--names", "mechanisms, separated by commas; all if not given"),
        Option("--only", "part of the names of the tests that are run; all if not given"),
    ),
)


def package(folder: Path, source: Path) -> None:
    """The common tests as a package, with what is absent standing empty, beside ours."""
    tests = folder / "tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    for path in (source / COMMON).parent.glob("*.py"):
        shutil.copy(path, tests)
    for stub, name in ABSENT.items():
        (tests / stub).parent.mkdir()
        (tests / stub).parent.joinpath("__init__.py").touch()
        (tests / stub).write_text(f"class {name}:\n    pass\n")
    shutil.copy(Path(__file__).parent / "_common_models.py", tests / "test_ours.py")


def main(run: Run) -> bool:
    given = run.given.names
    names = ["full"] if run.quick else attention.names() if given is None else given.split(",")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        package(folder, run.given.source)
        (folder / "names").write_text("\n".join(names))
        report = folder / "report.xml"
        choice = ["-k", run.given.only] if run.given.only else []
        subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", "-W",
                "ignore", "--tb=short", f"--junitxml={report}", f"--rootdir={folder}", *choice, "tests/test_ours.py",
            ],
            cwd=folder, check=False,
        )  # fmt: skip
        cases = list(ElementTree.parse(report).iter("testcase"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        outcome = next((child.tag for child in case if child.tag in {"failure", "error", "skipped"}), "passed")
        counts[case.attrib["classname"].rpartition(".")[2]][outcome] += 1
    table = Table("models", "passed", "skipped", "failed")
    for name, outcomes in sorted(counts.items()):
        run.write(
            [
                run.record("checks", outcomes["passed"], name, {"suite": "transformers common"}),
                run.record("failures", outcomes["failure"] + outcomes["error"], name, {"suite": "transformers common"}),
            ]
        )
        table.add_row(
            name, str(outcomes["passed"]), str(outcomes["skipped"]), str(outcomes["failure"] + outcomes["error"])
        )
    run.console.print(table)
    failed = sum(outcomes["failure"] + outcomes["error"] for outcomes in counts.values())
    passed = sum(outcomes["passed"] for outcomes in counts.values())
    run.console.print(f"{passed} passed, {failed} failed, of {len(cases)} tests of {len(names)} mechanisms")
    return bool(passed) and not failed


if __name__ == "__main__":
    BENCHMARK.run(main)
