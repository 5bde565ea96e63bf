"""Files of other programs, written from what experiments record."""
