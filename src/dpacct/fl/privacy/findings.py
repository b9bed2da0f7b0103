"""What checks of a run come to."""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.errors import DpacctError


class AuditFailed(DpacctError):
    """`Audit.require` on an audit that found something."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, whether it passed, and what was seen."""

    check: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Audit:
    """All checks of one audit."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return all(finding.passed for finding in self.findings)

    def require(self) -> None:
        """Raise if something was found.

        Raises:
            AuditFailed: with all that was found.
        """
        faults = [f"{f.check}: {f.detail}" for f in self.findings if not f.passed]
        if faults:
            raise AuditFailed("; ".join(faults))

    def __str__(self) -> str:
        return "\n".join(
            f"{'ok  ' if f.passed else 'FAIL'} {f.check}: {f.detail}" for f in self.findings
        )
