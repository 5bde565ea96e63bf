"""The interface of search methods: events in, actions out, and the seam to samplers."""
