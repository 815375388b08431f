"""Reads to diplotypes: speed beside a loop over the columns of pysam's pileup, and memory over many people.

    python benchmarks/genome_reads.py [--quick] [--data ../shared/data] [--json results/genome_reads.jsonl]

The loops do what the thesis describes (5.3.1): of every column the two most frequent symbols. One takes a column's
bases as pysam joins them, the other asks read by read, as pysam's guide does. Files: two real ones, and reads of 150
bases drawn from synthetic haplotypes of 34 kb (frequencies of chr20), 5 and 30 deep, 0.5 % of the bases drawn anew.
Aim: at least 10 times as fast. Memory: 1,000 people of 34 kb, the same for 100 and 1,000.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pysam
from _harness import Benchmark, Run, data
from rich.progress import track
from rich.table import Table

from greenformers.genome import reads, variants
from greenformers.genome.diplotype import DEL, PAIR, SYMBOLS, Haplotype, decoded, inserted
from greenformers.genome.files import Region, make_index
from greenformers.genome.reads import Thresholds
from greenformers.genome.reference import Reference
from greenformers.genome.simulate import synthetic
from greenformers.measure.record import Record

REGION = "z:1-34000"
LENGTH, WRONG = 150, 0.005
THRESHOLDS = Thresholds()
REAL = {"HG00100, 12 deep": ("mpileup.1.bam", "mpileup.ref.fa"), "NA12878, 36 deep": ("NA12878.chr22.tiny.bam", "q.fa")}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="20 people, few repeats",
    options=(data("--data", ".", "folder of the data sets", "genomics_chr20_1mb", "genomics_bam"),),
)


def main(run: Run) -> None:
    data_sets, people = run.given.data, 20 if run.quick else 1000
    records: list[Record] = []
    table = Table("reads", "positions", "greenformers (ms)", "columns (ms)", "read by read (ms)", "same positions")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, (bam, fasta) in REAL.items():
            for file in (bam, fasta):
                (folder / file).write_bytes((data_sets / "genomics_bam" / file).read_bytes())
            make_index(folder / bam)
            reference = Reference(folder / fasta)
            table.add_row(*speed(run, records, title, folder / bam, reference, reference.region(None)))
        chr20 = data_sets / "genomics_chr20_1mb"
        fasta, vcf = next(chr20.glob("*.fa.gz")), next(chr20.glob("*.vcf.gz"))
        reference = Reference(fasta)
        region = reference.region(REGION)
        list(synthetic(vcf, reference, region, people, folder / "people.vcf.gz", 0))
        called = variants.read(folder / "people.vcf.gz", reference, region)
        for depth in (5, 30):
            path = folder / f"depth{depth}.bam"
            write_bam(path, called.haplotypes(called.people[0]), region.contig, depth, 0)
            table.add_row(*speed(run, records, f"synthetic, {depth} deep", path, reference, region))
        many = folder / "many"
        many.mkdir()
        for seed, person in enumerate(track(called.people, "writing reads")):
            write_bam(many / f"{person}.bam", called.haplotypes(person), region.contig, 5, seed)
        memory = Table("people", "peak memory (MiB)", "seconds")
        for count in (people // 10, people):
            mib, seconds = peak(many, fasta, count)
            memory.add_row(f"{count:,}", f"{mib:.0f}", f"{seconds:.1f}")
            setting = {"people": count, "positions": len(region)}
            records.append(run.record("peak_memory_inference", mib, "greenformers", setting))
    run.show(table, memory)
    run.write(records)


def columns(path: Path, region: Region) -> Iterator[tuple[int, list[str]]]:
    """Place and symbols of every column, as pysam joins them; what is inserted is asked for, and left out."""
    with pysam.AlignmentFile(str(path)) as file:
        for column in _pileup(file, region):
            # What is inserted, +2ac, comes after the base.
            yield column.reference_pos, [symbol[:1].upper() for symbol in column.get_query_sequences(add_indels=True)]


def read_by_read(path: Path, region: Region) -> Iterator[tuple[int, list[str]]]:
    """The same, each read of a column asked for its base, as pysam's guide does it."""
    with pysam.AlignmentFile(str(path)) as file:
        for column in _pileup(file, region):
            names = []
            for read in column.pileups:
                if read.is_del:
                    names.append("*")
                elif not read.is_refskip:
                    names.append((read.alignment.query_sequence or "")[read.query_position or 0])
            yield column.reference_pos, names


def _pileup(file: pysam.AlignmentFile, region: Region) -> pysam.IteratorColumn:
    quality = THRESHOLDS.base_quality
    place = region.contig, region.start, region.end
    return file.pileup(*place, truncate=True, max_depth=10**6, min_base_quality=quality)


