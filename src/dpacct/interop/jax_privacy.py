"""The tight accountant inside JAX Privacy, which asks dp-accounting's accountants.

```python
from dpacct.interop.jax_privacy import TightAccountantConfig
accounting.calibrate_noise_multiplier(
    accountant=accounting.DpsgdTrainingAccountant(TightAccountantConfig()), ...)
```

Importing this module imports JAX Privacy.
"""

from __future__ import annotations

from typing import Any

from dpacct.interop.dp_accounting import TightPrivacyAccountant
from dpacct.packages import import_package

__all__ = ["TightAccountantConfig"]

_accounting = import_package("jax_privacy.accounting", "jax-privacy", "2.0", "jax")


class TightAccountantConfig(_accounting.DpAccountantConfig):
    """The configuration of accountants of JAX Privacy, for adding or removing one example."""

    def create_accountant(self) -> Any:
        """Return a new accountant."""
        return TightPrivacyAccountant()
