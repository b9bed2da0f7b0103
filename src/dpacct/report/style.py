"""How the page looks: on light and dark ground, on a phone, on paper.

Rule 1: words have a contrast of at least 4.5 to their ground, and what is drawn of 3.
Rule 2: nothing is told by color alone, so that a print in grey says the same.
"""

from __future__ import annotations

# Colors by what they are for: ground, words, faint words, lines, planned, adaptive, empty, chance.
_LIGHT = """--ground: #ffffff; --words: #1c1c1c; --faint: #595959; --line: #d4d4d4;
  --planned: #005f96; --adaptive: #a84400; --empty: #e4e4e4; --chance: #1c1c1c;"""
_DARK = """--ground: #15181c; --words: #e8e8e8; --faint: #a9adb3; --line: #3c4148;
  --planned: #6db9ec; --adaptive: #f09a5b; --empty: #33383f; --chance: #f2f2f2;"""

STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--words); background: var(--ground);
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .6rem; }}
h2 {{ font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .4rem; }}
.claim {{ font-size: 1.15rem; font-weight: 600; border-left: 4px solid var(--planned);
  padding: .2rem 0 .2rem .8rem; margin: 1rem 0; }}
.wide {{ overflow-x: auto; margin: .4rem 0; }}
.wide:focus-visible {{ outline: 2px solid var(--planned); outline-offset: 2px; }}
table {{ border-collapse: collapse; font-size: .94rem; }}
caption {{ text-align: left; color: var(--faint); font-size: .88rem; padding-bottom: .3rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0;
  border-bottom: 1px solid var(--line); }}
th {{ color: var(--faint); font-weight: 500; }}
thead th {{ vertical-align: bottom; }}
.facts th {{ min-width: 7rem; }}
.facts td {{ overflow-wrap: anywhere; }}
.grid td:first-child {{ white-space: nowrap; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.facts caption {{ position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap; }}
figure {{ margin: 1rem 0; overflow-x: auto; }}
figcaption {{ color: var(--faint); font-size: .88rem; }}
.bars {{ display: block; }} .bars text {{ fill: var(--words); }}
.bars .strong {{ font-weight: 600; }}
.chart {{ width: 100%; min-width: 36rem; height: auto; font-family: system-ui, sans-serif; }}
.chart text {{ fill: var(--words); }} .chart .strong {{ font-weight: 600; }}
.chart .faint {{ fill: var(--faint); }} .chart .rule {{ stroke: var(--line); }}
.chart .edge {{ stroke: var(--faint); }} .chart .limit {{ stroke: var(--words); }}
.chart .planned {{ stroke: var(--planned); }} .chart .adaptive {{ stroke: var(--adaptive); }}
.chart text.planned {{ fill: var(--planned); stroke: none; }}
.chart text.adaptive {{ fill: var(--adaptive); stroke: none; }}
.chart circle.planned {{ fill: var(--planned); }}
.chart circle.adaptive {{ fill: var(--adaptive); }}
.chart .band {{ fill: var(--adaptive); fill-opacity: .16; }}
.empty {{ fill: var(--empty); }} .found {{ fill: var(--planned); }}
.chance {{ fill: var(--chance); }}
ul, ol {{ padding-left: 1.4rem; }}
.sign li {{ margin: 1rem 0; break-inside: avoid; }} .sign p {{ margin: .2rem 0; }}
.line {{ display: flex; gap: 1.2rem; color: var(--faint); font-size: .85rem; }}
.line span {{ flex: 2; border-bottom: 1px solid var(--faint); padding-top: 1.4rem; }}
.line span:nth-child(2) {{ flex: 1; }}
@media (max-width: 34rem) {{
  body {{ margin: 1rem auto; }}
  .facts, .facts tbody, .facts tr, .facts th, .facts td {{ display: block; }}
  .facts th {{ border: 0; padding-bottom: 0; }}
  .line {{ flex-wrap: wrap; }} .line span {{ flex: 1 1 40%; }}
  .line span:last-child {{ flex: 1 1 100%; }}
}}
@media print {{
  :root {{ color-scheme: light; {_LIGHT} }}
  html {{ font-size: 12px; }} .chart {{ min-width: 0; max-height: 24rem; }}
  body {{ margin: 0; max-width: none; font-size: 1rem; padding: 0; }} h2 {{ margin-top: 1rem; }}
  p {{ margin: .7rem 0; }} th, td {{ padding-top: .25rem; padding-bottom: .25rem; }}
  h2, h3, h4, caption {{ break-after: avoid; }} .page {{ break-before: page; }}
  tr, figure, .claim {{ break-inside: avoid; }} .wide {{ overflow: visible; }}
  .found, .chance, .empty {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
"""
