"""Files and stores of other programs, written from what experiments record, and read into it."""
