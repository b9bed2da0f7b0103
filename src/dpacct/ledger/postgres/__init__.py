"""A ledger in a PostgreSQL database, which many machines share: `Ledger.open` takes its address."""
