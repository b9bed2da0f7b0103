"""Settings of Sphinx. `python -m website` assembles its input."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ziamath
from docutils.nodes import SkipNode
from sphinx.util import logging

import dpacct
from website.mathml import FormulaError, to_mathml

project = "dpacct"
author = "the dpacct authors"
# From this length on, an inline formula may be wider than a narrow screen, and scrolls.
LONG = 60
FONT = "STIXTwoMath-Regular.ttf"
version = release = dpacct.__version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4
# Output of the command line, and files that an example writes, have no grammar.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# A page that GitHub shows too may leave out a level of headings. A name in a signature may belong
# to two classes, of which the nearer one is linked.
suppress_warnings = ["myst.header", "ref.python"]

# Quotes and dashes of options and numbers stay as typed.
smartquotes = False

html_theme = "furo"
html_title = f"dpacct {release}"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = True
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5394",
        "color-brand-content": "#0b5394",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8ab4f8",
        "color-brand-content": "#8ab4f8",
    },
}


def _visit(writer: Any, node: Any, *, display: bool) -> None:
    try:
        shown = to_mathml(node.astext(), display=display)
    except FormulaError as error:
        logging.getLogger("website").warning("%s", error, location=node)
        shown = ""
    if display:
        shown = f'<div class="math-block">{shown}</div>'
    elif len(node.astext()) > LONG:
        shown = f'<span class="math-long">{shown}</span>'
    writer.body.append(shown)
    raise SkipNode


def _inline(writer: Any, node: Any) -> None:
    _visit(writer, node, display=False)


def _block(writer: Any, node: Any) -> None:
    _visit(writer, node, display=True)


def _copy_font(app: Any) -> None:
    """Bring the font of the formulas, which lies in a package that the build installs."""
    font = Path(ziamath.__file__).parent / "fonts" / FONT
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(font, folder / FONT)


def setup(app: Any) -> None:
    """Register the typesetter of formulas with Sphinx."""
    app.connect("builder-inited", _copy_font)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
