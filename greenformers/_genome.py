"""Commands for genomes. Heavy imports are inside the commands, so that --help answers at once."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greenformers import _genome_study
from greenformers import _terminal as terminal
from greenformers._training import training
from greenformers.genome.settings import Finetuning, Pretraining, sequences_of

if TYPE_CHECKING:
    from greenformers.genome.encode import Encoding, Source

app = typer.Typer(
    name="genome",
    help="From reads and variants to diplotypes and their tokens (thesis, chapter 5).",
    no_args_is_help=True,
)

app.add_typer(_genome_study.app, name="study")

FASTA = Annotated[Path, typer.Option("--reference", help="Reference genome, or a part of it: FASTA.")]
Where = Annotated[
    str | None, typer.Option("--region", help="Such as 19:45409039-45412650; by default the only sequence there is.")
]
Mode = Annotated[str, typer.Option(help="diplotype (66 characters) or haplotype (5).")]
Alphabet = Annotated[str, typer.Option(help="Characters of the pairs: iupac, or thesis (table 5.1).")]
Seed = Annotated[int, typer.Option(help="Of what is drawn.")]
Index = Annotated[bool, typer.Option("--index", help="Make indexes that are missing, beside their files.")]


@app.command()
def encode(
    reference: FASTA,
    out: Annotated[Path, typer.Option(help="File to write: a line a person.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="BAM or CRAM of a person each, or VCF or BCF of any number.")
    ] = None,
    region: Where = None,
    cohort: Annotated[
        Path | None, typer.Option(help="Table (.tsv, .csv) with person, phenotype, and path if there are no FILES.")
    ] = None,
    mode: Mode = "diplotype",
    alphabet: Alphabet = "iupac",
    depth: Annotated[int, typer.Option(help="Reads: fragments at a position at least; N below.")] = 3,
    count: Annotated[int, typer.Option(help="Reads: fragments with the second symbol at least.")] = 2,
    share: Annotated[float, typer.Option(help="Reads: share of fragments with the second symbol at least.")] = 0.2,
    base_quality: Annotated[int, typer.Option(help="Reads: quality of a base at least.")] = 13,
    mapping_quality: Annotated[int, typer.Option(help="Reads: quality of an alignment at least.")] = 0,
    workers: Annotated[int, typer.Option(help="Files read at a time, by a process each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the work was stopped.")] = False,
    index: Index = False,
) -> None:
    """Write everybody's diplotype, or both haplotypes, of a region."""
    from greenformers.genome.cohort import Cohort
    from greenformers.genome.encode import Encoding, people
    from greenformers.genome.encode import encode as run
    from greenformers.genome.files import GenomeError, make_index
    from greenformers.genome.reads import Thresholds
    from greenformers.genome.reference import Reference

    console = terminal.console(stderr=True)
    thresholds = Thresholds(depth, count, share, base_quality, mapping_quality)
    group = None if cohort is None else Cohort.load(cohort)
    own: dict[Path, str] = {}
    for person in [] if group is None else group.people:
        if person.path in own:
            both = f"{own[person.path]} and {person.name}"
            raise GenomeError(f"{cohort}: {both} have one path, {person.path} both; name it as FILES instead")
        if person.path is not None:
            own[person.path] = person.name
    if bool(files) == bool(own):
        raise ValueError("name FILES, or a cohort with the column path; not both")
    paths = [*(files or own)]
    if index:
        for path in [*paths, reference]:
            if path.name.endswith((".bam", ".cram", ".vcf.gz", ".bcf", ".fa", ".fasta")) and (made := make_index(path)):
                print(f"index:  {made}", file=sys.stderr)
    where = Reference(reference).region(region)
    encoding = Encoding(reference, where, mode, alphabet, thresholds)
    phenotypes = None if group is None else {person.name: person.phenotype for person in group.people}
    found = {path: [own[path]] if path in own else people(path) for path in paths}
    seen: dict[str, Path] = {}
    for path, names in found.items():
        for name in names:
            if name in seen:
                raise GenomeError(f"{path}: has person {name}, who is in {seen[name]} too")
            seen[name] = path
    if phenotypes is not None and (missing := [name for name in phenotypes if name not in seen]):
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise GenomeError(f"{cohort}: no file has person {missing[0]}{more}")
    sources = _sources(found, own, phenotypes)
    total = sum(len(source.people) for source in sources)
    with terminal.Steps(console) as steps:
        for done in run(sources, encoding, out, phenotypes=phenotypes, workers=workers, resume=resume):
            steps("people", done / total)
    _encoded(out, encoding, total, len(seen) - total, group)


