"""`python -m fedmuon.report` is the `fedmuon-report` command."""

from fedmuon.entry import report

report()
