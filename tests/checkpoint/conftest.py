from fixtures import one_thread, operators_once, quiet, seed, verbosity

__all__ = ["one_thread", "operators_once", "quiet", "seed", "verbosity"]