def _sources(found: dict[Path, list[str]], own: dict[Path, str], phenotypes: dict[str, str] | None) -> "list[Source]":
    from greenformers.genome.encode import Source, is_reads
    from greenformers.genome.files import GenomeError

    sources = []
    for path, names in found.items():
        if is_reads(path) and len(names) > 1 and path not in own:
            raise GenomeError(f"{path}: has reads of {len(names)} people, must be of one")
        wanted = tuple(name for name in names if phenotypes is None or name in phenotypes)
        if wanted:
            sources.append(Source(path, wanted))
    return sources


def _encoded(out: Path, encoding: "Encoding", people: int, others: int, group: object) -> None:
    """What has been done, without anything of anybody."""
    from greenformers.genome.cohort import Cohort

    region = encoding.region
    print(f"{out}: {people:,} people, {encoding.mode}s of {region} ({len(region):,} positions)")
    if isinstance(group, Cohort):
        balance = ", ".join(f"{count:,} {phenotype}" for phenotype, count in group.balance().items())
        print(f"phenotypes: {balance}")
        if group.unknown or others:
            print(f"left out: {group.unknown:,} without phenotype, {others:,} not in the table")


@app.command()
def tokenize(
    out: Annotated[Path, typer.Option(help="Folder of the tokenizer.")],
    reference: Annotated[Path | None, typer.Option(help="Learn from a genome: FASTA.")] = None,
    region: Where = None,
    sites: Annotated[Path | None, typer.Option(help="VCF or BCF: common variants to put into the genome.")] = None,
    least: Annotated[float, typer.Option(help="Frequency of the rarer allele that makes a variant common.")] = 0.01,
    sequences: Annotated[Path | None, typer.Option(help="Learn from what `genome encode` wrote instead.")] = None,
    mode: Mode = "diplotype",
    alphabet: Alphabet = "iupac",
    size: Annotated[int, typer.Option(help="Tokens.")] = 32_000,
    longest: Annotated[int, typer.Option(help="Characters of a subword at most.")] = 16,
    pattern: Annotated[
        str | None, typer.Option(help="k-mers instead of subwords: 111111 is a 6-mer, 110011 a gapped one of 4.")
    ] = None,
    stride: Annotated[int, typer.Option(help="Places from one k-mer to the next.")] = 1,
    starts: Annotated[int, typer.Option(help="Beginnings from which the genome is cut into sentences.")] = 50,
    sentences: Annotated[
        int, typer.Option(help="Sentences at most, drawn of all; one takes about 30 KB of memory.")
    ] = 100_000,
    max_length: Annotated[int, typer.Option(help="Tokens of a sequence of the network at most.")] = 4096,
    seed: Seed = 0,
) -> None:
    """Learn tokens: subwords of SentencePiece (BPE), or k-mers. The folder is for `from_pretrained`."""
    from greenformers.genome import corpus, tokenizer
    from greenformers.genome.diplotype import diplotype, text
    from greenformers.genome.encode import Encoding
    from greenformers.genome.files import Region
    from greenformers.genome.reference import Reference

    terminal.quiet()
    if (reference is None) == (sequences is None):
        raise ValueError("name --reference or --sequences, one of them")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already, and not an empty folder")
    if sequences is not None and (sites is not None or (mode, alphabet) != ("diplotype", "iupac")):
        raise ValueError("sites, mode and alphabet are for --reference; those of --sequences are the file's own")
    Encoding(Path(), Region("", 0, 0), mode, alphabet)
    for name, value, least_value in (("seed", seed, 0), ("starts", starts, 1), ("sentences", sentences, 1)):
        if value < least_value:
            raise ValueError(f"{name} must be at least {least_value}, got {value}")
    whole: list[str] = []
    if reference is not None:
        genome = Reference(reference)
        both = corpus.haplotypes(genome, genome.region(region), sites, least=least)
        whole = [text(diplotype(*both), alphabet)] if mode == "diplotype" else [one.sequence() for one in both]
        read = corpus.sentences(whole, seed, starts=starts, count=sentences)
    else:
        assert sequences is not None
        mode, alphabet = corpus.kind_of(sequences)
        read = corpus.sentences_of(sequences, seed, count=sentences)
    counted = terminal.Counted(read)
    with terminal.console(stderr=True).status("learning tokens"):
        if pattern is not None:
            made = tokenizer.kmer_tokens(counted, pattern=pattern, stride=stride, size=size, max_length=max_length)
        else:
            letters = tokenizer.base_tokens(alphabet if mode == "diplotype" else None)
            made = tokenizer.subwords(counted, size=size, characters=letters, longest=longest, max_length=max_length)
        made.save_pretrained(out)
        mean, vocabulary = None, 0.0
        if pattern is None:
            vocabulary = tokenizer.mean_token(made)
            mean = tokenizer.mean_length(made, whole or corpus.sentences_of(sequences or Path(), seed, count=1000))
    print(f"{out}: {len(made):,} tokens of {counted.count:,} sentences")
    if mean is not None:
        spoken = f"in the sequences a token has {mean:.2f} characters on average, in the vocabulary {vocabulary:.2f}"
        print(f"{spoken} (thesis: 8.7, chr19)")


