"""`python -m fedmuon` is the `fedmuon` command."""

from fedmuon.cli import main

main()
