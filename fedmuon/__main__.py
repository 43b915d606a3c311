"""`python -m fedmuon` is the `fedmuon` command."""

from fedmuon.entry import fedmuon

fedmuon()