@app.command()
def simulate(
    reference: FASTA,
    out: Annotated[Path, typer.Option(help="File to write: a table of phenotypes, or .vcf.gz of genotypes.")],
    region: Where = None,
    variants: Annotated[Path | None, typer.Option(help="Phenotypes for the people of a VCF or BCF.")] = None,
    preset: Annotated[str | None, typer.Option(help="apoe37 or apoe38: published odds ratios, GRCh37 or 38.")] = None,
    effects: Annotated[
        Path | None, typer.Option(help="Table (.tsv) with position, allele and odds_ratio, of each copy.")
    ] = None,
    prevalence: Annotated[float, typer.Option(help="Share of people with the disease.")] = 0.5,
    sites: Annotated[Path | None, typer.Option(help="Genotypes drawn from the frequencies (AF) of a VCF.")] = None,
    people: Annotated[int | None, typer.Option(help="How many to draw; 1000 if not given.")] = None,
    seed: Seed = 0,
) -> None:
    """Make up phenotypes for real genotypes, or genotypes from frequencies (without linkage), to try a pipeline."""
    from greenformers.genome import simulate as made
    from greenformers.genome.reference import Reference

    if (variants is None) == (sites is None):
        raise ValueError("name --variants, for phenotypes, or --sites, for genotypes; one of them")
    if variants is not None and (preset is None) == (effects is None):
        raise ValueError("name --preset or --effects, one of them")
    if sites is not None and (preset is not None or effects is not None):
        raise ValueError("preset and effects are for --variants")
    if variants is not None and people is not None:
        raise ValueError("people are for --sites")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if out.exists():
        raise ValueError(f"{out} is there already")
    genome = Reference(reference)
    if sites is not None:
        where = genome.region(region)
        with terminal.Steps(terminal.console(stderr=True)) as steps:
            written, count = 0, 1000 if people is None else people
            for place, written in made.synthetic(sites, genome, where, count, out, seed):  # noqa: B007
                steps("sites", (place - where.start) / len(where))
        print(f"{out}: {count:,} synthetic people, {written:,} sites, no linkage")
        return
    assert variants is not None
    odds, source = made.odds_of(variants, genome, region, preset, effects)
    counts = made.write_phenotypes(out, odds, prevalence, seed, source)
    print(f"{out}: {counts['1']:,} people with the made-up disease, {counts['0']:,} without")
    if counts["left out"]:
        print(f"left out: {counts['left out']:,} without a published odds ratio")


app.command("pretrain")(
    training(
        Pretraining,
        """Learn a genome by heart: masked tokens of sentences of it, or of encoded people.

    The run folder OUT is as that of `greenformers train`; a run that
    was stopped goes on with --resume.
    """,
    )
)


def _finetune(given: dict[str, Any], out: Path, resume: bool, splits: int, known: str, results: Path | None) -> None:
    from greenformers.genome import judge
    from greenformers.genome.finetune import finetune
    from greenformers.genome.people import People
    from greenformers.measure.record import append, context

    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out} is there already; --resume goes on with it")
    settings = Finetuning(**given)
    positions = terminal.numbers("known", known)
    # What is wrong with these is found before the training, not after it.
    people = People.load(sequences_of(settings), settings.region)
    features = judge.features(people, positions)
    settings.task()
    if results is not None:
        terminal.check_writable(results)
    console = terminal.console()
    with terminal.resumable():
        found = finetune(settings, out, splits, console)
    records = judge.records(settings, found, features, people)
    console.print(judge.table(records))
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records])


