"""Verbs that prepare a folder, a site or a shell: init, doctor, site, config, templates.

A verb belongs here if it needs no experiment.
"""
