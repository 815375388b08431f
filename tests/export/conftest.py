from fixtures import interruptible, one_thread, quiet, seed, verbosity

__all__ = ["interruptible", "one_thread", "quiet", "seed", "verbosity"]
