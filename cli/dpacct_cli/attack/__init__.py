"""`dpacct attack`: what a trained model tells about who was there, beside what was proven."""
