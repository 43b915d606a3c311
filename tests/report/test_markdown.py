"""The one writer of tables in Markdown: marks, and what a cell may hold."""

from fedmuon.report.markdown import table


def test_a_table_with_and_without_marks():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
    assert table(["a", "b"], [], ["---", "--:"]) == "| a | b |\n| --- | --: |"


def test_no_cell_breaks_its_line_or_opens_a_tag():
    *_, line = table(["x"], [["a|b\\c\nd <b> </b> x <- y < z"]]).splitlines()
    assert line == r"| a\|b\\c d &lt;b> &lt;/b> x <- y < z |"
