"""VCF and BCF files that cannot be used, and their indexes."""

import os
import re

import pytest
from made import fasta, vcf

from greenformers.genome import variants
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.reference import Reference

pytest.importorskip("pysam", reason="the genome extra is not installed")

SEQUENCE = "GATTACAGCCTTGACGTAACGGTC"
CHANGED = "GATGACAGCCTTGACGTAACGGTC"
WHOLE = Region("19", 0, len(SEQUENCE))
RECORDS = [(4, "T", "G", "0|1", "0|0", "1|1"), (9, "C", "G", "0|0", "1|1", "0|1")]
PEOPLE = ["ann", "bob", "cid"]


@pytest.fixture
def reference(tmp_path):
    return Reference(fasta(tmp_path / "made.fa", **{"19": SEQUENCE}))


def everything(path, reference):
    result = variants.read(path, reference, WHOLE)
    return {person: [haplotype.sequence() for haplotype in result.haplotypes(person)] for person in result.people}


def test_other_indexes(tmp_path, reference):
    import pysam

    path = vcf(tmp_path / "a.vcf.gz", RECORDS, PEOPLE, index=False)
    whole = everything(path, reference)
    pysam.tabix_index(str(path), preset="vcf", csi=True)
    assert everything(path, reference) == whole


def test_an_older_index(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf.gz", RECORDS, PEOPLE)
    os.utime(tmp_path / "a.vcf.gz.tbi", (1e9, 1e9))
    message = r"a\.vcf\.gz: its index a\.vcf\.gz\.tbi is older than the file; remove it, and --index makes another$"
    with pytest.raises(GenomeError, match=message):
        variants.read(path, reference, WHOLE)


@pytest.mark.parametrize("content", [b"", b"no index", b"TBI\1", b"\x1f\x8b\x08\x04 no gzip"])
@pytest.mark.parametrize("name", ["a.vcf.gz", "a.bcf"])
def test_damaged_indexes(tmp_path, reference, name, content):
    path = vcf(tmp_path / name, RECORDS, PEOPLE)
    (tmp_path / (name + {"a.bcf": ".csi"}.get(name, ".tbi"))).write_bytes(content)
    with pytest.raises(GenomeError, match=rf"/{re.escape(name)}.*: damaged \(.+\)$"):
        variants.read(path, reference, WHOLE)


def test_the_index_of_another_file(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf.gz", RECORDS, PEOPLE)
    vcf(tmp_path / "b.vcf.gz", RECORDS, PEOPLE, contig="18")
    (tmp_path / "b.vcf.gz.tbi").replace(tmp_path / "a.vcf.gz.tbi")
    with pytest.raises(GenomeError, match=r"/a\.vcf\.gz: its index is of another file, it has no contig 19$"):
        variants.read(path, reference, WHOLE)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("|0|1", [SEQUENCE, CHANGED]),
        ("/0/1", [SEQUENCE, CHANGED]),
        ("|1/0", [CHANGED, SEQUENCE]),
        ("/1", 2 * [CHANGED]),
    ],
)
def test_whether_the_first_allele_is_phased(tmp_path, reference, call, expected):
    """A sign before it, from VCF 4.4 on."""
    path = vcf(tmp_path / "a.vcf", [(4, "T", "G", call)])
    path.write_text(path.read_text().replace("VCFv4.3", "VCFv4.4"))
    assert everything(path, reference) == {"ann": expected}


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("name", ["a.vcf", "a.vcf.gz", "a.bcf"])
def test_records_of_another_contig_alone(tmp_path, reference, name, index):
    """The header names the contig, as those of large studies name all of them."""
    path = vcf(tmp_path / name, RECORDS, PEOPLE, contig="18", others=["19"], index=index)
    with pytest.raises(GenomeError, match=f"{re.escape(name)}: has no record of contig 19, .* but of others$"):
        variants.read(path, reference, WHOLE)
    empty = vcf(tmp_path / f"none-{name}", [], PEOPLE, index=index and name != "a.bcf")
    assert variants.read(empty, reference, WHOLE).records == 0


