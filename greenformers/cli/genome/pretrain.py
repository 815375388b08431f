"""`greenformers genome pretrain`. Heavy imports are inside the command, so that --help answers at once."""

from greenformers.cli._training import training
from greenformers.genome.settings import Pretraining

ORDER = 40
EXAMPLES = ("greenformers genome pretrain --reference chr19.fa --sites dbsnp.vcf.gz --tokens tokens --out runs/before",)

pretrain = training(
    Pretraining,
    """Learn a genome by heart: masked tokens of sentences of it, or of encoded people.

    The run folder OUT is as that of `greenformers train`; a run that
    was stopped goes on with --resume.
    """,
)
