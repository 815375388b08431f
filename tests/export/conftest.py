from fixtures import one_thread, quiet, seed, verbosity

__all__ = ["one_thread", "quiet", "seed", "verbosity"]
