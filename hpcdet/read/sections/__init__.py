"""The report's sections as plain data: shown by the page, printed as JSON and Markdown."""
