"""Warm ranks, as a worker and its nurseries know them: messages and kills for memory."""
