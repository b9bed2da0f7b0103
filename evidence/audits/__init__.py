"""What audits show of each method, beside what is charged."""
