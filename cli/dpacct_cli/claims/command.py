"""`dpacct claims check` and `list`: whether the epsilons of a text hold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from dpacct.errors import InvalidParameter
from dpacct_cli import options, suggestions, waiting
from dpacct_cli.options import argument
from dpacct_cli.output import names_a_file
from dpacct_cli.render import Answer, show

if TYPE_CHECKING:
    from dpacct.claims import Claim, Claims, Judgment

File = Annotated[
    str,
    argument(
        metavar="FILE",
        help="A file of claims, or the id of one that is shipped.",
        known=options.shipped_ids,
    ),
]


def check(file: File, as_json: options.AsJson = False, quiet: options.Quiet = False) -> None:
    """Whether the claims in a file hold, reading by reading.

    Proven: no neighboring data sets exceed what is stated. Refuted: explicit ones do. Open: what is
    stated lies between the two. Not private as described: something is released unprotected. A
    claim is worth its weakest reading of what runs. --quiet prints a verdict a line.

    Examples:
      dpacct claims check paper.toml
      dpacct claims check dp-fed-ls-t3-uniform-z2.0
    """
    style = options.read_style(as_json, quiet)
    judged = _judge(read_claims(file).claims, quick=style is options.Style.QUIET)
    _show(judged, style, whole=True)


def list_claims(as_json: options.AsJson = False, quiet: options.Quiet = False) -> None:
    """The claims that are shipped, each with its verdict; --quiet prints their ids alone.

    Example:
      dpacct claims list
    """
    from dpacct.claims import shipped_claims

    style = options.read_style(as_json, quiet)
    found = shipped_claims()
    if style is options.Style.QUIET:
        print("\n".join(claim.id for claim in found.claims))
        return
    _show(_judge(found.claims, quick=True), style, whole=False)


def read_claims(file: str | None) -> "Claims":
    """The claims of a file, or a shipped one by its id."""
    from dpacct.claims import Claims, load_claims, shipped_claims

    if not file:
        raise InvalidParameter("FILE", None, "name a file of claims, or the id of a shipped one")
    if names_a_file(file, (".toml",)):
        return load_claims(file)
    shipped = shipped_claims()
    found = tuple(claim for claim in shipped.claims if claim.id == file)
    if not found:
        rule = "there is no such file, and no shipped claim has that id"
        near = suggestions.near(file, [claim.id for claim in shipped.claims])
        hint = f"Did you mean {near}?" if near else "dpacct claims list shows all of them."
        raise InvalidParameter("FILE", file, rule, hint)
    return Claims(found)


def _judge(claims: "Sequence[Claim]", *, quick: bool) -> "list[Judgment]":
    from dpacct.claims import judge

    found: list[Judgment] = []
    for number, claim in enumerate(claims, start=1):
        waiting.say(f"dpacct claims, {number} of {len(claims)}, {claim.id}")
        found.append(judge(claim, quick=quick))
    return found


def _show(judged: "list[Judgment]", style: options.Style, *, whole: bool) -> None:
    from dpacct.claims.judge import facts_of
    from dpacct_cli.claims import pages

    data: dict[str, object] = {"claims": [facts_of(one) for one in judged]}
    words = "\n".join(str(one.verdict) for one in judged)
    if not whole or style is not options.Style.HUMAN:
        show(Answer(data, words, lambda: pages.table(judged)), style)
        return
    for one in judged:
        show(Answer(data, words, lambda one=one: pages.claim_page(one)), style)


COMMANDS = {"check": check, "list": list_claims}
