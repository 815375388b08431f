"""Made-up phenotypes and genotypes: of the frequencies and odds ratios they were asked for."""

import csv
import math
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from made import ABSENT, DATA, bases, fasta, vcf

from greenformers.genome import simulate, variants
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference
from greenformers.genome.simulate import Effect

pytest.importorskip("pysam", reason="the genome extra is not installed")

APOE = DATA / "genomics_apoe_1000g"
SEQUENCE = bases(300, 21)
WHOLE = Region("19", 0, 300)
OTHER = {"A": "C", "C": "G", "G": "T", "T": "A"}
HEAD = "position\tallele\todds_ratio\n"


@pytest.fixture
def reference(tmp_path):
    return Reference(fasta(tmp_path / "made.fa", **{"19": SEQUENCE}))


@pytest.fixture(scope="module")
def apoe():
    if not APOE.is_dir():
        pytest.skip(ABSENT)
    reference = Reference(APOE / "apoe_exon4_cds_GRCh37.fa")
    path = APOE / "apoe_exon4_1000g_phase3.vcf.gz"
    return path, reference, variants.read(path, reference, reference.region(None))


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def record(place, *calls, alt=None):
    return place, SEQUENCE[place - 1], alt or OTHER[SEQUENCE[place - 1]], *calls


def sites(path, *abouts):
    """Sites at 10, 20 and so on: alternatives and INFO of each."""
    plain = vcf(path, [(10 * n, SEQUENCE[10 * n - 1], alt) for n, (alt, _) in enumerate(abouts, 1)], people=())
    about = iter([about for _, about in abouts])
    lines = [row.split("\t") for row in plain.read_text().splitlines()]
    lines = [row if row[0].startswith("#") else [*row[:7], next(about)] for row in lines]
    plain.write_text("".join("\t".join(row) + "\n" for row in lines))
    return plain


def test_apoe_genotypes_of_everybody(apoe):
    _, reference, called = apoe
    counts = Counter(simulate.epsilon(called, reference.region(None), 37))
    haplotypes = np.load(APOE / "apoe_haplotypes.npz")
    assert sum(counts.values()) == len(haplotypes["sample"]) == 2504
    # By the frequencies of both alleles alone: of rs429358 C (e4) and of rs7412 T (e2).
    alleles = Counter(allele for genotype, count in counts.items() for allele in genotype.split("/") * count)
    alternatives = []
    for position in simulate.APOE_SITES[37]:
        (at,) = [
            n for n, edits in enumerate(called.edits) if edits[1].start == position - 1 - reference.region(None).start
        ]
        alternatives.append(sum(sum(allele == 1 for allele in call) for call, _ in called.calls[at].values()))
    # One person has e1, which is both.
    assert (alleles["e4"] + 1, alleles["e2"] + 1) == tuple(alternatives) == (754, 376)
    assert sum(alleles.values()) == 5008
    assert set(counts) == {*simulate.APOE, "e1/e4"}
    assert counts["e1/e4"] == 1


