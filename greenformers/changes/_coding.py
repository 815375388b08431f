"""What changes that leave codes in place of weights have in common; see `greenformers.changes._coded`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given, Need
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import Tensor, nn

    from greenformers.changes._coded import CodedWeight, Layer
    from greenformers.changes._coding_stream import CodingStream
    from greenformers.solve.census import Held
    from greenformers.solve.layer_by_layer import Inputs
    from greenformers.solve.walk import Site
    from greenformers.solve.watch import Trace


@dataclass(frozen=True)
class Coding(Change):
    """Codes of the weights of linear layers, embeddings and experts; by texts layer by layer, or by weights alone."""

    reads_weights: ClassVar[bool] = True
    codes: ClassVar[bool] = True
    from_disk: ClassVar[bool] = True
    by_block: ClassVar[bool] = True

    @property
    def patterns(self) -> tuple[str, ...] | None:
        """Patterns of the paths that get codes; None for all."""
        raise NotImplementedError

    @property
    def looks(self) -> bool:
        """Whether it looks at the inputs of linear layers."""
        raise NotImplementedError

    def by_weights(self, W: "Tensor", given: Given) -> "CodedWeight":
        """The code of a weight, without a look at its inputs."""
        raise NotImplementedError

    def by_inputs(self, W: "Tensor", inputs: "Inputs", given: Given) -> "CodedWeight":
        """The code of a weight whose inputs are known."""
        raise NotImplementedError

    @classmethod
    def weights(cls) -> "type[CodedWeight]":
        """The class of its codes."""
        raise NotImplementedError

    @classmethod
    def empty(cls, path: str, m: int, n: int, described: Any) -> "CodedWeight":
        """A code without numbers, of a description from an untrusted file.

        Raises:
            ValueError: It is not one.
        """
        raise NotImplementedError

    @classmethod
    def layer(cls, module: Any, held: "CodedWeight") -> "Layer":
        """The layer with a code in place of a linear layer or an embedding."""
        raise NotImplementedError

    @property
    def speed(self) -> str:
        """What the report says of speed."""
        return "no faster: weights are unpacked for every product"

    @property
    def needs(self) -> frozenset[Need]:
        """Texts to calibrate with, for what looks at inputs."""
        return frozenset({"calibration"}) if self.looks else frozenset()

    @property
    def shares(self) -> bool:
        """Whether it looks at inputs: at their covariances alone."""
        return self.looks

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that there are layers for codes."""
        from greenformers.changes._coded import codable
        from greenformers.model.experts import as_modules

        super().check(model, before, given)
        if not any(change.factorises for change in before):  # which may leave other layers than there are now
            with as_modules(model):
                codable(model, self.patterns)

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Replace weights by codes.

        Raises:
            ValueError: There is none to replace, the data does not reach a layer that is selected, or numbers are not
                finite.
        """
        from greenformers.model.experts import as_modules
        from greenformers.solve.census import census

        whole = census(model)
        with as_modules(model):
            units, sites = self._coded(model, given)
        return self._report(units, sites, whole)

    def _coded(self, model: "nn.Module", given: Given) -> "tuple[list[UnitReport], list[Site]]":
        from greenformers.changes._coded import codable, commit, unit_of
        from greenformers.solve.layer_by_layer import write
        from greenformers.solve.units import restored_by_errors

        sites = codable(model, self.patterns)
        held: dict[str, CodedWeight] = {}
        errors: dict[str, float] = {}
        traced = self._traced(model, sites, given)
        plan = self.plan(model, sites, traced, given)
        looked_at = {site.path for group in (traced.groups if traced else ()) for site in group}
        alone = [site for site in sites if site.path not in looked_at]
        with restored_by_errors([site.module for site in alone] if traced is not None else []):
            for number, site in enumerate(alone):
                held[site.path], errors[site.path] = plan[site.path].alone(site, given)
                if traced is not None:  # the layers after it are to see it as it will be
                    write(site, held[site.path].rows().detach())
                given.progress("rounding", (number + 1) / len(alone))
            if traced is not None:
                errors |= _by_inputs(model, traced, plan, held, given)
        units = [unit_of(site, held[site.path], errors[site.path]) for site in sites]
        for site in sites:
            commit(model, site, lambda module, code=held[site.path]: self.layer(module, code))  # type: ignore[misc]
        self.settle(model)
        return units, sites

    def plan(
        self, model: "nn.Module", sites: "Sequence[Site]", traced: "Trace | None", given: Given
    ) -> "dict[str, Coding]":
        """The change that gives each weight its code, by path: by default this one."""
        return dict.fromkeys((site.path for site in sites), self)

    def alone(self, site: "Site", given: Given) -> "tuple[CodedWeight, float]":
        """The code of a weight by itself, and the relative error.

        Raises:
            ValueError: The weight is not finite.
        """
        from greenformers.solve.layer_by_layer import error

        W = site.stacked().float()
        if not W.isfinite().all():
            raise ValueError(f"{site.path}: the weight holds values that are not finite")
        weight: Tensor = site.module.get_parameter("weight")
        held = self.by_weights(W, given).of_type(weight.dtype)
        return held, error(W, held.rows().detach())

    def _report(self, units: "Sequence[UnitReport]", sites: "Sequence[Site]", whole: "Sequence[Held]") -> Report:
        from greenformers.changes._coverage import coverage
        from greenformers.changes._options import as_dict

        before, after = (sum(getattr(unit, name) for unit in units) for name in ("before", "after"))
        paths = [path for site in sites for path in site.paths]
        summary = (
            f"{len(units)} layers and embeddings, {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB, "
            f"{8 * after / sum(site.dense for site in sites):.2f} bits a weight in all; {self.speed}; they are "
            f"{coverage(whole, paths)}"
        )
        return Report(as_dict(self), summary, units)

    def in_block(self, part: "nn.Module") -> Self | None:
        """The same change, where there are layers for codes."""
        from greenformers.changes._coded import codable
        from greenformers.changes._selection import selecting
        from greenformers.model.experts import as_modules

        with as_modules(part):
            return selecting(self, lambda select: codable(part, select))

    @property
    def squares(self) -> int:
        """The sum over inputs, its inverse, and a factor of that."""
        return 3 if self.looks else 0

    def stream(self, model: "nn.Module", given: Given) -> "CodingStream":
        """The change applied weight by weight, by weights alone."""
        from greenformers.changes._coding_stream import CodingStream

        if self.looks:
            raise ValueError(
                f"from disk there are no inputs to look at, which {self.label} needs: choose a way by weights alone"
            )
        return CodingStream(model, self.patterns, lambda site: self.alone(site, given), given.progress)

    def streamed(self, stream: "CodingStream") -> Report:
        """The report of a stream that has been read to its end."""
        return self._report(stream.units, stream.sites, stream.whole)

    def _traced(self, model: "nn.Module", sites: "Sequence[Site]", given: Given) -> "Trace | None":
        """The linear layers whose inputs are looked at."""
        from greenformers.solve.share import every
        from greenformers.solve.watch import trace

        looking = [site for site in sites if site.kind == "linear"] if self.looks else []
        if not looking:
            return None
        traced = trace(model, looking, given.batch, every(given.calibration or ()))
        if traced.unreached and self.patterns is not None:
            raise ValueError(f"the data does not reach {traced.unreached[0].path!r}, which is selected: leave it out")
        return traced

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """The forms of codes by path, and groups of paths that share their numbers."""
        from greenformers.changes._coded import coded, groups_of

        forms = {path: layer.held.described for path, layer in coded(model, cls.weights())}
        return {"forms": forms, "ties": groups_of(model, cls.weights())} if forms else None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty layers at the paths of a description."""
        from greenformers.changes._coded import place
        from greenformers.changes._paths import check_keys, check_paths
        from greenformers.model.experts import as_modules

        check_keys(f"the description of {cls.name()}", description, ("forms", "ties"))
        if not isinstance(description["forms"], dict) or not description["forms"]:
            raise ValueError(f"forms of {cls.name()} must be objects by path")
        if not isinstance(description["ties"], list):
            raise ValueError(f"ties of {cls.name()} must be lists of paths")
        for group in description["ties"]:
            check_paths(f"ties of {cls.name()}", group)
        with as_modules(model):
            return place(model, description["forms"], description["ties"], cls.empty, cls.layer)

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the layers with codes."""
        from greenformers.changes._coded import coded

        return [path for path, _ in coded(model, cls.weights())]

    @classmethod
    def ties(cls, model: "nn.Module") -> Iterable[tuple[str, str]]:
        """Numbers that layers share."""
        from greenformers.changes._coded import shared

        return shared(model, cls.weights())


def _by_inputs(
    model: "nn.Module", traced: "Trace", plan: "Mapping[str, Coding]", held: "dict[str, CodedWeight]", given: Given
) -> dict[str, float]:
    from greenformers.solve.layer_by_layer import layer_by_layer

    assert given.calibration is not None

    def solve(site: "Site", W: "Tensor", inputs: "Inputs") -> "Tensor":
        held[site.path] = plan[site.path].by_inputs(W, inputs, given).of_type(W.dtype)
        return held[site.path].rows().detach()

    return layer_by_layer(
        model, traced, given.calibration, solve, shift=True, memory=given.memory,
        progress=lambda share: given.progress("rounding", share),
    )  # fmt: skip
