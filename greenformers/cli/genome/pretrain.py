"""`greenformers genome pretrain`. Heavy imports are inside the command, so that --help answers at once."""

from greenformers.cli._training import training
from greenformers.genome.settings import Pretraining

ORDER = 40
SEVERAL = True
EXAMPLES = ("greenformers genome pretrain --reference chr19.fa --sites dbsnp.vcf.gz --tokens tokens --out runs/before",)

pretrain = training(
    Pretraining,
    """Pre-train a network to predict masked tokens of a genome, or of encoded people.

    The run folder OUT is like that of `greenformers train`. A run that
    was stopped goes on with --resume.
    """,
)
