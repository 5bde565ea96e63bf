"""The command line: one module per group of verbs, imported when its verb is used."""
