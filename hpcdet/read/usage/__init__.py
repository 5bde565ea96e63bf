"""The use of slots: where the slot hours of experiments went, by whom and when."""
