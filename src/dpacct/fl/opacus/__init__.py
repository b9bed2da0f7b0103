"""What the plug-in for Opacus trains with: its loader and optimizer, and a ledger beside them."""
