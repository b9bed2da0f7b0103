"""Lower bounds by audits of each method, compared with the charge."""
