"""Where data comes from: manifests of sources, chains of signed links, and their verification.

May come in: what describes the files of a source, and who did what to them.
"""
