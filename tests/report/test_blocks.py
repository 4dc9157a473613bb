"""The blocks of a report: which column a cell stands in, and what is left of a cell that is copied."""

from __future__ import annotations

from markupsafe import Markup

from vitmed.report.blocks import Chapter, Document, Items, Table, Text, html, td, to_markdown


def markdown(table: Table) -> list[list[str]]:
    text = to_markdown(Document([], [Chapter("k", "Title", "", "", [table])]))
    return [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("|")]


def test_a_cell_over_several_rows_stands_in_each_and_moves_no_other() -> None:
    head = [Markup(title) for title in ("Point", "Images", "Sensitivity", "PPV")]
    rows = [
        [td("Youden index", rows=2), td("these"), td("0.9"), td("0.8", rows=2)],
        [td("validation"), td("0.7")],
        [td("Cost"), td("not chosen", columns=3)],
        [td("Likeliest"), td("these"), td("0.6"), td("0.5")],
    ]
    assert markdown(Table(head, rows)) == [
        ["Point", "Images", "Sensitivity", "PPV"],
        ["---"] * 4,
        ["Youden index", "these", "0.9", "0.8"],
        ["Youden index", "validation", "0.7", "0.8"],
        ["Cost", "not chosen", "", ""],
        ["Likeliest", "these", "0.6", "0.5"],
    ]


def test_references_keep_the_numbers_that_the_text_cites() -> None:
    lists = [Items([Markup("Wilson"), Markup("Newcombe")], ordered=True), Items([Markup("a note")])]
    text = to_markdown(Document([], [Chapter("k", "Title", "", "", lists)]))
    assert "\n1. Wilson\n2. Newcombe\n\n- a note\n" in text


def test_a_copied_cell_keeps_number_and_interval_apart() -> None:
    text = html(Table([], [[td("0.903", "0.751 to 0.967")]])).striptags()
    assert text == "0.903 (0.751 to 0.967)"


def test_a_paragraph_that_has_a_name_can_be_found_on_the_page() -> None:
    assert html(Text(Markup("who"), "quiet", "identity")) == '<p class="quiet" id="identity">who</p>'