def test_wrong_files(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf", [(4, "T", "G")], people=())
    with pytest.raises(GenomeError, match=r"a\.vcf: has no genotypes, only sites$"):
        variants.read(path, reference, WHOLE)
    path = vcf(tmp_path / "b.vcf", RECORDS, PEOPLE, contig="18")
    with pytest.raises(GenomeError, match=r"b\.vcf: has no contig 19, it has 18$"):
        variants.read(path, reference, WHOLE)
    path = vcf(tmp_path / "c.vcf.gz", RECORDS, PEOPLE, contig="18")
    with pytest.raises(GenomeError, match=r"c\.vcf\.gz: has no contig 19, it has 18$"):
        variants.read(path, reference, WHOLE)
    path = tmp_path / "d.txt"
    path.write_text("text")
    with pytest.raises(GenomeError, match=r"d\.txt: variants must be in a \.vcf, \.vcf\.gz or \.bcf file$"):
        variants.read(path, reference, WHOLE)
    path = tmp_path / "e.vcf"
    path.write_text("text")
    with pytest.raises(GenomeError, match=r"e\.vcf: no VCF or BCF file that can be read \(.*\)$"):
        variants.read(path, reference, WHOLE)


def test_no_genotypes_in_a_record(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf", [(4, "T", "G", "0|1")])
    path.write_text(path.read_text().replace("FORMAT=<ID=GT", "FORMAT=<ID=DS").replace("\tGT\t", "\tDS\t"))
    with pytest.raises(GenomeError, match=r"a\.vcf: at 19:4 it has no genotypes \(GT\)$"):
        variants.read(path, reference, WHOLE)


def test_unknown_people(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf", RECORDS, PEOPLE)
    with pytest.raises(GenomeError, match=r"a\.vcf: has no person eve$"):
        variants.read(path, reference, WHOLE, ["ann", "eve"])
    with pytest.raises(GenomeError, match=r"a\.vcf: has no person eve, and 1 more$"):
        variants.read(path, reference, WHOLE, ["eve", "ann", "dan"])
    with pytest.raises(ValueError, match=r"^person must be one of the 3 of the variants, got 'eve'$"):
        variants.read(path, reference, WHOLE).haplotypes("eve")


@pytest.mark.parametrize("name", ["a.vcf", "a.vcf.gz", "a.bcf"])
@pytest.mark.parametrize("people", [["-", "dan"], ["^-", "-"], ["dan", "^dan"], ["eve, fay", "eve"], ["dan", "-"]])
def test_names_that_no_list_of_htslib_has(tmp_path, reference, name, people):
    path = vcf(tmp_path / name, RECORDS, [people[0], "ann", people[1]])
    whole = everything(path, reference)
    assert whole[people[1]] == [CHANGED, "GATGACAGGCTTGACGTAACGGTC"]
    for chosen in ([people[0]], [people[1]], [people[1], "ann"], people):
        called = variants.read(path, reference, WHOLE, chosen)
        assert set(called.people) == set(chosen)
        for person in chosen:
            assert [haplotype.sequence() for haplotype in called.haplotypes(person)] == whole[person]


@pytest.mark.parametrize("name", ["a.vcf.gz", "a.bcf"])
def test_cut_off(tmp_path, reference, name):
    path = vcf(tmp_path / name, RECORDS, PEOPLE, index=False)
    path.write_bytes(path.read_bytes()[:-30])
    for use in (lambda: variants.read(path, reference, WHOLE), lambda: variants.people(path)):
        with pytest.raises(GenomeError, match=rf"{re.escape(name)}: cut off, its last block is missing$"):
            use()


def test_cut_off_in_a_line(tmp_path, reference):
    path = vcf(tmp_path / "a.vcf", RECORDS, PEOPLE)
    path.write_text(path.read_text()[:-8])
    with pytest.raises(GenomeError, match=r"a\.vcf: "):
        variants.read(path, reference, WHOLE)
