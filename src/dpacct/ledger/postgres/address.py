"""The address of a ledger in a database: ``postgresql://user@host/database#name``.

Rule: a password is never shown. All texts of an address are without it, so what is printed, kept in
settings or shown in an error cannot leak it. Keep it in ~/.pgpass or PGPASSWORD.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from dpacct.errors import InvalidParameter, LedgerError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_SECRETS = {"password", "sslpassword", "passfile"}


@dataclass(frozen=True)
class Address:
    """The address of a ledger. Its text has no password.

    Attributes:
        shown: the address as text.
        name: of the ledger in its database.
        url: the address of the database, with a password if there is one.
    """

    shown: str
    name: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def parse(cls, text: str | Address) -> Address:
        """Read an address.

        Raises:
            InvalidParameter: it names no ledger or no database.
        """
        if isinstance(text, Address):
            return text
        url, _, name = text.partition("#")
        try:
            url.encode()  # Half a character is no text.
            parts = urlsplit(url)
            options = parse_qsl(
                parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
            )
        except ValueError:
            # The text may hold a password.
            raise _invalid("postgresql://...", "it cannot be read") from None
        if "password=" in parts.path:
            raise _invalid("postgresql://...", "options stand behind a ?")
        user, at, host = parts.netloc.rpartition("@")
        user, _, password = user.partition(":")
        kept = urlencode([(key, value) for key, value in options if key not in _SECRETS], safe="/,")
        path = parts.path
        shown = urlunsplit(("postgresql", f"{user}{at}{host}", path, kept, ""))
        secrets = [password, unquote(password), *(v for k, v in options if k in _SECRETS)]
        if not shown.isprintable() or len(path) < 2:
            raise _invalid(ascii(shown), "it names no database")
        if not _NAME.fullmatch(name):
            rule = "it ends with #NAME, a name of at most 40 small letters, digits, _ and -"
            raise _invalid(shown, rule)
        return cls(f"{shown}#{name}", name, url, tuple(one for one in secrets if one))

    def __str__(self) -> str:
        return self.shown

    @property
    def path(self) -> Address:
        """The address itself, as `Place.path` is what was given."""
        return self

    @property
    def schema(self) -> str:
        """The schema of the database that holds the ledger."""
        return f"dpacct_{self.name}"

    def without_secrets(self, text: str) -> str:
        """Return a text of the database or its library as one line, without passwords."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())

    def state(self) -> Path:
        """Return the file, in a folder of this user, beside which this machine keeps a position.

        `DPACCT_STATE` names another folder. The user of the database and options do not matter.
        """
        parts = urlsplit(self.shown)
        key = f"{parts.netloc.rpartition('@')[2]}{parts.path}#{self.name}"
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = Path(os.environ.get("DPACCT_STATE") or Path(home) / "dpacct")
        file = folder / f"{self.name}-{sha256(key.encode()).hexdigest()[:16]}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
        except OSError as error:
            raise LedgerError(
                f"{self}: its latest position cannot be kept in {folder}: {error.strerror}. "
                "DPACCT_STATE names another folder."
            ) from None
        return file


def _invalid(shown: str, rule: str) -> InvalidParameter:
    example = "An address is postgresql://USER@HOST/DATABASE#NAME."
    return InvalidParameter("ledger", shown, rule, example)
