"""`python -m greenformers`."""

from greenformers.cli import main

main()
