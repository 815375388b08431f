"""Sparse weights, without training: SparseGPT (Frantar & Alistarh 2023, arXiv:2301.00774), Wanda (Sun 2023,
arXiv:2306.11695) or the least in absolute value. The arithmetic is that of `greenformers.solve.sparsify`.
"""  # noqa: D205

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import nn

    from greenformers.solve.sparse_linear import Sparse as SparseWeight
    from greenformers.solve.walk import Site

PATTERNS = ("any", "2:4")
SPEED = (
    "1.0x the speed in torch, which multiplies by zeros as well (2:4 is faster on NVIDIA GPUs as torch.sparse's "
    "semi-structured tensors, int8 with many zeros by OpenVINO's sparse weights decompression on some CPUs)"
)


@dataclass(frozen=True)
class Sparse(Change):
    """Zeros in place of single weights of linear layers: fewer bytes in a file, and the same speed."""

    keep: float = option(0.5, "Share of the weights to keep, in (0, 1).", "--sparse")
    pattern: str = option("any", "Where zeros may be: any, or 2:4, two of each four inputs.", "--sparse-pattern")
    by: str = option(
        "sparsegpt",
        "How weights are chosen. With texts: sparsegpt, which corrects the others, or wanda; by weights alone: "
        "magnitude, of each matrix, magnitude_rows, of each row, or magnitude_all, of all matrices together.",
        "--sparse-by",
    )
    select: tuple[str, ...] | None = option(
        None, "Layers to prune: patterns of paths such as '*.query'; by default all linear layers but those that make "
        "a model's outputs.",
    )  # fmt: skip

    order: ClassVar[int] = 40
    reads_weights: ClassVar[bool] = True
    sparsifies: ClassVar[bool] = True
    by_block: ClassVar[bool] = True

    def __post_init__(self) -> None:
        from greenformers.solve.prune_weights import SOLVERS

        if not 0 < self.keep < 1:
            raise ValueError(f"weights to keep must be a share in (0, 1), got {self.keep}")
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern must be of {', '.join(PATTERNS)}; got {self.pattern!r}")
        if self.by not in SOLVERS:
            raise ValueError(f"by must be of {', '.join(SOLVERS)}; got {self.by!r}")
        if self.two_of_four and self.keep != 0.5:
            raise ValueError(f"the pattern 2:4 keeps 0.5 of the weights, got {self.keep}")
        if self.two_of_four and self.by in ("magnitude_rows", "magnitude_all"):
            raise ValueError(f"the pattern 2:4 chooses among each four inputs: by magnitude, not {self.by}")

    @property
    def two_of_four(self) -> bool:
        """Whether two of each four neighbouring inputs go."""
        return self.pattern == "2:4"

    @property
    def label(self) -> str:
        """The share or the pattern, as in "sparse 0.5" or "sparse 2:4"."""
        return f"sparse {self.pattern if self.two_of_four else format(self.keep, 'g')}"

    @property
    def needs(self) -> frozenset[Need]:
        """Texts to calibrate with, for what looks at inputs."""
        from greenformers.solve.prune_weights import LOOKING

        return frozenset({"calibration"} if self.by in LOOKING else ())

    @property
    def shares(self) -> bool:
        """Whether it looks at inputs: at their covariances alone."""
        return bool(self.needs)

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that there are layers to prune."""
        from greenformers.solve.sparse_sites import prunable

        super().check(model, before, given)
        if not any(change.factorises for change in before):  # which may leave other layers than there are now
            prunable(model, self.select, two_of_four=self.two_of_four)

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Put zeros in place of weights.

        Raises:
            ValueError: There is no layer to prune, the data does not reach one that is selected, or numbers are not
                finite.
        """
        from greenformers.changes._coverage import coverage
        from greenformers.changes._options import as_dict
        from greenformers.changes._sparse import commit
        from greenformers.solve.census import census
        from greenformers.solve.prune_weights import LOOKING, prune_by_inputs, prune_by_weights
        from greenformers.solve.share import every
        from greenformers.solve.sparse_sites import prunable
        from greenformers.solve.watch import trace

        held = census(model)
        sites, dense = prunable(model, self.select, two_of_four=self.two_of_four)
        how: dict[str, Any] = {"keep": self.keep, "two_of_four": self.two_of_four}
        unreached: list[Site] = []
        if self.by in LOOKING:
            assert given.calibration is not None
            traced = trace(model, sites, given.batch, every(given.calibration))
            unreached = traced.unreached
            if unreached and self.select is not None:
                raise ValueError(f"the data does not reach {unreached[0].path!r}, which is selected: leave it out")
            sites = [site for site in sites if site not in unreached]
            errors = prune_by_inputs(
                model, traced, given.calibration, self.by, **how, memory=given.memory,
                progress=lambda share: given.progress("pruning", share),
            )  # fmt: skip
        else:
            errors = prune_by_weights(sites, self.by, **how)
        layers = [commit(model, site) for site in sites]
        units = [_unit(site, layer, errors[site.path]) for site, layer in zip(sites, layers, strict=True)]
        units += [_unit(site, None, 0.0) for site in (*dense, *unreached)]
        total = sum(site.dense for site in sites)
        left = sum(layer.sizes[0] for layer in layers)
        paths = [path for site in sites for path in site.paths]
        stays = f"; dense stay {', '.join(site.path for site in dense)}" if dense else ""
        summary = (
            f"{left:,} of {total:,} weights kept in {len(sites)} layers ({100 * left / total:.1f} %), by {self.by}; "
            f"{SPEED}{stays}; they are {coverage(held, paths, [site.path for site in unreached])}"
        )
        return Report(as_dict(self), summary, units)

    def in_block(self, part: "nn.Module") -> Self | None:
        """The same change, where there are layers to prune.

        Raises:
            ValueError: Weights of all matrices are to be compared.
        """
        from greenformers.changes._selection import selecting
        from greenformers.solve.sparse_sites import prunable

        if self.by == "magnitude_all":
            raise ValueError("magnitude_all compares the weights of all layers: block by block, from disk, it cannot")
        return selecting(self, lambda select: prunable(part, select, two_of_four=self.two_of_four))

    @property
    def squares(self) -> int:
        """The sum over inputs, its inverse, and a factor of that."""
        from greenformers.solve.prune_weights import LOOKING

        return 3 if self.by in LOOKING else 0

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """The number of weights that are not 0 of each sparse layer, by path."""
        from greenformers.changes._sparse import counts

        return counts(model) or None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put what a file holds of sparse layers at the paths of a description, empty."""
        from greenformers.changes._sparse import checked, place

        return place(model, checked(description))

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the sparse layers."""
        from greenformers.changes._sparse import counts

        return counts(model)

    @classmethod
    def settle(cls, model: "nn.Module") -> None:
        """Make sparse layers of the masks and values that were read.

        Raises:
            ValueError: A mask does not fit its values.
        """
        from greenformers.changes._sparse import settle

        settle(model)

    @classmethod
    def revert(cls, model: "nn.Module") -> int:
        """Make every sparse layer a linear layer of the network's class again, with its zeros. The number of layers."""
        from greenformers.changes._sparse import revert

        return revert(model)


def _unit(site: "Site", layer: "SparseWeight | None", lost: float) -> UnitReport:
    weight: Any = site.module.weight
    before = weight.numel() * weight.element_size()
    form = "dense" if layer is None else f"{layer.sizes[0]:,} of {site.dense:,} weights"
    return UnitReport(site.path, form, before, before if layer is None else layer.stored_bytes, None, lost)