def test_apoe_cases_have_e4_more_often(apoe, tmp_path):
    path, reference, called = apoe
    odds, source = simulate.odds_of(path, reference, None, "apoe37", None)
    counts = simulate.write_phenotypes(tmp_path / "out.tsv", odds, 0.3, 5, source)
    assert counts["left out"] == 1
    assert counts["0"] + counts["1"] == 2503
    # Four standard deviations.
    assert counts["1"] == pytest.approx(0.3 * 2503, abs=4 * math.sqrt(0.21 * 2503))
    genotypes = dict(zip(called.people, simulate.epsilon(called, reference.region(None), 37), strict=True))
    table = rows(tmp_path / "out.tsv")
    assert [row["person"] for row in table] == [name for name in called.people if genotypes[name] != "e1/e4"]
    assert {row["source"] for row in table} == {"simulated: apoe37, prevalence 0.3, seed 5"}
    of = {ill: [genotypes[row["person"]] for row in table if row["phenotype"] == ill] for ill in "01"}
    share = {ill: sum("e4" in genotype for genotype in all_) / len(all_) for ill, all_ in of.items()}
    assert share["1"] > 1.5 * share["0"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.tsv"]


def test_apoe_odds_ratios(apoe):
    path, reference, called = apoe
    odds, _ = simulate.odds_of(path, reference, None, "apoe37", None)
    genotypes = [genotype for genotype in simulate.epsilon(called, reference.region(None), 37) if genotype != "e1/e4"]
    scores = [score for score in odds.values() if score is not None]
    drawn = np.array([simulate.phenotypes(scores, 0.2, seed) for seed in range(60)])
    ill, well = Counter(), Counter()
    for number, genotype in enumerate(genotypes):
        ill[genotype] += drawn[:, number].sum()
        well[genotype] += 60 - drawn[:, number].sum()
    for genotype in ("e2/e3", "e3/e4", "e4/e4"):
        ratio = ill[genotype] * well["e3/e3"] / (well[genotype] * ill["e3/e3"])
        assert ratio == pytest.approx(simulate.APOE[genotype], rel=0.12)
    assert drawn.mean() == pytest.approx(0.2, abs=0.005)


@pytest.mark.parametrize(
    ("both", "expected"),
    [
        (("0|0", "0|0"), "e3/e3"),
        (("0|1", "0|0"), "e3/e4"),
        (("1|0", "0|0"), "e3/e4"),
        (("1|1", "0|0"), "e4/e4"),
        (("0|0", "0|1"), "e2/e3"),
        (("0|0", "1|1"), "e2/e2"),
        (("1|0", "0|1"), "e2/e4"),
        (("1|0", "1|0"), "e1/e3"),
        (("0/1", "0/1"), "e2/e4"),
        ((".|.", "0|0"), "?"),
        (("0|0", "0|."), "?"),
    ],
)
@pytest.mark.parametrize(("contig", "assembly"), [("19", 37), ("chr19", 38)])
def test_apoe_by_its_two_sites(tmp_path, both, expected, contig, assembly):
    first, last = simulate.APOE_SITES[assembly]
    whole = "T" + bases(last - first - 1) + "C"
    reference = Reference(fasta(tmp_path / "apoe.fa", **{f"{contig}__{first}__{last}": whole}))
    path = vcf(tmp_path / "a.vcf", [(first, "T", "C", both[0]), (last, "C", "T", both[1])], contig=contig)
    called = variants.read(path, reference, reference.region(None))
    assert simulate.epsilon(called, reference.region(None), assembly) == [expected]
    odds, source = simulate.odds_of(path, reference, None, f"apoe{assembly}", None)
    ratio = simulate.APOE.get(expected)
    assert odds == {"ann": None if ratio is None else pytest.approx(math.log(ratio))}
    assert source == f"apoe{assembly}"


@pytest.mark.parametrize("prevalence", [0.02, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("ratios", [(2.0, 0.5), (5.0, 1.5)])
def test_odds_ratios_are_those_that_were_stated(prevalence, ratios):
    """A logistic regression of 20,000 people, with each copy of the alleles."""
    linear = pytest.importorskip("sklearn.linear_model")
    source = np.random.default_rng(3)
    copies = source.binomial(2, (0.3, 0.4), size=(20_000, 2))
    odds = copies @ np.log(ratios)
    ill = simulate.phenotypes(odds.tolist(), prevalence, 7)
    assert set(ill) == {0, 1}
    assert np.mean(ill) == pytest.approx(prevalence, abs=4 * math.sqrt(prevalence * (1 - prevalence) / 20_000))
    fitted = linear.LogisticRegression(C=1e9, tol=1e-8).fit(copies, ill)
    error = 4 / math.sqrt(20_000 * 0.4 * prevalence * (1 - prevalence))
    np.testing.assert_allclose(fitted.coef_[0], np.log(ratios), atol=error)


def test_draws():
    odds = [0.0, 1.0, -2.0] * 50
    ill = simulate.phenotypes(odds, 0.4, 1)
    assert ill == simulate.phenotypes(odds, 0.4, 1)
    assert ill != simulate.phenotypes(odds, 0.4, 2)
    assert np.mean(simulate.phenotypes([800.0] * 500 + [-800.0] * 500, 0.5, 1)) == 0.5
    for prevalence in (0, 1, -0.1, 2, float("nan")):
        with pytest.raises(ValueError, match=f"^prevalence must be above 0 and below 1, got {prevalence}$"):
            simulate.phenotypes(odds, prevalence, 0)


@pytest.mark.parametrize("prevalence", [1e-30, 1e-23])
def test_a_prevalence_that_is_nearly_none(prevalence):
    assert simulate.phenotypes([0.0, 1.0], prevalence, 0) == [0, 0]


def test_effects_of_alleles(tmp_path, reference):
    """The allele may be the reference's, which everybody else has twice; sites that nobody varies at count too."""
    ref, alt = SEQUENCE[9], OTHER[SEQUENCE[9]]
    table = tmp_path / "effects.tsv"
    table.write_text(f"note\t{HEAD}x\t10\t{alt.lower()}\t2\ny\t20\t{SEQUENCE[19]}\t3\nz\t10\t{ref}\t0.5\n")
    assert simulate.effects(table) == [Effect(10, alt, 2.0), Effect(20, SEQUENCE[19], 3.0), Effect(10, ref, 0.5)]
    path = vcf(tmp_path / "a.vcf", [record(10, "0|1", "1|1", "0|0", ".|1")], ["ann", "bob", "cid", "dan"])
    with pytest.warns(UserWarning, match=f"^nobody differs at 20 {SEQUENCE[19]}: these effects make no difference$"):
        odds, source = simulate.odds_of(path, reference, None, None, table)
    expected = {"ann": 2 * 9 * 0.5, "bob": 4 * 9, "cid": 9 * 0.25}
    assert odds.pop("dan") is None, "one allele of dan is not known"
    assert odds == pytest.approx({name: math.log(ratio) for name, ratio in expected.items()})
    assert source == "effects.tsv"
    with pytest.raises(ValueError, match=r"^positions of effects must be in 19:1-15, got 20$"):
        simulate.odds_of(path, reference, "19:1-15", None, table)


def test_effects_at_which_nobody_differs_are_refused(tmp_path, reference):
    """Phenotypes would have nothing to do with the genotypes."""
    third = (set("ACGT") - {SEQUENCE[9], OTHER[SEQUENCE[9]]}).pop()
    table = tmp_path / "effects.tsv"
    table.write_text(f"{HEAD}6\t{SEQUENCE[5]}\t2\n10\t{third}\t3\n")
    path = vcf(tmp_path / "a.vcf", [record(10, "0|1", "0|0")], ["ann", "bob"])
    message = f"^positions of effects must have variants of their alleles, none of 6 {SEQUENCE[5]}, 10 {third} has$"
    with pytest.raises(ValueError, match=message):
        simulate.odds_of(path, reference, None, None, table)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty, 0 bytes"),
        (HEAD, "has no effects"),
        ("position\tallele\n10\tA\n", "must have columns position, allele, odds_ratio; has no odds_ratio"),
        (HEAD.replace("\t", ",") + "10,A,2\n", "must have columns position, allele, odds_ratio; has no allele"),
        *[
            (HEAD + "7\tC\t1.5\n" + row + "\n", "line 3 must have a position, a base, an odds ratio above 0")
            for row in (
                *["10\tA\t0", "10\tA\t-1", "10\tA\tinf", "10\tA\tnan", "10\tA\tx", "10\tA\t", "10\tA", "10"],
                *["0\tA\t2", "-1\tA\t2", "1.5\tA\t2", "x\tA\t2", "10\tN\t2", "10\tAC\t2", "10\t\t2", "10\t-\t2"],
            )
        ],
        (HEAD + "10\t\xff\t2\n", "no table that can be read"),
        (HEAD + f"10\tA\t{'1' * 200_000}\n", "no table that can be read"),
    ],
)
def test_tables_of_no_effects(tmp_path, content, message):
    table = tmp_path / "effects.tsv"
    table.write_bytes(content.encode("latin-1"))
    with pytest.raises(GenomeError, match=f"^{re.escape(f'{table}: {message}')}"):
        simulate.effects(table)


def test_effects_with_a_byte_order_mark(tmp_path):
    table = tmp_path / "effects.tsv"
    table.write_text("\ufeff" + HEAD + "10\tA\t2\n")
    assert simulate.effects(table) == [Effect(10, "A", 2.0)]


def test_presets_and_people_who_are_none(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf", [record(10, "0|1")])
    with pytest.raises(ValueError, match=r"^preset must be one of apoe37, apoe38; got 'apoe'$"):
        simulate.odds_of(path, reference, None, "apoe", None)
    with pytest.raises(GenomeError, match=r"made\.fa: has 19:1-300; 19:45411941-45412079 is not within$"):
        simulate.odds_of(path, reference, None, "apoe37", None)
    with pytest.raises(ValueError, match=r"^of 2 people nobody has a genotype with an odds ratio$"):
        simulate.write_phenotypes(tmp_path / "out.tsv", {"ann": None, "bob": None}, 0.5, 0, "x")
    counts = simulate.write_phenotypes(tmp_path / "out.tsv", {"ann": None, "bob": 0.0, "cid": 1.0}, 0.5, 0, "x")
    assert counts["left out"] == 1
    assert [row["person"] for row in rows(tmp_path / "out.tsv")] == ["bob", "cid"]


def test_synthetic_people(tmp_path, reference):
    alts = [OTHER[SEQUENCE[10 * n - 1]] for n in range(1, 7)]
    two = ",".join(base for base in "ACGT" if base != SEQUENCE[29])[:3]
    path = sites(
        tmp_path / "sites.vcf", (alts[0], "AF=0.3"), (alts[1], "AF=0"), (two, "AF=0.1,0.6"), (alts[3], "DP=3"),
        (SEQUENCE[49] + "GG", "AF=1"), (alts[5], "AF=0.5"),
    )  # fmt: skip
    out = tmp_path / "out.vcf.gz"
    told = list(simulate.synthetic(path, reference, WHOLE, 2000, out, 4))
    assert told == [(9, 1), (19, 2), (29, 3), (49, 4), (59, 5)]
    assert {file.name for file in tmp_path.iterdir()} == {"made.fa", "sites.vcf", "out.vcf.gz", "out.vcf.gz.tbi"}
    import gzip

    text = gzip.decompress(out.read_bytes()).decode()
    assert "##synthetic=haplotypes drawn from the frequency of each site by itself; no linkage; no real person" in text
    called = variants.read(out, reference, WHOLE)
    assert called.people == [f"S{number:04}" for number in range(1, 2001)]
    assert called.phased
    drawn = [
        [call for row in text.splitlines() if row.startswith(f"19\t{at}\t") for call in row.split("\t")[9:]]
        for at in (10, 20, 30, 50, 60)
    ]
    sides = [np.array([call.split("|") for call in calls], dtype=int) for calls in drawn]
    frequencies = [[(side == allele).mean() for allele in (1, 2)] for side in sides]
    # Four standard deviations of 4,000 haplotypes are 0.03.
    np.testing.assert_allclose(frequencies, [[0.3, 0], [0, 0], [0.1, 0.6], [1, 0], [0.5, 0]], atol=0.032)
    assert abs(np.corrcoef(sides[0].ravel(), sides[4].ravel())[0, 1]) < 0.07
    assert abs(np.corrcoef(sides[4].T)[0, 1]) < 0.1
    assert len(called.haplotypes("S0001")[0].sequence()) == 302
    list(simulate.synthetic(path, reference, WHOLE, 2000, tmp_path / "again.vcf.gz", 4))
    assert (tmp_path / "again.vcf.gz").read_bytes() == out.read_bytes()
    part = variants.read(out, reference, Region("19", 25, 55))
    assert len(part.edits) == 2


@pytest.mark.parametrize(
    ("abouts", "given", "message"),
    [
        ([("", "AF=0.3")], {"people": 0}, "people must be at least 1 and out end in .vcf.gz, got 0 and out.vcf.gz"),
        ([("", "AF=0.3")], {"out": "out.vcf"}, "people must be at least 1 and out end in .vcf.gz, got 3 and out.vcf"),
        ([("", "DP=3")], {}, "has no site with a frequency (AF) at 19:1-300"),
        ([("", "AF=0.3"), ("", "AF=2")], {}, "frequencies (AF) of 1 alternatives must be in 0..1, got '2'"),
        ([("", "AF=0.3"), ("", "AF=x")], {}, "frequencies (AF) of 1 alternatives must be in 0..1, got 'x'"),
        pytest.param(
            [("", "AF=0.3"), ("A,C,G,T", "AF=0.7,0.7,0.1,0.1")], {}, "AF"),
    ],
)  # fmt: skip
def test_nothing_is_left_of_what_failed(tmp_path, reference, abouts, given, message):
    path = sites(
        tmp_path / "s.vcf", *[(alt or OTHER[SEQUENCE[10 * n - 1]], info) for n, (alt, info) in enumerate(abouts, 1)]
    )
    before = sorted(tmp_path.iterdir())
    given = {"people": 3, "out": "out.vcf.gz"} | given
    with pytest.raises(ValueError, match=re.escape(message)):
        list(simulate.synthetic(path, reference, WHOLE, given["people"], tmp_path / given["out"], 0))
    work = simulate.synthetic(sites(path, ("A", "AF=0.3")), reference, WHOLE, 3, tmp_path / "out.vcf.gz", 0)
    work.close()
    assert sorted(tmp_path.iterdir()) == before


def test_a_draw_that_was_stopped(tmp_path, reference):
    alts = [OTHER[SEQUENCE[10 * n - 1]] for n in (1, 2)]
    path = sites(tmp_path / "sites.vcf", *[(alt, "AF=0.3") for alt in alts])
    work = simulate.synthetic(path, reference, WHOLE, 3, tmp_path / "out.vcf.gz", 0)
    assert next(work) == (9, 1)
    assert len(list(tmp_path.iterdir())) == 3
    work.close()
    assert {file.name for file in tmp_path.iterdir()} == {"made.fa", "sites.vcf"}


def test_a_folder_that_is_not_there(tmp_path):
    """In a process of its own, which a fault of C would end."""
    reference = fasta(tmp_path / "made.fa", **{"19": SEQUENCE})
    path = sites(tmp_path / "sites.vcf", (OTHER[SEQUENCE[9]], "AF=0.3"))
    words = ["--reference", str(reference), "--sites", str(path), "--out", str(tmp_path / "nowhere" / "out.vcf.gz")]
    shown = subprocess.run([sys.executable, "-m", "greenformers", "genome", "simulate", *words], capture_output=True)
    assert shown.returncode == 2
    assert b"nowhere" in shown.stderr