app.command("finetune")(
    training(
        Finetuning,
        """Learn who has a disease from diplotypes, on several draws of people, beside logistic regression.

    OUT holds a run folder a draw, split0 and so on. With --init a
    pre-trained run is where they start. Work that was stopped goes on
    with --resume.
    """,
        _finetune,
        splits=(Annotated[int, typer.Option(help="Draws of train, valid and test people.")], 5),
        known=(Annotated[str, typer.Option(help="Positions of known variants, for a baseline of their own.")], ""),
        results=(Annotated[Path | None, typer.Option(help="File the records are added to.")], None),
    )
)


@app.command()
def demo(
    data: Annotated[Path, typer.Option(help="Folder with genomics_apoe_1000g and genomics_chr20_1mb.")],
    out: Annotated[Path, typer.Option(help="Folder of everything, and of the page.")] = Path("genome_demo"),
    splits: Annotated[int, typer.Option(help="Draws of train, valid and test people.")] = 5,
    people: Annotated[int, typer.Option(help="Synthetic people.")] = 2000,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the work was stopped.")] = False,
    results: Annotated[Path | None, typer.Option(help="File the records are added to.")] = None,
) -> None:
    """Go through it all at small size: a made-up disease of real people, and of synthetic ones. Below 20 minutes.

    Genotypes of 2,504 people of 1000 Genomes at APOE, with a disease
    that two variants make likelier; synthetic people of chr20, of whom
    two variants matter together, or none does, or some around a gene.
    """
    from greenformers.genome import judge
    from greenformers.genome.demo import Demo, Files
    from greenformers.genome.demo_page import said, write
    from greenformers.measure.record import append, context

    terminal.quiet()
    if splits < 1 or people < 200:
        raise ValueError(f"splits must be at least 1 and people at least 200, got {splits} and {people}")
    files = Files.under(data)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not resume)):
        raise ValueError(f"{out} is there already; --resume goes on with it")
    if results is not None:
        terminal.check_writable(results)
    console = terminal.console()
    made = Demo(files, out, console, splits, people)
    parts = []
    with terminal.resumable():
        for part in (made.apoe, partial(made.pair, effect=True), partial(made.pair, effect=False), made.surroundings):
            parts.append(part())
            console.print(f"[bold]{parts[-1].title}[/bold]")
            for setting in dict.fromkeys(str(record.setting) for record in parts[-1].records):
                console.print(judge.table([one for one in parts[-1].records if str(one.setting) == setting]))
    about = context(terminal.command(), 0)
    parts = [one._replace(records=[replace(record, context=about) for record in one.records]) for one in parts]
    page = write(parts, out)
    console.print(f"{said(parts)}\npage: {page}", soft_wrap=True)
    if results is not None:
        titled = [
            replace(record, benchmark="genome_demo", setting={"study": part.title} | record.setting)
            for part in parts for record in part.records
        ]  # fmt: skip
        append(results, titled)


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one finished run of `genome finetune`.")],
    out: Annotated[Path, typer.Option(help="Folder of the picture and the table.")] = Path("explain"),
    names: Annotated[Path | None, typer.Option(help="VCF or BCF: names (ID) of known variants.")] = None,
    people: Annotated[int, typer.Option(help="Test people that are looked at, at most.")] = 200,
    steps: Annotated[int, typer.Option(help="Of the sum that stands for the integral.")] = 32,
    shown: Annotated[int, typer.Option(help="Variants that are named.")] = 10,
) -> None:
    """Show which positions a fine-tuned network used: integrated gradients, along the region."""
    from rich.table import Table

    from greenformers.genome import explain as module
    from greenformers.report.plot import save

    terminal.quiet()
    for name, value, least in (("people", people, 2), ("steps", steps, 1), ("shown", shown, 1)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    with terminal.Steps(terminal.console(stderr=True)) as bars:
        found = module.explained(run, people=people, steps=steps, names=names, progress=partial(bars, "people"))
    out.mkdir(parents=True, exist_ok=True)
    table = Table("position", "variant", "importance", title=f"{found.people} test people, {found.region}")
    for position, score in found.ranked[:shown]:
        table.add_row(f"{position:,}", found.names.get(position, ""), f"{score:.4f}")
    console = terminal.console()
    console.print(table)
    picture = out / "track.png"
    save(module.picture(found, shown), picture)
    lines = [f"{position}\t{found.names.get(position, '')}\t{score:.6g}\n" for position, score in found.ranked]
    (out / "variants.tsv").write_text("position\tname\timportance\n" + "".join(lines))
    print(f"picture: {picture}\ntable:   {out / 'variants.tsv'}")
