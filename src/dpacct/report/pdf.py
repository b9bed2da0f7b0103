"""A report as PDF pages, by fpdf2."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpacct.report.document import (
    SIGNATURE_FIELDS,
    Bullets,
    Chart,
    Heading,
    Paragraph,
    Report,
    Signatures,
    Table,
    needed,
    plain,
)

if TYPE_CHECKING:
    from dpacct.report.document import Block

INK, FAINT, ACCENT = (28, 28, 28), (89, 89, 89), (0, 95, 150)
# In points, by the level of a heading.
SIZES = {1: 17.0, 2: 13.0, 3: 11.0, 4: 10.0}
BODY, SMALL = 9.5, 8.0
# In millimeters: the height of a line, the width of a chart.
LINE, CHART = 4.9, 105.0


def to_pdf(report: Report) -> bytes:
    """Return a report as pages in A4.

    Raises:
        Unsupported: fpdf2 or matplotlib is missing.
    """
    fpdf = needed("fpdf", "fpdf2")
    # matplotlib brings a font with the letters of most languages. The fonts of PDF have few.
    fonts = Path(needed("matplotlib", "matplotlib").get_data_path()) / "fonts" / "ttf"

    class Pages(fpdf.FPDF):  # pyright: ignore[reportUntypedBaseClass] fpdf2 is Any here
        def footer(self) -> None:
            self.set_y(-12)
            _ink(self, SMALL, FAINT)
            self.cell(0, 8, f"{self.page_no()} / {{nb}}", align="R")

    pdf: Any = Pages(format="A4")
    for style, file in (("", "DejaVuSans.ttf"), ("B", "DejaVuSans-Bold.ttf")):
        pdf.add_font("body", style, fonts / file)
    pdf.set_margins(20, 15, 20)
    pdf.set_auto_page_break(auto=True, margin=15)
    pdf.set_title(plain(report.title))
    pdf.set_lang("en")
    if "author" in report.facts:
        pdf.set_author(plain(report.facts["author"]))
    pdf.add_page()
    for block in report.blocks:
        _put(pdf, fpdf, block)
    return bytes(pdf.output())


def _ink(pdf: Any, size: float, color: tuple[int, int, int] = INK, *, bold: bool = False) -> None:
    pdf.set_font("body", "B" if bold else "", size)
    pdf.set_text_color(*color)


def _text(pdf: Any, words: str, *, before: str = "") -> None:
    """Write a paragraph, with ``before`` hanging at its left."""
    if before:
        pdf.cell(7, LINE, before)
    pdf.multi_cell(0, LINE, plain(words).replace("`", ""), align="L", new_x="LMARGIN", new_y="NEXT")


def _keep(pdf: Any, height: float) -> None:
    """Begin a page if fewer millimeters are left on this one."""
    if pdf.will_page_break(height):
        pdf.add_page()


def _put(pdf: Any, fpdf: Any, block: Block) -> None:
    match block:
        case Heading():
            _put_heading(pdf, block)
        case Paragraph(words, strong):
            _ink(pdf, BODY + 1 if strong else BODY, ACCENT if strong else INK, bold=strong)
            _text(pdf, words)
            pdf.ln(2)
        case Bullets(items):
            _ink(pdf, BODY)
            for item in items:
                _text(pdf, item, before="•")
        case Table():
            _put_table(pdf, fpdf, block)
        case Chart(_, caption):
            png = block.to_bytes("png")
            width, height = struct.unpack(">II", png[16:24])
            _keep(pdf, CHART * height / width + 2 * LINE)
            pdf.image(io.BytesIO(png), w=CHART, alt_text=plain(caption))
            _ink(pdf, SMALL, FAINT)
            _text(pdf, caption)
            pdf.ln(2)
        case Signatures(items):
            for number, item in enumerate(items, 1):
                _keep(pdf, 30)
                _ink(pdf, BODY)
                _text(pdf, item, before=f"{number}.")
                pdf.ln(7)
                _ink(pdf, SMALL, FAINT)
                for field in SIGNATURE_FIELDS:
                    pdf.cell(52, 5, field, border="T")
                    pdf.cell(4, 5)
                pdf.ln(8)


def _put_heading(pdf: Any, heading: Heading) -> None:
    if heading.new_page:
        pdf.add_page()
    elif heading.level > 1:
        # A heading stays with the next block.
        _keep(pdf, 30)
        pdf.ln(3.5)
    _ink(pdf, SIZES[heading.level], bold=True)
    pdf.multi_cell(0, 0.5 * SIZES[heading.level], plain(heading.words), align="L", new_x="LMARGIN",
                   new_y="NEXT")  # fmt: skip
    pdf.ln(1.5)


def _put_table(pdf: Any, fpdf: Any, table: Table) -> None:
    columns = len(table.header)
    aligns = ["RIGHT" if table.is_number(n) else "LEFT" for n in range(columns)]
    named = any(table.header)
    widths = [1] * columns
    if not named:
        # The first column names the rows.
        widths = [1, 3]
    _ink(pdf, SMALL, FAINT)
    pdf.set_draw_color(212, 212, 212)
    head = fpdf.FontFace(emphasis="BOLD", color=FAINT)
    with pdf.table(
        borders_layout="HORIZONTAL_LINES", col_widths=widths, text_align=aligns,
        line_height=0.85 * LINE, padding=(1, 1.5), first_row_as_headings=named,
        headings_style=head,
    ) as drawn:  # fmt: skip
        if named:
            drawn.row(map(plain, table.header))
        pdf.set_text_color(*INK)
        for cells in table.rows:
            drawn.row(plain(cell).replace("`", "") for cell in cells)
    pdf.ln(2)