def loop(pileup: Iterator[tuple[int, list[str]]], region: Region) -> list[int]:
    """The two most frequent symbols of every column, in Python."""
    pairs = [int(PAIR[4, 4])] * len(region)
    for position, names in pileup:
        seen = Counter("DEL" if name == "*" else name for name in names if name != "N")
        if seen.total() < THRESHOLDS.depth:
            continue
        best = seen.most_common(2)
        there = best[-1][1] >= max(THRESHOLDS.count, THRESHOLDS.share * seen.total())
        second = best[-1][0] if there else best[0][0]
        pairs[position - region.start] = int(PAIR[SYMBOLS.index(best[0][0]), SYMBOLS.index(second)])
    return pairs


def drawn(haplotype: Haplotype, source: np.random.Generator, start: int) -> tuple[int, str, list[tuple[int, int]]]:
    """A read of a haplotype from a position on: where it is aligned, its bases, its CIGAR."""
    bases, cigar = list[int](), list[list[int]]()
    place = start
    while len(bases) < LENGTH and place < len(haplotype.bases):
        steps: list[tuple[int, int | None]]
        steps = [(2, None)] if haplotype.bases[place] == DEL else [(0, int(haplotype.bases[place]))]
        steps += [(1, int(code)) for code in haplotype.inserted.get(place + 1, ())]
        for operation, base in steps:
            if cigar and cigar[-1][0] == operation:
                cigar[-1][1] += 1
            else:
                cigar.append([operation, 1])
            if base is not None:
                bases.append(base)
        place += 1
    while cigar[-1][0] == 2:
        cigar.pop()
    codes = np.array(bases, dtype=np.uint8)
    wrong = source.random(len(codes)) < WRONG
    codes[wrong] = source.integers(0, 4, size=int(wrong.sum()))
    return start, decoded(codes), [(operation, length) for operation, length in cigar]


def write_bam(path: Path, both: tuple[Haplotype, Haplotype], contig: str, depth: int, seed: int) -> None:
    """Reads of two haplotypes."""
    source = np.random.default_rng(seed)
    length = len(both[0].bases)
    header = {"HD": {"VN": "1.6", "SO": "coordinate"}, "SQ": [{"SN": contig, "LN": length}]}
    starts = np.sort(source.integers(0, length - LENGTH, size=depth * length // LENGTH))
    # A read cannot begin with a deletion.
    sides = [(int(start), both[int(source.integers(0, 2))]) for start in starts]
    with pysam.AlignmentFile(str(path), "wb", header=header) as file:
        for number, (start, side) in enumerate((start, side) for start, side in sides if side.bases[start] != DEL):
            place, bases, cigar = drawn(side, source, start)
            segment = pysam.AlignedSegment(file.header)
            segment.query_name, segment.query_sequence, segment.flag = f"r{number}", bases, 0
            segment.reference_id, segment.reference_start = 0, place
            segment.mapping_quality, segment.cigartuples = 60, cigar
            segment.query_qualities = pysam.qualitystring_to_array("I" * len(bases))
            file.write(segment)
    make_index(path)


def speed(run: Run, records: list[Record], name: str, path: Path, reference: Reference, region: Region) -> list[str]:
    """Both ways on one file: their records are added, and the row of the table is returned."""
    calls: dict[str, Callable[[], object]] = {
        "greenformers": lambda: reads.read(path, reference, region, THRESHOLDS),
        "columns": lambda: loop(columns(path, region), region),
        "read by read": lambda: loop(read_by_read(path, region), region),
    }
    times = run.times(calls, repeats=9, quick=2)
    ours = reads.read(path, reference, region, THRESHOLDS)
    same = float((np.array(loop(columns(path, region), region)) == ours[~inserted(ours)]).mean())
    setting = {"file": name, "positions": len(region)}
    milliseconds = {side: 1000 * timing.median for side, timing in times.items()}
    base = milliseconds.pop("greenformers")
    peer = next(iter(milliseconds))
    ratio = milliseconds[peer] / base
    records += [
        run.record("latency", base, "greenformers", setting, ratio=ratio, to=peer),
        *(run.record("latency", value, side, setting) for side, value in milliseconds.items()),
    ]
    cells = [f"{value:.1f}, {value / base:.1f}x" for value in milliseconds.values()]
    return [name, f"{len(region):,}", f"{base:.1f}", *cells, f"{100 * same:.2f} %"]


def peak(folder: Path, reference: Path, count: int) -> tuple[float, float]:
    """MiB and seconds of a process that encodes so many people."""
    script = (
        "import resource, sys, time; from pathlib import Path; from greenformers.genome import encode as e;"
        "from greenformers.genome.reference import Reference; start = time.perf_counter();"
        "files = sorted(Path(sys.argv[1]).glob('*.bam'))[: int(sys.argv[3])]; fasta = Path(sys.argv[2]);"
        f"where = Reference(fasta).region({REGION!r}); sources = [e.Source(file, (file.stem,)) for file in files];"
        "out = Path(sys.argv[1]) / f'{len(files)}.tsv'; list(e.encode(sources, e.Encoding(fasta, where), out));"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.perf_counter() - start)"
    )
    words = [sys.executable, "-c", script, str(folder), str(reference), str(count)]
    memory, seconds = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    return float(memory), float(seconds)


if __name__ == "__main__":
    BENCHMARK.run(main)
