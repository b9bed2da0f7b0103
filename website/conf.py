"""Settings of Sphinx. `python -m website` puts its input together."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import dpacct

project = "dpacct"
author = "the dpacct authors"
version = release = dpacct.__version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon",
    "sphinx.ext.mathjax", "sphinx_copybutton",
]  # fmt: skip
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
# Output of the command line, and files that an example writes, have no grammar.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
# Only what is behind a prompt is copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Docstrings: Google's sections and two of our own, names by their own module, defaults as written.
napoleon_custom_sections = [("Attributes", "params_style"), "Error", "Source"]
SECTIONS = "Args|Attributes|Returns|Yields|Error|Raises|Source|Example"
default_role = "py:obj"
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
# Each name has a heading. With all their members in the navigation a build takes a quarter longer.
toc_object_entries = False

# A page that GitHub shows too may leave out a level of headings. A name in a signature may belong
# to two classes, of which the nearer one is linked.
suppress_warnings = ["myst.header", "ref.python"]

# Quotes and dashes of options and numbers stay as typed.
smartquotes = False

# MathJax comes with the pages, from a package that the build installs. Its menu would load more.
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {"options": {"enableMenu": False}}

html_theme = "furo"
html_title = f"dpacct {release}"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
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


def as_sphinx_writes(app: Any, name: str, text: list[str]) -> None:
    """Turn GitHub's inline formulas into MyST's."""
    text[0] = re.sub(r"\$(`[^`]+`)\$", r"{math}\1", text[0])
    # The empty line that ends a doctest says nothing to a reader.
    text[0] = re.sub(r"\n\n( *```)$", r"\n\1", text[0], flags=re.MULTILINE)


def as_rest(app: Any, what: str, name: str, value: object, options: Any, lines: list[str]) -> None:
    """Turn a docstring into reST: bars are bars, and derivations are links."""
    if what == "data":
        lines[:] = [f"A value of type `{type(value).__name__}`."]
    # A section that begins on the line of its heading.
    text = re.sub(rf"^({SECTIONS}): (?=\S)", r"\1:\n    ", "\n".join(lines), flags=re.MULTILINE)
    pieces = re.split(r"(``.+?``|`.+?`|^ *>>> .*)", text, flags=re.MULTILINE)
    for place in range(0, len(pieces), 2):
        escaped = pieces[place].replace("|", r"\|")
        pieces[place] = re.sub(r"(docs/derivations/[\w-]+)\.md", r":doc:`/\1`", escaped)
    lines[:] = "".join(pieces).split("\n")


def without_addresses(
    app: Any, what: str, name: str, value: object, options: Any, signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:  # fmt: skip
    """Show a default that is no literal as an ellipsis."""
    return re.sub(r"<[^<>]+>", "...", signature or "") or None, returned


def copy_mathjax(app: Any) -> None:
    """Bring the script and the fonts of the formulas."""
    source = Path(str(files("mathjax"))) / "static" / "mathjax" / "es5"
    folder = Path(app.outdir) / "_static" / "mathjax"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source / "tex-chtml.js", folder)
    fonts = "output/chtml/fonts/woff-v2"
    shutil.copytree(source / fonts, folder / fonts, dirs_exist_ok=True)


def setup(app: Any) -> None:
    """Connect with Sphinx."""
    app.connect("builder-inited", copy_mathjax)
    app.connect("source-read", as_sphinx_writes)
    app.connect("autodoc-process-signature", without_addresses)
    app.connect("autodoc-process-docstring", as_rest, priority=400)
