"""The documentation site: its pages, their order, and how they are built without a network."""
