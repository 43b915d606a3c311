"""`python -m fedmuon.report` is the `fedmuon-report` command."""

from fedmuon.report.main import main

main()
