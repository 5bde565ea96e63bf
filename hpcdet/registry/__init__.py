"""The model registry: named models with immutable versions, as plain files.

``ROOT/registry/NAME/versions/3`` holds a checkpoint and what made it, in the layout of an
experiment of one trial; ``NAME/events/000001.json`` and on are all that users did to a model.
"""
