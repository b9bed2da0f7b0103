"""What must stay as it was, and how a write to it is seen."""
